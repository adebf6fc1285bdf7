"""Chat messages, in the form of OpenAI's chat completions.

A message is a plain `dict` and keeps fields that nobody here has heard of. These are
constructors and readers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ._json import is_list, is_mapping

Message: TypeAlias = dict[str, Any]


def system(text: str) -> Message:
    """Instructions for the model."""
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    """What the user says."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """What the model says."""
    return {"role": "assistant", "content": text}


def tool_result(call_id: str, text: str) -> Message:
    """The result of the tool call with this id."""
    return {"role": "tool", "content": text, "tool_call_id": call_id}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wants made."""

    id: str
    """The id that the result has to carry."""
    name: str
    """The function's name."""
    arguments: str
    """JSON text as the model wrote it, which may not be valid JSON."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a tool call."""

    call_id: str
    """The id of the call that this answers."""
    content: str
    """What the model is to read."""
    is_error: bool = False
    """Whether the call failed."""

    def message(self) -> Message:
        """The message that tells the model."""
        return tool_result(self.call_id, self.content)


def text_of(message: Mapping[str, Any]) -> str:
    """The text: the content, or the text parts of it joined by line breaks. Empty where
    the message has none, as in a message that only calls tools."""
    match message.get("content"):
        case str(text):
            return text
        case parts if is_list(parts):
            texts = (part.get("text") for part in parts if is_mapping(part))
            return "\n".join(text for text in texts if isinstance(text, str))
        case _:
            return ""


def last_assistant_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """The text of the last message that the model wrote, empty where there is none."""
    text = ""
    for message in messages:
        if message.get("role") == "assistant":
            text = text_of(message)
    return text


def tool_calls_of(message: Mapping[str, Any]) -> list[ToolCall]:
    """The tool calls in a message, in order. A call without a function's name is left
    out; a missing id or missing arguments are read as empty."""
    calls = message.get("tool_calls")
    read = [_read_tool_call(call) for call in calls] if is_list(calls) else []
    return [call for call in read if call is not None]


def _read_tool_call(call: Any) -> ToolCall | None:
    function = call.get("function") if is_mapping(call) else None
    if not is_mapping(function):
        return None
    name = function.get("name")
    if not isinstance(name, str):
        return None
    return ToolCall(_as_text(call.get("id")), name, _as_text(function.get("arguments")))


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    # Some servers give the arguments as an object.
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
