"""JSON as the host takes it: no NaN, no broken Unicode, and an error that says where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeGuard

from .errors import Failed, Invalid

JsonObject: TypeAlias = dict[str, Any]

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def dump(value: object, what: str) -> str:
    """The value as JSON text. `what` names it where it has none."""
    try:
        text = _encoder.encode(value)
    except (TypeError, ValueError) as error:
        raise Failed(f"{what} is not JSON: {error}") from None
    return whole(text)


def whole(text: str) -> str:
    """The text without half surrogate pairs, which models' servers do send, and which
    the border to the host does not take."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def load(text: str, what: str) -> Any:
    """What the host gave, which is wrong if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{what}: not valid JSON: {error}") from None


def is_object(value: Any) -> TypeGuard[JsonObject]:
    """Whether a value that came as JSON is an object."""
    return isinstance(value, dict)


def is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value that somebody made for JSON is an object."""
    return isinstance(value, Mapping)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Whether a value is an array."""
    return isinstance(value, list)


def is_a(value: object, *kinds: type) -> bool:
    """`isinstance`, of which a type checker concludes nothing: of what may be anything it would know
    the kind and not what that holds."""
    return isinstance(value, kinds)


def class_of(value: object) -> type[Any]:
    """The value's class."""
    return type(value)


def load_object(text: str | None, what: str) -> JsonObject:
    """One JSON object; none is an empty one."""
    if text is None:
        return {}
    value = load(text, what)
    if value is None:
        return {}
    if not is_object(value):
        raise Invalid(f"{what}: not a JSON object")
    return value


def load_messages(texts: list[str], what: str) -> list[JsonObject]:
    """Messages that came from the host."""
    messages: list[JsonObject] = []
    for place, text in enumerate(texts):
        message = load(text, f"{what} message {place}")
        if not is_object(message):
            raise Invalid(f"{what} message {place}: not a JSON object")
        messages.append(message)
    return messages


def dump_messages(messages: Any, what: str = "message") -> list[str]:
    """Messages as the host takes them. `what` names one in an error."""
    texts: list[str] = []
    for place, message in enumerate(messages):
        if not is_object(message):
            raise Failed(f"{what} {place} is a {type(message).__name__}; a message is a dict")
        texts.append(dump(message, f"{what} {place}"))
    return texts


def as_number(value: Any, what: str) -> float:
    """The number that a reward or a measurement is. Whether it is finite, the host sees."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Failed(f"{what} is {value!r}, not a number") from None
