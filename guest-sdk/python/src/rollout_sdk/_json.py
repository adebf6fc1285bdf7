"""JSON in the form that the host accepts: no NaN, valid Unicode, and errors with a location."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeGuard

from .errors import Failed, Invalid

JsonObject: TypeAlias = dict[str, Any]

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def dump(value: object, what: str) -> str:
    """Returns the value as JSON text. `what` names it in errors."""
    try:
        text = _encoder.encode(value)
    except (TypeError, ValueError) as error:
        raise Failed(f"{what} is not JSON: {error}") from None
    return whole(text)


def whole(text: str) -> str:
    """Returns the text without unpaired surrogates, which model servers do send and the host does not accept."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def load(text: str, what: str) -> Any:
    """Parses JSON from the host. Raises `Invalid` if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{what}: not valid JSON: {error}") from None


def is_object(value: Any) -> TypeGuard[JsonObject]:
    """Returns whether a parsed value is an object."""
    return isinstance(value, dict)


def is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Returns whether a value from an author becomes a JSON object."""
    return isinstance(value, Mapping)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Returns whether a value is an array."""
    return isinstance(value, list)


def is_a(value: object, *kinds: type) -> bool:
    """Calls `isinstance` without narrowing the static type: a type checker would narrow `Any` to a class with unknown
    type parameters."""
    return isinstance(value, kinds)


def class_of(value: object) -> type[Any]:
    """Returns the value's class."""
    return type(value)


def load_object(text: str | None, what: str) -> JsonObject:
    """Parses a JSON object; no text is an empty one."""
    if text is None:
        return {}
    value = load(text, what)
    if value is None:
        return {}
    if not is_object(value):
        raise Invalid(f"{what}: not a JSON object")
    return value


def load_messages(texts: list[str], what: str) -> list[JsonObject]:
    """Parses messages from the host."""
    messages: list[JsonObject] = []
    for place, text in enumerate(texts):
        message = load(text, f"{what} message {place}")
        if not is_object(message):
            raise Invalid(f"{what} message {place}: not a JSON object")
        messages.append(message)
    return messages


def dump_messages(messages: Any, what: str = "message") -> list[str]:
    """Returns messages as JSON texts. `what` names one in an error."""
    texts: list[str] = []
    for place, message in enumerate(messages):
        if not is_object(message):
            raise Failed(f"{what} {place} is a {type(message).__name__}; a message is a dict")
        texts.append(dump(message, f"{what} {place}"))
    return texts


def as_number(value: Any, what: str) -> float:
    """Converts a reward or a measurement to a number. The host checks that it is finite."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Failed(f"{what} is {value!r}, not a number") from None
