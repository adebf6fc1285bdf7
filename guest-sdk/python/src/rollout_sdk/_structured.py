"""Structured output: a type that a model's answer is to have, as agents in another framework's shape take it.

The type is whatever `_schema` reads: a model of pydantic's where a component has pydantic, a
dataclass, a typed dictionary, a class of settings.
"""

from __future__ import annotations

import json
from typing import Any

from ._json import JsonObject, is_a, is_object
from ._schema import Mismatch, as_json, read_value, schema_of


class Structure:
    """A type that an answer is to have."""

    WRAPPED = "response"
    """Under which name a value that is no object is asked for."""

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
        """The value as the type says. Raises `Mismatch`."""
        if self._wrapped:
            if not is_object(value) or self.WRAPPED not in value:
                raise Mismatch(f"there is no `{self.WRAPPED}` in it")
            value = value[self.WRAPPED]
        return read_value(self.kind, value)

    def read_text(self, text: str) -> Any:
        """The value that a text holds as JSON. Raises `Mismatch`."""
        try:
            value = json.loads(text)
        except ValueError as error:
            raise Mismatch(f"not valid JSON: {error}") from None
        return self.read(value)


def json_text(value: Any) -> str:
    """What was read, as JSON text."""
    dumped: Any = getattr(value, "model_dump_json", None)
    if dumped is not None:
        return str(dumped())
    return json.dumps(as_json(value), ensure_ascii=False, default=str)


def text_of_output(value: Any) -> str:
    """What was read, for who wants a text: a text as it is, anything else as JSON."""
    return str(value) if is_a(value, str) else json_text(value)
