"""Agents in the shape of the OpenAI Agents framework.

    from rollout_sdk.openai_agents import Agent, MemorySession, Runner, function_tool

    session = MemorySession()
    result = await Runner.run(agent, ctx.prompt, session=session)

A session registers its sample when it is created, and its items are the sample's, in the form of the Responses API:
messages, `function_call` and `function_call_output`. A run without a session within a tool or a guardrail of another
run uses that run's sample and is not recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import inspect
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias

from ._agents_guards import (
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailResult,
    OutputGuardrail,
    OutputGuardrailResult,
    check_input,
    check_output,
    input_guardrail,
    output_guardrail,
)
from ._agents_items import (
    AgentsException,
    ContextT,
    HandoffCallItem,
    HandoffOutputItem,
    InputGuardrailTripwireTriggered,
    Item,
    ItemHelpers,
    MaxTurnsExceeded,
    MessageOutputItem,
    ModelBehaviorError,
    ModelResponse,
    OutputGuardrailTripwireTriggered,
    Raw,
    RunContextWrapper,
    RunItem,
    ToolCallItem,
    ToolCallOutputItem,
    ToolContext,
    Usage,
    UserError,
    as_chat,
    as_items,
    output_item,
    reply_items,
    usage_of,
)
from ._agents_sessions import Conversation, MemorySession, SessionABC, SQLiteSession
from ._agents_tools import (
    Enabled,
    FunctionTool,
    FunctionToolResult,
    default_tool_error_function,
    function_tool,
    is_enabled,
    strict,
)
from ._json import JsonObject, is_mapping
from ._loop import run_sync
from ._models import RolloutModel, params_of
from ._schema import Mismatch
from ._structured import Structure, text_of_output
from .message import Message, ToolCall
from .sample import Completion
from .tool import Tool

__all__ = [
    "Agent",
    "AgentHooks",
    "AgentOutputSchema",
    "AgentUpdatedStreamEvent",
    "AgentsException",
    "FunctionTool",
    "FunctionToolResult",
    "GuardrailFunctionOutput",
    "Handoff",
    "HandoffCallItem",
    "HandoffInputData",
    "HandoffOutputItem",
    "InputGuardrail",
    "InputGuardrailResult",
    "InputGuardrailTripwireTriggered",
    "ItemHelpers",
    "MaxTurnsExceeded",
    "MemorySession",
    "MessageOutputItem",
    "ModelBehaviorError",
    "ModelResponse",
    "ModelSettings",
    "OsmosisAgent",
    "OsmosisMemorySession",
    "OsmosisRolloutModel",
    "OutputGuardrail",
    "OutputGuardrailResult",
    "OutputGuardrailTripwireTriggered",
    "RawResponsesStreamEvent",
    "RolloutModel",
    "RunConfig",
    "RunContextWrapper",
    "RunHooks",
    "RunItem",
    "RunItemStreamEvent",
    "RunResult",
    "RunResultStreaming",
    "Runner",
    "SQLiteSession",
    "SessionABC",
    "StopAtTools",
    "ToolCallItem",
    "ToolCallOutputItem",
    "ToolContext",
    "ToolsToFinalOutputResult",
    "Usage",
    "UserError",
    "default_tool_error_function",
    "function_tool",
    "handoff",
    "input_guardrail",
    "output_guardrail",
    "set_tracing_disabled",
    "strict",
    "trace",
]

TURNS_MAX = 10
"""Default of `max_turns`: the maximum number of model calls in a run."""


@dataclass
class ModelSettings:
    """Sampling parameters. None leaves a parameter to the model's server."""

    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = None
    reasoning: Any = None
    verbosity: Literal["low", "medium", "high"] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    top_logprobs: int | None = None
    extra_body: dict[str, Any] | None = None
    extra_args: dict[str, Any] | None = None

    def resolve(self, override: ModelSettings | None) -> ModelSettings:
        """Returns these settings, overridden by the others."""
        if override is None:
            return self
        given = {name: value for name, value in vars(override).items() if value is not None}
        for name in ("extra_body", "extra_args"):
            if name in given:
                given[name] = {**(getattr(self, name) or {}), **given[name]}
        return dataclasses.replace(self, **given)

    def params(self) -> dict[str, Any]:
        """Returns the parameters in the form of a chat request."""
        named = {
            name: value
            for name, value in vars(self).items()
            if value is not None and name not in ("extra_body", "extra_args", "reasoning")
        }
        effort = self.reasoning.get("effort") if is_mapping(self.reasoning) else getattr(self.reasoning, "effort", None)
        if effort is not None:
            named["reasoning_effort"] = effort
        if "top_logprobs" in named:
            named["logprobs"] = True
        choice = named.get("tool_choice")
        if choice is not None and choice not in ("auto", "required", "none"):
            named["tool_choice"] = {"type": "function", "function": {"name": choice}}
        return {**named, **(self.extra_body or {}), **(self.extra_args or {})}


# Handoffs.


@dataclass(frozen=True)
class HandoffInputData:
    """The conversation for the next agent, as the argument of an input filter."""

    input_history: str | tuple[Item, ...]
    """The conversation before the run."""
    pre_handoff_items: tuple[RunItem, ...]
    """The items that the run added before this turn."""
    new_items: tuple[RunItem, ...]
    """The items that this turn added, including the handoff."""
    run_context: RunContextWrapper[Any] | None = None

    def clone(self, **changes: Any) -> HandoffInputData:
        """Returns a copy with these changes."""
        return dataclasses.replace(self, **changes)


@dataclass
class Handoff:
    """A handoff to another agent, which the model starts by calling a tool."""

    agent: Agent[Any]
    tool_name: str
    tool_description: str
    on_handoff: Callable[..., Any] | None = None
    input_type: Any = None
    input_filter: Callable[[HandoffInputData], Any] | None = None
    is_enabled: Enabled = True

    @property
    def agent_name(self) -> str:
        return self.agent.name

    @property
    def schema(self) -> JsonObject:
        """The tool definition for the model."""
        parameters: JsonObject = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
        if self.input_type is not None:
            parameters = strict(Structure(self.input_type).schema)
        function: JsonObject = {"name": self.tool_name, "description": self.tool_description, "parameters": parameters}
        return {"type": "function", "function": {**function, "strict": True}}

    async def taken(self, context: RunContextWrapper[Any], arguments: str) -> None:
        """Calls `on_handoff`."""
        if self.on_handoff is None:
            return
        if self.input_type is None:
            result: Any = self.on_handoff(context)
        else:
            try:
                given = Structure(self.input_type).read_text(arguments)
            except Mismatch as mismatch:
                raise ModelBehaviorError(f"the model called `{self.tool_name}` wrongly: {mismatch}") from None
            result = self.on_handoff(context, given)
        if inspect.isawaitable(result):
            await result


def handoff(
    agent: Agent[Any],
    *,
    tool_name_override: str | None = None,
    tool_description_override: str | None = None,
    on_handoff: Callable[..., Any] | None = None,
    input_type: Any = None,
    input_filter: Callable[[HandoffInputData], Any] | None = None,
    is_enabled: Enabled = True,
) -> Handoff:
    """Creates a handoff to this agent, with another name or description than its own. `on_handoff` is called when the
    model hands over, with the context and the arguments as `input_type`; `input_filter` selects the conversation for
    the next agent."""
    if input_type is not None and on_handoff is None:
        raise UserError("handoff: `input_type` is for `on_handoff`, and there is none")
    name = re.sub(r"[^a-zA-Z0-9_]", "_", f"transfer_to_{agent.name}".lower())
    about = f"Handoff to the {agent.name} agent to handle the request. {agent.handoff_description or ''}"
    return Handoff(
        agent,
        tool_name_override or name,
        tool_description_override or about,
        on_handoff,
        input_type,
        input_filter,
        is_enabled,
    )


# Agents.


class AgentOutputSchema:
    """The type of an agent's output."""

    def __init__(self, output_type: Any, strict_json_schema: bool = True) -> None:
        self.output_type = output_type
        self.strict_json_schema = strict_json_schema
        self._structure = Structure(output_type)

    def name(self) -> str:
        return self._structure.name

    def json_schema(self) -> JsonObject:
        schema = self._structure.schema
        return strict(schema) if self.strict_json_schema else schema

    def validate_json(self, json_str: str) -> Any:
        """Parses a JSON text as the output. Raises `ModelBehaviorError`."""
        try:
            return self._structure.read_text(json_str)
        except Mismatch as mismatch:
            raise ModelBehaviorError(f"the model's answer is not a valid {self.name()}: {mismatch}") from None

    @property
    def response_format(self) -> JsonObject:
        described = {"name": "final_output", "strict": self.strict_json_schema, "schema": self.json_schema()}
        return {"type": "json_schema", "json_schema": described}


class StopAtTools(dict[str, Any]):
    """`{"stop_at_tool_names": [...]}`: a call of one of these tools ends the run with its output."""


@dataclass
class ToolsToFinalOutputResult:
    """Whether the output of tools is the final one."""

    is_final_output: bool
    final_output: Any = None


ToolUseBehavior: TypeAlias = "Literal['run_llm_again', 'stop_on_first_tool'] | dict[str, Any] | Callable[..., Any]"


@dataclass
class Agent(Generic[ContextT]):
    """An agent: instructions, tools, and handoffs to other agents."""

    name: str
    instructions: str | Callable[..., Any] | None = None
    handoff_description: str | None = None
    handoffs: list[Agent[Any] | Handoff] = field(default_factory=lambda: [])
    model: RolloutModel | None = None
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    tools: list[Tool[..., Any]] = field(default_factory=list[Tool[..., Any]])
    input_guardrails: list[InputGuardrail] = field(default_factory=list[InputGuardrail])
    """Guardrails for the input of a run that starts with this agent."""
    output_guardrails: list[OutputGuardrail] = field(default_factory=list[OutputGuardrail])
    """Guardrails for the output of a run that ends with this agent."""
    output_type: Any = None
    """The type of the agent's output; None for text."""
    hooks: AgentHooks[Any] | None = None
    tool_use_behavior: ToolUseBehavior = "run_llm_again"
    reset_tool_choice: bool = True
    """Whether `tool_choice` applies only until tools were called, so that a required tool is not called forever."""

    async def get_system_prompt(self, context: RunContextWrapper[Any]) -> str | None:
        """Returns the instructions; calls them if they are a function."""
        if callable(self.instructions):
            text: Any = self.instructions(context, self)
            return str(await text if inspect.isawaitable(text) else text)
        return self.instructions

    async def offered_tools(self, context: RunContextWrapper[Any]) -> dict[str, Tool[..., Any]]:
        """Returns the tools that are enabled now."""
        offered: dict[str, Tool[..., Any]] = {}
        for each in self.tools:
            if not isinstance(each, FunctionTool) or await is_enabled(each.is_enabled, context, self):
                offered[each.name] = each
        return offered

    async def ways(self, context: RunContextWrapper[Any]) -> dict[str, Handoff]:
        """Returns the handoffs that are enabled now."""
        ways = [each if isinstance(each, Handoff) else handoff(each) for each in self.handoffs]
        return {way.tool_name: way for way in ways if await is_enabled(way.is_enabled, context, self)}

    def output_schema(self) -> AgentOutputSchema | None:
        """Returns the type of the agent's output, or None if the output is text."""
        if self.output_type is None or self.output_type is str:
            return None
        given: Any = self.output_type
        return given if isinstance(given, AgentOutputSchema) else AgentOutputSchema(given)

    def clone(self, **changes: Any) -> Agent[ContextT]:
        """Returns a copy with these changes."""
        return dataclasses.replace(self, **changes)

    def as_tool(
        self,
        tool_name: str | None,
        tool_description: str | None,
        custom_output_extractor: Callable[[RunResult], Awaitable[str]] | None = None,
        is_enabled: Enabled = True,
        max_turns: int | None = TURNS_MAX,
        run_config: RunConfig | None = None,
        hooks: RunHooks[Any] | None = None,
    ) -> FunctionTool:
        """Returns a tool that runs this agent with a text. The run is part of the calling run."""

        async def invoke(context: RunContextWrapper[Any], input: str) -> str:
            result = await Runner.run(
                self, input, context=context.context, max_turns=max_turns, run_config=run_config, hooks=hooks
            )
            if custom_output_extractor is not None:
                return await custom_output_extractor(result)
            return text_of_output(result.final_output)

        invoke.__annotations__ = {"context": RunContextWrapper, "input": str}
        name = tool_name or re.sub(r"[^a-zA-Z0-9_]", "_", self.name.lower())
        made = function_tool(name_override=name, description_override=tool_description or "", is_enabled=is_enabled)
        return made(invoke)


# Hooks.


class _ToolAndModelHooks(Generic[ContextT]):
    """The common part of the hooks of a run and those of one agent."""

    async def on_tool_start(self, context: RunContextWrapper[ContextT], agent: Agent[Any], tool: Any) -> None:
        """Called before a tool call."""

    async def on_tool_end(
        self, context: RunContextWrapper[ContextT], agent: Agent[Any], tool: Any, result: Any
    ) -> None:
        """Called after a tool call."""

    async def on_llm_start(
        self,
        context: RunContextWrapper[ContextT],
        agent: Agent[Any],
        system_prompt: str | None,
        input_items: list[Item],
    ) -> None:
        """Called before a model call."""

    async def on_llm_end(self, context: RunContextWrapper[ContextT], agent: Agent[Any], response: ModelResponse) -> None:
        """Called after a model call."""


class RunHooks(_ToolAndModelHooks[ContextT]):
    """Hooks of a run. A subclass overrides the methods that it needs."""

    async def on_agent_start(self, context: RunContextWrapper[ContextT], agent: Agent[Any]) -> None:
        """Called when an agent starts."""

    async def on_agent_end(self, context: RunContextWrapper[ContextT], agent: Agent[Any], output: Any) -> None:
        """Called when an agent has ended the run."""

    async def on_handoff(
        self, context: RunContextWrapper[ContextT], from_agent: Agent[Any], to_agent: Agent[Any]
    ) -> None:
        """Called when an agent hands over to another."""


class AgentHooks(_ToolAndModelHooks[ContextT]):
    """Hooks of one agent. A subclass overrides the methods that it needs."""

    async def on_start(self, context: RunContextWrapper[ContextT], agent: Agent[Any]) -> None:
        """Called when the agent starts."""

    async def on_end(self, context: RunContextWrapper[ContextT], agent: Agent[Any], output: Any) -> None:
        """Called when the agent has ended the run."""

    async def on_handoff(self, context: RunContextWrapper[ContextT], agent: Agent[Any], source: Agent[Any]) -> None:
        """Called when another agent has handed over to this one."""


# Runs.


@dataclass
class RunResult:
    """The result of a run."""

    input: str | list[Item]
    """The input of the run."""
    new_items: list[RunItem]
    """The items that the run added."""
    raw_responses: list[ModelResponse]
    """The model's replies."""
    final_output: Any
    """The text of the model's last message, parsed as the last agent's `output_type` if it has one."""
    input_guardrail_results: list[InputGuardrailResult]
    output_guardrail_results: list[OutputGuardrailResult]
    context_wrapper: RunContextWrapper[Any]
    last_agent: Agent[Any]
    """The agent that produced the output."""
    session: MemorySession | None
    """The session that records the conversation, if any."""

    @property
    def usage(self) -> Usage:
        """The tokens of the run, as far as the server reports them."""
        return self.context_wrapper.usage

    @property
    def last_response_id(self) -> str | None:
        """None: the chat API has no such ids."""
        return None

    def final_output_as(self, cls: type[Any], raise_if_incorrect_type: bool = False) -> Any:
        """Returns the final output, cast to this type."""
        if raise_if_incorrect_type and not isinstance(self.final_output, cls):
            raise TypeError(f"the final output is {type(self.final_output).__name__}, not {cls.__name__}")
        return self.final_output

    def to_input_list(self) -> list[Item]:
        """Returns the input and the added items, as input of a further run."""
        return [*as_items(self.input), *(each.to_input_item() for each in self.new_items)]


@dataclass
class RunConfig:
    """Settings of a whole run."""

    model: RolloutModel | None = None
    """The model that replaces the agents' own models."""
    model_settings: ModelSettings | None = None
    """Sampling parameters that override the agents' own."""
    input_guardrails: list[InputGuardrail] | None = None
    output_guardrails: list[OutputGuardrail] | None = None
    handoff_input_filter: Callable[[HandoffInputData], Any] | None = None
    """The input filter of handoffs that have none of their own."""
    tool_not_found_behavior: Literal["raise_error", "return_error_to_model"] = "raise_error"
    workflow_name: str = "Agent workflow"
    tracing_disabled: bool = False
    trace_id: str | None = None
    group_id: str | None = None
    trace_metadata: dict[str, Any] | None = None
    trace_include_sensitive_data: bool = True


def set_tracing_disabled(disabled: bool) -> None:
    """Does nothing: the host records every call, and the framework's tracing does not exist."""


@contextlib.contextmanager
def trace(workflow_name: str, *_: Any, **__: Any) -> Generator[None, None, None]:
    """Does nothing: the host records every call, and the framework's tracing does not exist."""
    yield


@dataclass
class RawResponsesStreamEvent:
    """Event of a model reply."""

    data: Raw
    type: str = "raw_response_event"


@dataclass
class RunItemStreamEvent:
    """Event of an item that the run added."""

    name: str
    item: RunItem
    type: str = "run_item_stream_event"


@dataclass
class AgentUpdatedStreamEvent:
    """Event of an agent that starts."""

    new_agent: Agent[Any]
    type: str = "agent_updated_stream_event"


_EVENT_OF: dict[type[RunItem], str] = {
    MessageOutputItem: "message_output_created",
    ToolCallItem: "tool_called",
    ToolCallOutputItem: "tool_output",
    HandoffCallItem: "handoff_requested",
    HandoffOutputItem: "handoff_occured",
}


class RunResultStreaming:
    """A run in progress. Its result is available after the last event."""

    def __init__(self, agent: Agent[Any], run: Callable[[Callable[[Any], None]], Awaitable[RunResult]]) -> None:
        self.current_agent = agent
        self.is_complete = False
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._result: RunResult | None = None
        self._task = asyncio.ensure_future(self._run(run))

    async def _run(self, run: Callable[[Callable[[Any], None]], Awaitable[RunResult]]) -> None:
        try:
            self._result = await run(self._events.put_nowait)
        finally:
            self._events.put_nowait(None)

    async def stream_events(self) -> AsyncIterator[Any]:
        """Yields the events of the run as they happen. A reply of the model is one event: the host does not stream.
        Raises the run's exception."""
        while (event := await self._events.get()) is not None:
            if isinstance(event, AgentUpdatedStreamEvent):
                self.current_agent = event.new_agent
            yield event
        self.is_complete = True
        await self._task

    def cancel(self) -> None:
        """Cancels the run."""
        self._task.cancel()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in {*RunResult.__annotations__, *vars(RunResult)}:
            raise AttributeError(f"a run in progress has no `{name}`")
        if self._result is None:
            # The values before the run has ended.
            return [] if name in ("new_items", "raw_responses") else None
        return getattr(self._result, name)


_under_way: contextvars.ContextVar[Conversation | None] = contextvars.ContextVar("_under_way", default=None)
"""The conversation of the enclosing run."""


class Runner:
    """Runs agents."""

    @classmethod
    def run_sync(cls, starting_agent: Agent[Any], input: str | Sequence[Item], **options: Any) -> RunResult:
        """Runs `run` without `await`. Other tasks do not run meanwhile."""
        return run_sync(cls.run(starting_agent, input, **options))

    @classmethod
    def run_streamed(cls, starting_agent: Agent[Any], input: str | Sequence[Item], **options: Any) -> RunResultStreaming:
        """Starts `run`, and returns its events as they happen."""

        async def run(emit: Callable[[Any], None]) -> RunResult:
            return await cls._run(starting_agent, input, emit, **options)

        return RunResultStreaming(starting_agent, run)

    @classmethod
    async def run(
        cls,
        starting_agent: Agent[Any],
        input: str | Sequence[Item],
        *,
        session: SessionABC | None = None,
        context: Any = None,
        max_turns: int | None = TURNS_MAX,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | None = None,
    ) -> RunResult:
        """Runs an agent until the model stops. Without a session it creates one, and with it a sample. Raises
        `MaxTurnsExceeded` and the framework's other exceptions."""
        options: JsonObject = {"session": session, "context": context, "max_turns": max_turns}
        return await cls._run(starting_agent, input, _ignore_event, hooks=hooks, run_config=run_config, **options)

    @classmethod
    async def _run(
        cls,
        agent: Agent[Any],
        input: str | Sequence[Item],
        emit: Callable[[Any], None],
        *,
        session: SessionABC | None = None,
        context: Any = None,
        max_turns: int | None = TURNS_MAX,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | None = None,
    ) -> RunResult:
        held = await Conversation.of(session, _under_way.get())
        token = _under_way.set(held)
        try:
            run = _Run(held, RunContextWrapper(context), hooks or RunHooks(), run_config or RunConfig(), emit)
            return await run.to_its_end(agent, input, max_turns)
        finally:
            _under_way.reset(token)


def _ignore_event(event: Any) -> None:
    """Ignores an event."""


class _Final:
    """The end of a run."""

    def __init__(self, output: Any) -> None:
        self.output = output


class _Run:
    """A run in progress."""

    def __init__(
        self,
        held: Conversation,
        context: RunContextWrapper[Any],
        hooks: RunHooks[Any],
        config: RunConfig,
        emit: Callable[[Any], None],
    ) -> None:
        self._held = held
        self._context = context
        self._hooks = hooks
        self._config = config
        self._emit = emit
        self._new: list[RunItem] = []
        self._replies: list[ModelResponse] = []
        # The items for the model after a filter; None if they are those of the conversation.
        self._view: list[Item] | None = None
        self._before: tuple[Item, ...] = ()
        self._used_tools: set[str] = set()

    async def to_its_end(self, agent: Agent[Any], input: str | Sequence[Item], max_turns: int | None) -> RunResult:
        given = input if isinstance(input, str) else list(input)
        guards = [*agent.input_guardrails, *(self._config.input_guardrails or ())]
        await self._held.add(as_items(given))
        self._before = tuple(self._held.items)
        checked = await check_input(guards, agent, given, self._context)
        await self._start(agent)
        turns = 0
        while max_turns is None or turns < max_turns:
            turns += 1
            following = await self._turn(agent)
            if isinstance(following, _Final):
                output = following.output
                await self._hooks.on_agent_end(self._context, agent, output)
                if agent.hooks is not None:
                    await agent.hooks.on_end(self._context, agent, output)
                guards_of_output = [*agent.output_guardrails, *(self._config.output_guardrails or ())]
                results = await check_output(guards_of_output, self._context, agent, output)
                return RunResult(
                    given, self._new, self._replies, output, checked, results, self._context, agent, self._held.session
                )
            if following is not agent:
                await self._hooks.on_handoff(self._context, agent, following)
                if following.hooks is not None:
                    await following.hooks.on_handoff(self._context, following, agent)
                await self._start(following)
            agent = following
        raise MaxTurnsExceeded(f"the model still called tools after {max_turns} turns")

    async def _start(self, agent: Agent[Any]) -> None:
        self._emit(AgentUpdatedStreamEvent(agent))
        await self._hooks.on_agent_start(self._context, agent)
        if agent.hooks is not None:
            await agent.hooks.on_start(self._context, agent)

    async def _add(self, items: Sequence[RunItem]) -> None:
        self._new.extend(items)
        raw = [each.raw_item for each in items]
        if self._view is not None:
            self._view.extend(raw)
        await self._held.add(dict(each) for each in raw)
        for each in items:
            self._emit(RunItemStreamEvent(_EVENT_OF[type(each)], each))

    async def _turn(self, agent: Agent[Any]) -> Agent[Any] | _Final:
        """Calls the model once. Returns the next agent, or the run's output."""
        tools, ways = await agent.offered_tools(self._context), await agent.ways(self._context)
        reply = await self._ask(agent, tools, ways)
        unknown = next((call for call in reply.tool_calls if call.name not in tools and call.name not in ways), None)
        if unknown is not None and self._config.tool_not_found_behavior == "raise_error":
            raise ModelBehaviorError(f"the model called `{unknown.name}`, and agent `{agent.name}` has no such tool")
        begin = len(self._new)
        await self._add([_item_of(agent, raw, ways) for raw in map(Raw, reply_items(reply))])
        if not reply.tool_calls:
            schema = agent.output_schema()
            return _Final(reply.text if schema is None else schema.validate_json(reply.text))
        way = next((ways[call.name] for call in reply.tool_calls if call.name in ways), None)
        called = await asyncio.gather(*(self._answer(agent, call, tools, ways, way) for call in reply.tool_calls))
        await self._add(called)
        if way is not None:
            await self._filter(way, begin)
            return way.agent
        self._used_tools.add(agent.name)
        results = [
            FunctionToolResult(made, each.output, each)
            for call, each in zip(reply.tool_calls, called, strict=True)
            if isinstance(made := tools.get(call.name), FunctionTool) and isinstance(each, ToolCallOutputItem)
        ]
        return await self._after_tools(agent, results)

    async def _ask(
        self, agent: Agent[Any], tools: dict[str, Tool[..., Any]], ways: dict[str, Handoff]
    ) -> Completion:
        schemas = [each.schema for each in tools.values()] + [way.schema for way in ways.values()]
        settings = agent.model_settings.resolve(self._config.model_settings)
        if agent.reset_tool_choice and agent.name in self._used_tools:
            settings = dataclasses.replace(settings, tool_choice=None)
        params = {**params_of(self._config.model or agent.model), **settings.params()}
        if (schema := agent.output_schema()) is not None:
            params["response_format"] = schema.response_format
        instructions = await agent.get_system_prompt(self._context)
        items = self._held.items if self._view is None else self._view
        await self._hooks.on_llm_start(self._context, agent, instructions, list(items))
        if agent.hooks is not None:
            await agent.hooks.on_llm_start(self._context, agent, instructions, list(items))
        system: list[Message] = [] if instructions is None else [{"role": "system", "content": instructions}]
        reply = await self._held.chat(system + as_chat(items), schemas, params)
        response = ModelResponse([Raw(each) for each in reply_items(reply)], usage_of(reply))
        self._replies.append(response)
        self._context.usage.add(response.usage)
        if reply.text:
            self._emit(RawResponsesStreamEvent(Raw(type="response.output_text.delta", delta=reply.text)))
        completed = Raw(type="response.completed", response={"output": response.output})
        self._emit(RawResponsesStreamEvent(completed))
        await self._hooks.on_llm_end(self._context, agent, response)
        if agent.hooks is not None:
            await agent.hooks.on_llm_end(self._context, agent, response)
        return reply

    async def _after_tools(self, agent: Agent[Any], results: list[FunctionToolResult]) -> Agent[Any] | _Final:
        """Returns the run's output if the tools' results are final, or the agent otherwise."""
        behavior = agent.tool_use_behavior
        if behavior == "run_llm_again" or not results:
            return agent
        if behavior == "stop_on_first_tool":
            return _Final(results[0].output)
        if is_mapping(behavior):
            names = behavior.get("stop_at_tool_names", ())
            return next((_Final(each.output) for each in results if each.tool.name in names), agent)
        if not callable(behavior):
            raise UserError(f"tool_use_behavior of agent `{agent.name}` is {behavior!r}")
        result: Any = behavior(self._context, results)
        decided = await result if inspect.isawaitable(result) else result
        return _Final(decided.final_output) if decided.is_final_output else agent

    async def _filter(self, way: Handoff, begin: int) -> None:
        """Applies the input filter of a handoff."""
        chosen = way.input_filter or self._config.handoff_input_filter
        if chosen is None:
            return
        given = HandoffInputData(self._before, tuple(self._new[:begin]), tuple(self._new[begin:]), self._context)
        result: Any = chosen(given)
        left: HandoffInputData = await result if inspect.isawaitable(result) else result
        history = as_items(left.input_history if isinstance(left.input_history, str) else list(left.input_history))
        added = [each.to_input_item() for each in (*left.pre_handoff_items, *left.new_items)]
        self._view = [*history, *added]

    async def _answer(
        self,
        agent: Agent[Any],
        call: ToolCall,
        tools: dict[str, Tool[..., Any]],
        ways: dict[str, Handoff],
        taken: Handoff | None,
    ) -> RunItem:
        if way := ways.get(call.name):
            if way is not taken:
                text = "Multiple handoffs detected, ignoring this one."
                return ToolCallOutputItem(agent, Raw(output_item(call.id, text)), text)
            await way.taken(self._context, call.arguments)
            raw = Raw(output_item(call.id, json.dumps({"assistant": way.agent.name})))
            return HandoffOutputItem(agent, raw, agent, way.agent)
        made = tools.get(call.name)
        if made is None:
            text = f"Tool {call.name} not found"
            return ToolCallOutputItem(agent, Raw(output_item(call.id, text)), text)
        context: ToolContext[Any] = ToolContext(
            self._context.context, self._context.usage, call.name, call.id, call.arguments, agent
        )
        await self._hooks.on_tool_start(context, agent, made)
        if agent.hooks is not None:
            await agent.hooks.on_tool_start(context, agent, made)
        output = await self._output(made, call, context)
        await self._hooks.on_tool_end(context, agent, made, output)
        if agent.hooks is not None:
            await agent.hooks.on_tool_end(context, agent, made, output)
        return ToolCallOutputItem(agent, Raw(output_item(call.id, str(output))), output)

    async def _output(self, made: Tool[..., Any], call: ToolCall, context: ToolContext[Any]) -> Any:
        if isinstance(made, FunctionTool):
            return await made.on_invoke_tool(context, call.arguments)
        try:
            return await made.run(call.arguments)
        except Exception as error:
            return default_tool_error_function(context, error)


def _item_of(agent: Agent[Any], raw: Raw, ways: dict[str, Handoff]) -> RunItem:
    """Returns the item for a message or a call of the model."""
    if raw["type"] == "message":
        return MessageOutputItem(agent, raw)
    return HandoffCallItem(agent, raw) if raw["name"] in ways else ToolCallItem(agent, raw)


# The names of these classes in the Python package of the wire protocol.
OsmosisAgent = Agent
OsmosisMemorySession = MemorySession
OsmosisRolloutModel = RolloutModel
