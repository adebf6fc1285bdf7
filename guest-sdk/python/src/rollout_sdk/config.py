"""Configuration that an operator may set, declared as a class with type hints.

    class Config(AgentWorkflowConfig):
        max_turns: int = 8
        '''The most calls of the model.'''

The text below a value describes it, and `rollout-host config` shows it. The operator's values override the defaults,
and are checked against the hints. An unknown name is refused with the most similar known one, unless the class is
declared with `extra="allow"`, which stores it as an attribute. `extra="forbid"` refuses it in the author's own code,
too.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar, cast, get_origin, get_type_hints

from ._json import JsonObject
from ._schema import MISSING, Field, Mismatch, as_json, is_plain, read_fields, schema_of_fields
from ._older import Self, dataclass_transform
from .errors import Invalid


@dataclass_transform(kw_only_default=True)
class Settings:
    """Base class of named values, which are declared by type hints."""

    _extra: ClassVar[str | None] = None
    _fields: ClassVar[list[Field] | None] = None

    def __init_subclass__(cls, *, extra: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # The declaration in models of Pydantic.
        model_config: Any = cls.__dict__.get("model_config")
        if extra is None and isinstance(model_config, dict):
            extra = cast("dict[str, Any]", model_config).get("extra")
            extra = None if extra == "ignore" else extra
        if extra is not None:
            if extra not in ("allow", "forbid"):
                raise TypeError(f"extra is 'allow' or 'forbid', not {extra!r}")
            cls._extra = extra

    def __init__(self, **values: Any) -> None:
        fields = self.fields()
        known = {field.name for field in fields}
        unknown = [name for name in values if name not in known]
        self._take(fields, values, unknown)
        for name in unknown:
            object.__setattr__(self, name, values[name])

    def _take(self, fields: list[Field], values: Mapping[str, Any], unknown: list[str]) -> None:
        if unknown and self._extra == "forbid":
            known = ", ".join(f"`{field.name}`" for field in self.fields())
            raise Invalid(f"unknown field `{unknown[0]}`, expected one of {known}")
        try:
            read = read_fields(fields, values)
        except Mismatch as mismatch:
            raise Invalid(str(mismatch)) from None
        # Defaults belong to the class; a change of one instance must not reach the next.
        for name, value in read.items():
            object.__setattr__(self, name, _copied(value))

    @classmethod
    def fields(cls) -> list[Field]:
        """Returns the declared values, in the order of their declaration."""
        # Cached, because reading hints takes longer than the rest of a short rollout.
        if "_fields" not in cls.__dict__ or cls._fields is None:
            hints = get_type_hints(cls, include_extras=True)
            docs = attribute_docs(cls)
            cls._fields = [
                Field(name, hint, getattr(cls, name, MISSING), docs.get(name))
                for name, hint in hints.items()
                if get_origin(hint) is not ClassVar and not name.startswith("_")
            ]
        return cls._fields

    @classmethod
    def __settings_fields__(cls) -> list[Field]:
        return cls.fields()

    @classmethod
    def schema(cls) -> JsonObject:
        """Returns the JSON schema of the values that an operator may set."""
        return schema_of_fields(cls.fields(), extra=cls._extra == "allow")

    @classmethod
    def is_closed(cls) -> bool:
        """Returns whether the class forbids other values."""
        return cls._extra == "forbid"

    @classmethod
    def own_of(cls, values: Mapping[str, Any], others: type[Settings] | None) -> Mapping[str, Any]:
        """Selects the values for this class from values for this class and another one."""
        if others is None or not cls.is_closed():
            return values
        own, theirs = ({field.name for field in kind.fields()} for kind in (cls, others))
        return {name: value for name, value in values.items() if name in own or name not in theirs}

    @classmethod
    def default_values(cls) -> JsonObject:
        """Returns the defaults of the declared values that JSON can represent."""
        defaults = {field.name: as_json(field.default) for field in cls.fields() if not field.required}
        return {name: value for name, value in defaults.items() if is_plain(value)}

    def plain_values(self) -> JsonObject:
        """Returns all values that JSON can represent."""
        return {name: value for name, value in self.model_dump().items() if is_plain(value)}

    def updated(self, values: Mapping[str, Any]) -> Self:
        """Returns a copy with these JSON values in place of its own. Raises `Invalid`."""
        same = copy.copy(self)
        same.__dict__.update((name, _copied(value)) for name, value in self.__dict__.items())
        fields = {field.name: field for field in self.fields()}
        # The operator's values include the defaults. A value that did not change stays the author's own object, which
        # JSON may represent only in part.
        changed = {name: value for name, value in values.items() if not self._has(name, value)}
        given = [fields[name] for name in changed if name in fields]
        unknown = [name for name in changed if name not in fields and name not in self.__dict__]
        same._take(given, changed, unknown)
        same.__dict__.update((name, changed[name]) for name in changed if name not in fields)
        return same

    def _has(self, name: str, value: Any) -> bool:
        """Returns whether the value of this name has this JSON form."""
        return name in self.__dict__ and as_json(self.__dict__[name]) == value

    def model_dump(self) -> JsonObject:
        """Returns all values as JSON values."""
        return {name: as_json(value) for name, value in self.__dict__.items()}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Creates an instance from JSON values. Raises `Invalid`."""
        return cls(**values)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({values})"


def attribute_docs(cls: type) -> dict[str, str]:
    """Returns the texts below the values of a class. Python does not store them, so they are read from the source, if
    there is one."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is object or base.__module__ == __name__:
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError):
            continue
        if not body or not isinstance(body[0], ast.ClassDef):
            continue
        for value, text in pairwise(body[0].body):
            if isinstance(value, ast.AnnAssign) and isinstance(value.target, ast.Name):
                if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
                    docs[value.target.id] = inspect.cleandoc(text.value.value)
    return docs


def _copied(value: Any) -> Any:
    """Returns a deep copy, or the value itself if it cannot be copied, such as one that holds a lock or a module."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


class ConcurrencyConfig(Settings):
    """The number of rollouts of a plugin that may run concurrently; None for as many as the host allows."""

    max_concurrent: int | None = None


class BaseConfig(Settings):
    """The fields of every configuration."""

    name: str = ""
    description: str | None = None
    concurrency: ConcurrencyConfig = ConcurrencyConfig()


class AgentWorkflowConfig(BaseConfig):
    """The configuration of a workflow."""


class EnvironmentConfig(BaseConfig):
    """The configuration of an environment."""


class GraderConfig(BaseConfig):
    """The configuration of a grader."""
