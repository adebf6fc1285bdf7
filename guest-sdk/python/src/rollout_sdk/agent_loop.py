"""Agent loops: agents that declare their tools before they run.

    class Calculator(RolloutAgentLoop):
        name = "calculator"

        def get_tools(self, request): ...
        async def run(self, ctx): ...

The helpers create tool result messages and read the model's tool calls.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from . import log
from ._json import JsonObject, as_number, dump, is_a, is_mapping, is_object
from .errors import RolloutError
from .message import Message
from .sample import Completion, Sample, Usage, chat_with
from .tool import Tool, as_tool


@dataclass
class RolloutRequest:
    """The request for a rollout."""

    rollout_id: str
    messages: list[Message]
    """The prompt."""
    max_turns: int = 10
    """The caller's suggested number of turns. The host does not enforce it."""
    max_tokens_total: int = 8192
    """The caller's suggested number of tokens. The host does not enforce it."""
    completion_params: JsonObject = field(default_factory=dict[str, Any])
    """The caller's parameters. The host adds the sampling parameters among them to every chat request, so
    `ctx.chat(messages, **ctx.request.completion_params)` and `ctx.chat(messages)` send the same."""
    metadata: JsonObject = field(default_factory=dict[str, Any])
    """The data set row's metadata."""


@dataclass
class RolloutMetrics:
    """A loop's own metrics."""

    num_llm_calls: int = 0
    num_tool_calls: int = 0
    tool_latency_ms: float = 0.0
    prompt_tokens: int = 0
    response_tokens: int = 0


@dataclass
class RolloutResult:
    """The result of the loop."""

    status: Literal["COMPLETED", "ERROR"]
    final_messages: list[Message]
    finish_reason: str
    error_message: str | None = None
    reward: float | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class CompletionsResult:
    """The model's reply."""

    message: Message
    """The assistant's message. Store it unchanged."""
    finish_reason: str
    usage: Usage

    @property
    def content(self) -> str | None:
        """The reply's text; None if it has none."""
        return self.message.get("content")

    @property
    def tool_calls(self) -> list[JsonObject]:
        """The tool calls in the form of the model's server."""
        return self.message.get("tool_calls") or []

    @property
    def has_tool_calls(self) -> bool:
        """Whether the reply calls tools."""
        return bool(self.tool_calls)


class RolloutContext:
    """The context of a loop while it runs."""

    def __init__(self, request: RolloutRequest, tools: list[JsonObject], sample: Sample) -> None:
        self.request = request
        self.tools = tools
        """The tools that `get_tools` returned for this rollout."""
        self.sample = sample
        self.metrics = RolloutMetrics()

    async def chat(self, messages: Iterable[Message], **params: Any) -> CompletionsResult:
        """Calls the model with the loop's tools. `params` are sampling parameters that override those of the request.
        The request's own parameters may be passed too, whatever their names are."""
        reply: Completion = await chat_with(self.sample, messages, self.tools, params)
        usage = reply.usage or Usage()
        self.metrics.num_llm_calls += 1
        self.metrics.prompt_tokens += usage.prompt_tokens
        self.metrics.response_tokens += usage.completion_tokens
        return CompletionsResult(reply.message, reply.finish_reason or "stop", usage)

    def complete(
        self, final_messages: list[Message], finish_reason: str = "stop", reward: float | None = None
    ) -> RolloutResult:
        """Returns the result of a loop that succeeded."""
        checked = None if reward is None else as_number(reward, "the reward")
        return RolloutResult("COMPLETED", final_messages, finish_reason, reward=checked)

    def error(self, error_message: str, final_messages: list[Message] | None = None) -> RolloutResult:
        """Returns the result of a loop that failed."""
        return RolloutResult("ERROR", final_messages or [], "error", error_message=error_message)

    def record_tool_call(self, latency_ms: float = 0.0) -> None:
        """Counts a tool call and its duration."""
        self.metrics.num_tool_calls += 1
        self.metrics.tool_latency_ms += latency_ms

    def log_event(self, event_type: str, **data: Any) -> None:
        """Logs a named event."""
        log.event(event_type, json.loads(json.dumps(data, default=str)))


class RolloutAgentLoop(ABC):
    """An agent loop. The entry module has exactly one subclass."""

    name: str = ""
    """The loop's name; if empty, the class's name."""

    @abstractmethod
    def get_tools(self, request: RolloutRequest) -> Sequence[Mapping[str, Any] | Tool[..., Any]]:
        """Returns the tools of this rollout: OpenAI function tools, or functions with `@tool`. It is called before
        `run`, in a separate instance, without a model and samples."""

    @abstractmethod
    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """Runs one rollout. An exception leaves it without a reward. Its text, `str(exception)`, is reported unchanged;
        the traceback is in the rollout's log."""


def tool_schemas(loop: RolloutAgentLoop, request: RolloutRequest) -> list[JsonObject]:
    """Returns the loop's tools as JSON schemas."""
    given: Any = loop.get_tools(request)
    if given is None or is_a(given, str, bytes, Mapping):
        raise TypeError(f"get_tools returned {type(given).__name__}, not a list of tools")
    schemas: list[JsonObject] = []
    items: Iterable[Any] = given
    for place, item in enumerate(items):
        schema: Any = as_tool(item).schema if is_a(item, Tool) else item
        if hasattr(schema, "model_dump"):
            schema = schema.model_dump(exclude_none=True)
        if not is_mapping(schema):
            raise TypeError(f"tool {place} of get_tools is {type(item).__name__}, not a tool's schema")
        schemas.append(dict(schema))
    return schemas


# Helpers that create messages and read calls.


class ToolArgumentError(RolloutError):
    """The arguments of a tool call are invalid."""

    def __init__(self, message: str, tool_call_id: str = "", tool_name: str = "") -> None:
        super().__init__(message)
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name


def create_tool_result(tool_call_id: str, content: str) -> Message:
    """Returns the message with the result of a tool call."""
    return {"role": "tool", "content": content, "tool_call_id": tool_call_id}


def create_tool_error_result(tool_call_id: str, error_message: str) -> Message:
    """Returns the message that reports a failed tool call to the model."""
    return create_tool_result(tool_call_id, f"Error: {error_message}")


def serialize_tool_result(result: Any) -> str:
    """Returns a result as text: `true` and `false`, numbers in Python's format, text as it is, anything else as
    JSON."""
    if isinstance(result, bool):
        return "true" if result else "false"
    if isinstance(result, (int, float)):
        return str(result)
    return result if isinstance(result, str) else dump_readably(result)


def dump_readably(value: Any) -> str:
    """Returns JSON with the spaces of Python's `json.dumps`."""
    dump(value, "the result of a tool")
    return json.dumps(value)


def parse_tool_arguments(arguments: str | Mapping[str, Any]) -> JsonObject:
    """Returns the arguments of a tool call as an object: parses JSON text, and returns an object as it is. It also
    accepts a whole tool call. Raises `ToolArgumentError`."""
    if is_mapping(arguments) and is_mapping(arguments.get("function")) and "arguments" in arguments["function"]:
        call_id, name, arguments = get_tool_call_info_raw(arguments)
        return _parse_arguments(arguments, call_id, name)
    return _parse_arguments(arguments, "", "")


def _parse_arguments(arguments: Any, call_id: str, name: str) -> JsonObject:
    # The texts are the published package's: loops send them to the model.
    if is_object(arguments):
        return arguments
    if not isinstance(arguments, str):
        raise ToolArgumentError(f"Expected str or dict arguments, got {type(arguments).__name__}", call_id, name)
    try:
        parsed = json.loads(arguments)
    except ValueError as error:
        raise ToolArgumentError(f"Invalid JSON arguments: {error}", call_id, name) from error
    if not is_object(parsed):
        raise ToolArgumentError(f"Expected dict from JSON, got {type(parsed).__name__}", call_id, name)
    return parsed


def get_tool_call_info_raw(call: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Returns id, function name and unparsed arguments of a tool call."""
    function: Mapping[str, Any] = call.get("function") or {}
    return call.get("id") or "unknown", function.get("name") or "", function.get("arguments", {})


def get_tool_call_info(call: Mapping[str, Any]) -> tuple[str, str, JsonObject]:
    """Returns id, function name and arguments of a tool call. Raises `ToolArgumentError`."""
    call_id, name, arguments = get_tool_call_info_raw(call)
    return call_id, name, _parse_arguments(arguments, call_id, name)


async def execute_tool_calls(
    tool_calls: Iterable[Mapping[str, Any]], executor: Callable[[Mapping[str, Any]], Awaitable[Message]]
) -> list[Message]:
    """Makes all calls concurrently and returns the results in their order. One exception fails the batch."""
    return list(await asyncio.gather(*(executor(call) for call in tool_calls)))


def now_ms() -> float:
    """Returns a monotonic time in milliseconds, for `record_tool_call`."""
    return time.monotonic() * 1000
