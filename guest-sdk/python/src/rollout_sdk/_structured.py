"""Structured output: a type for a model's answer, in the shapes of other frameworks.

The type is any that `_schema` reads: a model of pydantic if a component has pydantic, a dataclass, a typed dictionary, a
class of settings.
"""

from __future__ import annotations

import json
from typing import Any

from ._json import JsonObject, is_a, is_object
from ._schema import Mismatch, as_json, read_value, schema_of


class Structure:
    """The required type of an answer."""

    WRAPPED = "response"
    """The name of the property that wraps a value that is not an object."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.name: str = getattr(kind, "__name__", None) or "output"
        schema = schema_of(kind)
        self._wrapped = schema.get("type") != "object"
        self.description: str = schema.get("description") or f"The answer, as {self.name}."
        if self._wrapped:
            schema = {"type": "object", "properties": {self.WRAPPED: schema}, "required": [self.WRAPPED]}
        self.schema: JsonObject = schema

    def read(self, value: Any) -> Any:
        """Returns the value as an instance of the type. Raises `Mismatch`."""
        if self._wrapped:
            if not is_object(value) or self.WRAPPED not in value:
                raise Mismatch(f"there is no `{self.WRAPPED}` in it")
            value = value[self.WRAPPED]
        return read_value(self.kind, value)

    def read_text(self, text: str) -> Any:
        """Parses a JSON text as an instance of the type. Raises `Mismatch`."""
        try:
            value = json.loads(text)
        except ValueError as error:
            raise Mismatch(f"not valid JSON: {error}") from None
        return self.read(value)


def json_text(value: Any) -> str:
    """Returns the value as JSON text."""
    dumped: Any = getattr(value, "model_dump_json", None)
    if dumped is not None:
        return str(dumped())
    return json.dumps(as_json(value), ensure_ascii=False, default=str)


def text_of_output(value: Any) -> str:
    """Returns a text as it is, any other value as JSON."""
    return str(value) if is_a(value, str) else json_text(value)
