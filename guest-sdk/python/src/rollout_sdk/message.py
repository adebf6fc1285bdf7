"""Chat messages, in the form of OpenAI's chat completions.

A message is a plain `dict` and keeps unknown fields. These functions create and read messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ._json import is_list, is_mapping

Message: TypeAlias = dict[str, Any]


def system(text: str) -> Message:
    """Returns a system message: instructions for the model."""
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    """Returns a user message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """Returns an assistant message."""
    return {"role": "assistant", "content": text}


def tool_result(call_id: str, text: str) -> Message:
    """Returns the message with the result of the tool call with this id."""
    return {"role": "tool", "content": text, "tool_call_id": call_id}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the model."""

    id: str
    """The id of the call, which its result must have."""
    name: str
    """The function's name."""
    arguments: str
    """The arguments as the model wrote them, which may not be valid JSON."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call."""

    call_id: str
    """The id of the call."""
    content: str
    """The text for the model."""
    is_error: bool = False
    """Whether the call failed."""

    def message(self) -> Message:
        """Returns the message with this result."""
        return tool_result(self.call_id, self.content)


def text_of(message: Mapping[str, Any]) -> str:
    """Returns the text: the content, or its text parts joined by line breaks. Empty if the message has none, for
    example if it only calls tools."""
    match message.get("content"):
        case str(text):
            return text
        case parts if is_list(parts):
            texts = (part.get("text") for part in parts if is_mapping(part))
            return "\n".join(text for text in texts if isinstance(text, str))
        case _:
            return ""


def last_assistant_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """Returns the text of the model's last message; empty if there is none."""
    text = ""
    for message in messages:
        if message.get("role") == "assistant":
            text = text_of(message)
    return text


def tool_calls_of(message: Mapping[str, Any]) -> list[ToolCall]:
    """Returns the tool calls in a message, in order. A call without a function name is left out; a missing id or
    missing arguments are read as empty."""
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
    # Some servers send the arguments as an object.
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
