"""Converts type hints to JSON schemas, and checks JSON values against type hints.

Used for tools' arguments and for configuration. A hint without information (`Any`, or one that this module does not know)
accepts every value. No third-party package is used, because those for this purpose are native code.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import types
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ._json import JsonObject, class_of, is_a, is_list, is_mapping, is_object
from ._older import NotRequired, Required, is_typeddict

MISSING: Any = object()
"""Marks a field without a default."""


class Mismatch(ValueError):
    """A value does not match its type hint. The text has the location and the reason."""

    def within(self, place: str) -> Mismatch:
        """Returns the same error with the outer location in front."""
        text = str(self)
        return Mismatch(f"{place}{text}" if text.startswith(("[", ".")) else f"{place}: {text}")


@dataclasses.dataclass(frozen=True)
class Field:
    """A named value: a parameter of a tool, or a setting."""

    name: str
    hint: Any
    default: Any = MISSING
    description: str | None = None

    @property
    def required(self) -> bool:
        return self.default is MISSING


def schema_of_fields(fields: Sequence[Field], *, extra: bool | None = None) -> JsonObject:
    """Returns the schema of an object with these fields. `extra` sets whether others are allowed; None leaves it
    open."""
    properties: JsonObject = {}
    for field in fields:
        one = schema_of(field.hint)
        if field.description and "description" not in one:
            one["description"] = field.description
        # A default of None is not stated.
        if not field.required and field.default is not None and is_plain(default := as_json(field.default)):
            one["default"] = default
        properties[field.name] = one
    schema: JsonObject = {"type": "object", "properties": properties}
    required = [field.name for field in fields if field.required]
    if required:
        schema["required"] = required
    if extra is not None:
        schema["additionalProperties"] = extra
    return schema


def read_fields(fields: Sequence[Field], value: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the fields' values, in order. Other names are ignored."""
    read: dict[str, Any] = {}
    for field in fields:
        if field.name in value:
            try:
                read[field.name] = read_value(field.hint, value[field.name])
            except Mismatch as mismatch:
                raise mismatch.within(f"field `{field.name}`") from None
        elif field.required:
            raise Mismatch(f"missing field `{field.name}`")
        else:
            read[field.name] = field.default
    return read


_PLAIN: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}


def schema_of(hint: Any) -> JsonObject:
    """Returns the JSON schema of a hint."""
    if hint in (Any, inspect.Parameter.empty, object):
        return {}
    if hint is None or hint is type(None):
        return {"type": "null"}
    if isinstance(hint, type) and hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated_schema(args)
    if origin in (Required, NotRequired):
        return schema_of(args[0])
    if origin is Literal:
        return _enum_schema(list(args))
    if origin in (Union, types.UnionType):
        return _union_schema(args)
    return _container_schema(hint, origin or hint, args)


def is_foreign_model(hint: Any) -> bool:
    """Returns whether this is a model class with its own schema and validation, such as pydantic's if a component has
    pydantic."""
    return isinstance(hint, type) and hasattr(hint, "model_json_schema") and hasattr(hint, "model_validate")


def inlined(schema: JsonObject) -> JsonObject:
    """Returns a schema with its definitions inlined, so that it can be part of another. Raises `Mismatch` for a
    recursive schema."""
    definitions: JsonObject = schema.get("$defs", {})

    def resolved(value: Any, within: tuple[str, ...]) -> Any:
        if is_list(value):
            return [resolved(each, within) for each in value]
        if not is_object(value):
            return value
        name = str(value.get("$ref", "")).removeprefix("#/$defs/")
        if name not in definitions:
            return {key: resolved(each, within) for key, each in value.items()}
        if name in within:
            raise Mismatch(f"the schema of `{name}` is within itself, which a tool's cannot be")
        beside = {key: each for key, each in value.items() if key != "$ref"}
        return {**resolved(definitions[name], (*within, name)), **resolved(beside, within)}

    found: JsonObject = resolved({key: each for key, each in schema.items() if key != "$defs"}, ())
    return found


def _container_schema(hint: Any, base: Any, args: tuple[Any, ...]) -> JsonObject:
    if is_foreign_model(hint):
        return inlined(hint.model_json_schema())
    if base is tuple and args and args[-1] is not Ellipsis:
        places = [schema_of(arg) for arg in args]
        return {"type": "array", "prefixItems": places, "minItems": len(places), "maxItems": len(places)}
    if _is_list(base):
        items = schema_of(args[0]) if args else {}
        return {"type": "array", "items": items}
    if fields := fields_of(hint):
        return schema_of_fields(fields)
    if isinstance(base, type):
        if issubclass(base, enum.Enum):
            return _enum_schema([member.value for member in base])
        if issubclass(base, Mapping):
            values = schema_of(args[1]) if len(args) == 2 else {}
            return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
    return {}


def _annotated_schema(args: tuple[Any, ...]) -> JsonObject:
    schema = schema_of(args[0])
    for note in args[1:]:
        # A text beside the hint, or an object with a description, such as pydantic's fields.
        description = note if isinstance(note, str) else getattr(note, "description", None)
        if isinstance(description, str):
            schema["description"] = description
    return schema


def _enum_schema(values: list[Any]) -> JsonObject:
    kinds = {_PLAIN.get(type(value)) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    return {"type": kind, "enum": values} if kind else {"enum": values}


def _union_schema(args: tuple[Any, ...]) -> JsonObject:
    schemas = [schema_of(arg) for arg in args]
    if all(set(schema) == {"type"} and isinstance(schema["type"], str) for schema in schemas):
        return {"type": [schema["type"] for schema in schemas]}
    return {"anyOf": schemas}


def _is_list(base: Any) -> bool:
    if not isinstance(base, type) or issubclass(base, (str, bytes)):
        return False
    return issubclass(base, (list, tuple, set, frozenset)) or base in (Sequence, AbstractSet)


def is_plain(value: Any) -> bool:
    """Returns whether JSON can represent the value."""
    if value is None or isinstance(value, (str, bool, int)):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if is_list(value):
        return all(is_plain(item) for item in value)
    return is_object(value) and all(is_a(key, str) and is_plain(item) for key, item in value.items())


def as_json(value: Any) -> Any:
    """Converts a setting's value to JSON values, as far as possible."""
    kind = class_of(value)
    if hasattr(kind, "__settings_fields__"):
        return value.model_dump()
    if is_foreign_model(kind):
        return as_json(value.model_dump(mode="json"))
    if isinstance(value, enum.Enum):
        return as_json(value.value)
    if dataclasses.is_dataclass(kind):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(kind)}
    if is_mapping(value):
        return {name: as_json(item) for name, item in value.items()}
    if is_a(value, set, frozenset, list, tuple):
        items: list[Any] = [as_json(item) for item in value]
        # The order of a set differs in every build; the defaults need a fixed one.
        return sorted(items, key=repr) if is_a(value, set, frozenset) else items
    return value


def fields_of(hint: Any) -> list[Field]:
    """Returns the fields of a dataclass, a typed dictionary or a class of settings; none for other types."""
    if is_typeddict(hint):
        hints = get_type_hints(hint, include_extras=True)
        required = hint.__required_keys__
        return [Field(name, hints[name], MISSING if name in required else None) for name in hints]
    if isinstance(hint, type) and hasattr(hint, "__settings_fields__"):
        return hint.__settings_fields__()  # type: ignore[no-any-return]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        return [_dataclass_field(field, hints) for field in dataclasses.fields(hint) if field.init]
    return []


def _dataclass_field(field: dataclasses.Field[Any], hints: dict[str, Any]) -> Field:
    default: Any = MISSING
    if field.default is not dataclasses.MISSING:
        default = field.default
    elif field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    return Field(field.name, hints.get(field.name, Any), default, field.metadata.get("description"))


def read_value(hint: Any, value: Any) -> Any:
    """Reads a value by its hint, or raises `Mismatch`. Nothing is converted: text is not read as a number, and only a
    number without a fraction is an integer."""
    if hint in (Any, inspect.Parameter.empty, object):
        return value
    if hint is None or hint is type(None):
        return _expect(value is None, value, "null", value)
    if isinstance(hint, type) and hint in _PLAIN:
        return _read_plain(hint, value)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Annotated, Required, NotRequired):
        return read_value(args[0], value)
    if origin is Literal:
        return _read_choice({arg: arg for arg in args}, value)
    if origin in (Union, types.UnionType):
        return _read_union(args, value)
    return _read_container(hint, origin or hint, args, value)


def _read_plain(hint: type, value: Any) -> Any:
    if hint is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return _expect(number, value, "a number", lambda: float(value))
    if hint is int:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return _expect(isinstance(value, int) and not isinstance(value, bool), value, "a whole number", value)
    if hint is bool:
        return _expect(isinstance(value, bool), value, "true or false", value)
    return _expect(isinstance(value, str), value, "a string", value)


def _expect(fits: bool, value: Any, what: str, read: Any) -> Any:
    if not fits:
        raise Mismatch(f"{_shown(value)} is not {what}")
    return read() if callable(read) else read


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read_choice(choices: dict[Any, Any], value: Any) -> Any:
    for choice, read in choices.items():
        if choice == value and type(choice) is type(value):
            return read
    raise Mismatch(f"{_shown(value)} is none of {', '.join(map(repr, choices))}")


def _read_union(args: tuple[Any, ...], value: Any) -> Any:
    mismatches: list[str] = []
    for arg in args:
        try:
            return read_value(arg, value)
        except Mismatch as mismatch:
            if arg is not type(None):
                mismatches.append(str(mismatch))
    raise Mismatch("; ".join(mismatches))


def _read_foreign(hint: Any, value: Any) -> Any:
    if isinstance(value, hint):
        return value
    try:
        return hint.model_validate(value)
    except ValueError as error:
        raise Mismatch(str(error)) from None


def _read_container(hint: Any, base: Any, args: tuple[Any, ...], value: Any) -> Any:
    if is_foreign_model(hint):
        return _read_foreign(hint, value)
    if _is_list(base):
        return _read_list(base, args, value)
    # A value from the author's code may already be an instance.
    if isinstance(base, type) and not is_typeddict(hint) and fields_of(hint) and isinstance(value, base):
        return value
    if isinstance(base, type) and issubclass(base, enum.Enum) and isinstance(value, base):
        return value
    if fields := fields_of(hint):
        _expect(isinstance(value, Mapping), value, "an object", None)
        read = read_fields(fields, value)
        if is_typeddict(hint):
            return {name: read[name] for name in read if name in value}
        return hint(**read)
    if isinstance(base, type):
        if issubclass(base, enum.Enum):
            return _read_choice({member.value: member for member in base}, value)
        if issubclass(base, Mapping):
            _expect(isinstance(value, Mapping), value, "an object", None)
            if len(args) == 2:
                return {key: _read_item(args[1], item, f".{key}") for key, item in value.items()}
            return value
    return value


def _read_list(base: Any, args: tuple[Any, ...], value: Any) -> Any:
    # A value from the author's code may be another kind of sequence.
    _expect(isinstance(value, (list, tuple, set, frozenset)), value, "an array", None)
    made_of: Any = base
    hints: Sequence[Any]
    if base is tuple and args and args[-1] is not Ellipsis:
        hints = args
        _expect(len(value) == len(args), value, f"an array of {len(args)}", None)
    else:
        hints = [args[0] if args else Any] * len(value)
    items = [_read_item(hint, item, f"[{at}]") for at, (hint, item) in enumerate(zip(hints, value, strict=True))]
    if base in (tuple, set, frozenset):
        return made_of(items)
    return items


def _read_item(hint: Any, value: Any, place: str) -> Any:
    try:
        return read_value(hint, value)
    except Mismatch as mismatch:
        raise mismatch.within(place) from None
