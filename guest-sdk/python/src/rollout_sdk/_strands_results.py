"""Results of agents in the shape of the Strands framework: metrics, state, exceptions that end an invocation early, and
callback handlers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._json import JsonObject, dump
from ._strands_hooks import StopReason
from ._structured import json_text
from .errors import Failed, RolloutError
from .message import Message
from .sample import Usage


class MaxTokensReachedException(RolloutError):
    """The model's reply was cut off at its token limit."""


class StructuredOutputException(RolloutError):
    """The model returned no structured output although it was required."""


class ConcurrencyException(RolloutError):
    """An agent was invoked during another invocation."""


# Results of an invocation.


@dataclass
class ToolMetrics:
    """Counts of a tool's calls."""

    call_count: int = 0
    success_count: int = 0
    error_count: int = 0
    total_time: float = 0.0


@dataclass
class EventLoopMetrics:
    """Metrics of an agent since its creation."""

    cycle_count: int = 0
    accumulated_usage: dict[str, int] = field(
        default_factory=lambda: {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    )
    tool_metrics: dict[str, ToolMetrics] = field(default_factory=dict[str, ToolMetrics])

    def count(self, usage: Usage | None) -> None:
        """Counts a model call."""
        self.cycle_count += 1
        if usage is not None:
            counts = (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
            for name, more in zip(self.accumulated_usage, counts, strict=True):
                self.accumulated_usage[name] += more

    def get_summary(self) -> JsonObject:
        """Returns all metrics as JSON values."""
        return {
            "total_cycles": self.cycle_count,
            "accumulated_usage": dict(self.accumulated_usage),
            "tool_usage": {name: dict(vars(each)) for name, each in self.tool_metrics.items()},
        }


@dataclass
class AgentResult:
    """The result of an invocation. Its text is that of the last message."""

    stop_reason: StopReason
    message: Message
    """The model's last message."""
    metrics: EventLoopMetrics = field(default_factory=EventLoopMetrics)
    """Metrics of the agent since its creation."""
    state: Any = None
    """The invocation's `request_state`."""
    structured_output: Any = None
    """The answer as an instance of the requested type."""
    usage: Usage = field(default_factory=Usage)
    """The tokens of the invocation, as far as the server reports them."""

    def __str__(self) -> str:
        if self.structured_output is not None:
            return json_text(self.structured_output)
        texts = (block["text"] for block in self.message.get("content", []) if "text" in block)
        return "".join(f"{text}\n" for text in texts)


class AgentState:
    """JSON values that an agent's tools and hooks share."""

    def __init__(self, initial: Mapping[str, Any] | None = None) -> None:
        self._values: JsonObject = {}
        for name, value in (initial or {}).items():
            self.set(name, value)

    def get(self, key: str | None = None) -> Any:
        """Returns a copy of a value, None if there is none; without a key, a copy of all."""
        return copy.deepcopy(self._values if key is None else self._values.get(key))

    def set(self, key: str, value: Any) -> None:
        """Stores a value. Raises `ValueError` if JSON cannot represent it."""
        if not key.strip():
            raise ValueError("a key of an agent's state is a text that is not empty")
        try:
            dump(value, f"state `{key}`")
        except Failed as error:
            raise ValueError(str(error)) from None
        self._values[key] = copy.deepcopy(value)

    def delete(self, key: str) -> None:
        """Removes a value."""
        self._values.pop(key, None)


# Callback handlers, which observe an agent.


def null_callback_handler(**_: Any) -> None:
    """Does nothing."""


class PrintingCallbackHandler:
    """Prints the model's text and its tool calls to the rollout's log."""

    def __call__(self, **event: Any) -> None:
        if "data" in event:
            print(event["data"])
        if "current_tool_use" in event:
            print(f"tool: {event['current_tool_use']['name']}")


class CompositeCallbackHandler:
    """Several handlers in one."""

    def __init__(self, *handlers: Callable[..., Any]) -> None:
        self.handlers = handlers

    def __call__(self, **event: Any) -> None:
        for each in self.handlers:
            each(**event)
