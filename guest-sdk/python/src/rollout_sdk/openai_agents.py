"""Agents in the shape of the OpenAI Agents framework.

    from rollout_sdk.openai_agents import Agent, MemorySession, Runner, function_tool

    session = MemorySession()
    result = await Runner.run(agent, ctx.prompt, session=session)

A session registers its sample when it is made, and its items are the sample's, in the form
of the Responses interface: messages, `function_call` and `function_call_output`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar, get_origin, get_type_hints, overload

from ._history import RecordedHistory
from ._json import JsonObject, is_list, is_object
from ._loop import run_sync
from ._models import RolloutModel, params_of
from .errors import RolloutError
from .message import Message, ToolCall
from .sample import Completion, Sample, Usage
from .tool import Tool, explain

__all__ = [
    "Agent",
    "FunctionTool",
    "Handoff",
    "MaxTurnsExceeded",
    "MemorySession",
    "ModelSettings",
    "OsmosisAgent",
    "OsmosisMemorySession",
    "OsmosisRolloutModel",
    "RolloutModel",
    "RunConfig",
    "RunContextWrapper",
    "RunHooks",
    "RunResult",
    "Runner",
    "function_tool",
    "handoff",
    "set_tracing_disabled",
    "trace",
]

Item: TypeAlias = dict[str, Any]
ContextT = TypeVar("ContextT")

TURNS_MAX = 10
"""The most calls of the model in one run, where `max_turns` says nothing else."""

# What the framework puts where the Responses interface has the server's own ids.
_FAKE_ID = "__fake_id__"


class MaxTurnsExceeded(RolloutError):
    """The model was asked as often as allowed, and still called tools."""


@dataclass
class ModelSettings:
    """Sampling parameters. What is None is left to the model's server."""

    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    max_tokens: int | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    extra_body: dict[str, Any] | None = None
    extra_args: dict[str, Any] | None = None

    def params(self) -> dict[str, Any]:
        """The parameters as a chat request has them."""
        named = {
            each.name: getattr(self, each.name)
            for each in dataclasses.fields(self)
            if not each.name.startswith("extra_") and getattr(self, each.name) is not None
        }
        choice = named.get("tool_choice")
        if choice is not None and choice not in ("auto", "required", "none"):
            named["tool_choice"] = {"type": "function", "function": {"name": choice}}
        return {**named, **(self.extra_body or {}), **(self.extra_args or {})}


@dataclass
class RunContextWrapper(Generic[ContextT]):
    """What `Runner.run` was given as `context`, for tools and instructions."""

    context: ContextT
    usage: Usage = field(default_factory=Usage)


class FunctionTool(Tool[..., Any]):
    """A function that the model may call, with a strict schema."""

    @property
    def parameters(self) -> JsonObject:
        """The JSON schema of the arguments, as strict mode wants it."""
        return strict(super().parameters, f"{self.name}_args")

    @property
    def schema(self) -> JsonObject:
        """What the model is told, in the form of OpenAI's function tools."""
        schema = super().schema
        schema["function"]["strict"] = True
        return schema


def strict(schema: JsonObject, title: str | None = None) -> JsonObject:
    """The schema as strict mode wants it: every property required, no other allowed."""
    made: JsonObject = {}
    for key, value in schema.items():
        if key == "properties":
            made[key] = {name: strict(one, _title_of(name)) for name, one in value.items()}
        elif key in ("items", "additionalProperties") and is_object(value):
            made[key] = strict(value)
        elif key in ("anyOf", "prefixItems"):
            made[key] = [strict(one) for one in value]
        elif key != "default":
            made[key] = value
    if "properties" in made:
        made["required"] = list(made["properties"])
        made["additionalProperties"] = False
    if title is not None:
        made["title"] = title
    return made


def _title_of(name: str) -> str:
    return name.replace("_", " ").title()


@overload
def function_tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def function_tool(
    *, name_override: str | None = None, description_override: str | None = None
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def function_tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name_override: str | None = None,
    description_override: str | None = None,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Makes a tool of a function, `async` or not. A first parameter that is hinted as a
    `RunContextWrapper` is given the run's context, and the model does not see it."""

    def make(function: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(
            function,
            name=name_override,
            description=description_override,
            context_names=_context_names(function),
        )

    return make if function is None else make(function)


def _context_names(function: Callable[..., Any]) -> frozenset[str]:
    first = next(iter(inspect.signature(function).parameters), None)
    hint = get_type_hints(function).get(first) if first is not None else None
    if first is not None and (get_origin(hint) or hint) is RunContextWrapper:
        return frozenset([first])
    return frozenset()


@dataclass
class Handoff:
    """A way from one agent to another, which the model takes by calling a tool."""

    agent: Agent
    tool_name: str
    tool_description: str

    @property
    def schema(self) -> JsonObject:
        """What the model is told."""
        parameters: JsonObject = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
        function: JsonObject = {"name": self.tool_name, "description": self.tool_description, "parameters": parameters}
        return {"type": "function", "function": {**function, "strict": True}}


def handoff(
    agent: Agent, *, tool_name_override: str | None = None, tool_description_override: str | None = None
) -> Handoff:
    """A way to this agent, under another name or description than its own."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", f"transfer_to_{agent.name}".lower())
    about = f"Handoff to the {agent.name} agent to handle the request. {agent.handoff_description or ''}"
    return Handoff(agent, tool_name_override or name, tool_description_override or about)


@dataclass
class Agent:
    """An agent: instructions, tools, and other agents to hand over to."""

    name: str
    instructions: str | Callable[..., Any] | None = None
    handoff_description: str | None = None
    handoffs: list[Agent | Handoff] = field(default_factory=lambda: [])
    model: RolloutModel | None = None
    model_settings: ModelSettings = field(default_factory=ModelSettings)
    tools: list[Tool[..., Any]] = field(default_factory=list[Tool[..., Any]])

    async def get_system_prompt(self, context: RunContextWrapper[Any]) -> str | None:
        """The instructions, asked for where they are a function."""
        if callable(self.instructions):
            text: Any = self.instructions(context, self)
            return str(await text if inspect.isawaitable(text) else text)
        return self.instructions

    def ways(self) -> dict[str, Handoff]:
        ways = [each if isinstance(each, Handoff) else handoff(each) for each in self.handoffs]
        return {way.tool_name: way for way in ways}


class MemorySession:
    """The items of one conversation, which are a sample's history."""

    def __init__(self, name: str | None = None) -> None:
        """Registers a sample whose id is the name, or a random one."""
        self._history = RecordedHistory([], name, "a session")
        self.session_id = self._history.sample.id

    @property
    def sample(self) -> Sample:
        """The sample that holds the items."""
        return self._history.sample

    @property
    def history(self) -> RecordedHistory:
        """The items with their sample."""
        return self._history

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """The items, or the latest of them."""
        items = self._history.messages
        return list(items) if limit is None else items[-limit:] if limit > 0 else []

    async def add_items(self, items: Iterable[Item]) -> None:
        """Adds items at the end."""
        self._history.messages.extend(items)
        self._history.record()

    async def pop_item(self) -> Item | None:
        """Takes the last item out."""
        item = self._history.messages.pop() if self._history.messages else None
        self._history.record()
        return item

    async def clear_session(self) -> None:
        """Takes all items out."""
        self._history.messages.clear()
        self._history.record()


@dataclass
class RunResult:
    """What came of a run."""

    input: str | list[Item]
    """What the run was given."""
    new_items: list[Item]
    """What it added."""
    final_output: str
    """The text of the model's last message."""
    last_agent: Agent
    """Who wrote it."""
    usage: Usage
    """What the run cost, as far as the server said."""
    session: MemorySession
    """The session that holds the conversation."""

    def to_input_list(self) -> list[Item]:
        """What was given and what was added, to go on from."""
        return [*_as_items(self.input), *self.new_items]


class RunHooks(Generic[ContextT]):
    """Who wants to know what a run does: a subclass overrides what it wants to know."""

    async def on_agent_start(self, context: RunContextWrapper[ContextT], agent: Agent) -> None:
        """An agent goes on."""

    async def on_agent_end(self, context: RunContextWrapper[ContextT], agent: Agent, output: Any) -> None:
        """An agent ended the run."""

    async def on_handoff(self, context: RunContextWrapper[ContextT], from_agent: Agent, to_agent: Agent) -> None:
        """An agent hands over to another."""

    async def on_tool_start(self, context: RunContextWrapper[ContextT], agent: Agent, tool: Any) -> None:
        """A tool is about to be called."""

    async def on_tool_end(self, context: RunContextWrapper[ContextT], agent: Agent, tool: Any, result: str) -> None:
        """A tool was called."""

    async def on_llm_start(
        self, context: RunContextWrapper[ContextT], agent: Agent, system_prompt: str | None, input_items: list[Item]
    ) -> None:
        """The model is about to be asked."""

    async def on_llm_end(self, context: RunContextWrapper[ContextT], agent: Agent, response: Completion) -> None:
        """The model has answered."""


@dataclass
class RunConfig:
    """What holds for a whole run."""

    model_settings: ModelSettings | None = None
    """Sampling parameters that go before the agents' own."""
    workflow_name: str = "Agent workflow"
    tracing_disabled: bool = False


def set_tracing_disabled(disabled: bool) -> None:
    """Nothing is traced by the framework here; the host records every call."""


@contextlib.contextmanager
def trace(workflow_name: str, *_: Any, **__: Any) -> Generator[None, None, None]:
    """Nothing is traced by the framework here; the host records every call."""
    yield


class Runner:
    """Runs agents."""

    @classmethod
    def run_sync(cls, starting_agent: Agent, input: str | Sequence[Item], **options: Any) -> RunResult:
        """As `run`, for who does not await it. Other tasks stand still meanwhile."""
        return run_sync(cls.run(starting_agent, input, **options))

    @classmethod
    async def run(
        cls,
        starting_agent: Agent,
        input: str | Sequence[Item],
        *,
        session: MemorySession | None = None,
        context: Any = None,
        max_turns: int = TURNS_MAX,
        hooks: RunHooks[Any] | None = None,
        run_config: RunConfig | None = None,
    ) -> RunResult:
        """Runs an agent until the model stops. Without a session, one is made, and with it
        a sample. Raises `MaxTurnsExceeded`."""
        held = session or MemorySession()
        await held.add_items(_as_items(input))
        wrapped = RunContextWrapper(context)
        run = _Run(held, wrapped, len(held.history.messages), hooks or RunHooks(), run_config or RunConfig())
        agent = starting_agent
        await run.hooks.on_agent_start(wrapped, agent)
        for _ in range(max_turns):
            next_agent = await run.turn(agent)
            if next_agent is None:
                await run.hooks.on_agent_end(wrapped, agent, run.final_output)
                given = input if isinstance(input, str) else list(input)
                return RunResult(given, run.new_items, run.final_output, agent, wrapped.usage, held)
            if next_agent is not agent:
                await run.hooks.on_handoff(wrapped, agent, next_agent)
                await run.hooks.on_agent_start(wrapped, next_agent)
            agent = next_agent
        raise MaxTurnsExceeded(f"the model still called tools after {max_turns} turns")


def _as_items(input: str | Sequence[Item]) -> list[Item]:
    return [{"role": "user", "content": input}] if isinstance(input, str) else list(input)


class _Run:
    """One run under way."""

    def __init__(
        self,
        session: MemorySession,
        context: RunContextWrapper[Any],
        begin: int,
        hooks: RunHooks[Any],
        config: RunConfig,
    ) -> None:
        self._session = session
        self.hooks = hooks
        self._config = config
        self._context = context
        self._begin = begin
        self.final_output = ""

    @property
    def new_items(self) -> list[Item]:
        return self._session.history.messages[self._begin :]

    async def turn(self, agent: Agent) -> Agent | None:
        """Asks the model once. Gives who is to go on, or None where the run is over."""
        tools = {each.name: each for each in agent.tools}
        ways = agent.ways()
        schemas = [each.schema for each in tools.values()] + [way.schema for way in ways.values()]
        params = {**params_of(agent.model), **agent.model_settings.params()}
        if self._config.model_settings is not None:
            params.update(self._config.model_settings.params())
        instructions = await agent.get_system_prompt(self._context)
        await self.hooks.on_llm_start(self._context, agent, instructions, list(self._session.history.messages))
        reply = await self._session.history.chat(self._request(instructions), schemas, params)
        await self.hooks.on_llm_end(self._context, agent, reply)
        self._context.usage = self._context.usage + (reply.usage or Usage())
        await self._session.add_items(_reply_items(reply))
        if not reply.tool_calls:
            self.final_output = reply.text
            return None
        way = next((ways[call.name] for call in reply.tool_calls if call.name in ways), None)
        outputs = await asyncio.gather(*(self._answer(agent, call, tools, ways, way) for call in reply.tool_calls))
        await self._session.add_items(
            {"type": "function_call_output", "call_id": call.id, "output": output}
            for call, output in zip(reply.tool_calls, outputs, strict=True)
        )
        return way.agent if way is not None else agent

    def _request(self, instructions: str | None) -> list[Message]:
        system = [] if instructions is None else [{"role": "system", "content": instructions}]
        return system + as_chat(self._session.history.messages)

    async def _answer(
        self,
        agent: Agent,
        call: ToolCall,
        tools: dict[str, Tool[..., Any]],
        ways: dict[str, Handoff],
        taken: Handoff | None,
    ) -> str:
        if way := ways.get(call.name):
            if way is taken:
                return json.dumps({"assistant": way.agent.name})
            return "Multiple handoffs detected, ignoring this one."
        made = tools.get(call.name)
        if made is None:
            return f"Tool {call.name} not found"
        names = _context_names(made.function)
        await self.hooks.on_tool_start(self._context, agent, made)
        output = await self._output(made, call, names)
        await self.hooks.on_tool_end(self._context, agent, made, output)
        return output

    async def _output(self, made: Tool[..., Any], call: ToolCall, names: frozenset[str]) -> str:
        try:
            return str(await made.run(call.arguments, {name: self._context for name in names}))
        except Exception as error:
            return f"An error occurred while running the tool. Please try again. Error: {explain(error)}"


def _reply_items(reply: Completion) -> list[Item]:
    """The model's reply as items."""
    items: list[Item] = []
    if reply.text or not reply.tool_calls:
        text: JsonObject = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        items.append(
            {
                "id": _FAKE_ID,
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
        )
    for call in reply.tool_calls:
        items.append(
            {
                "id": _FAKE_ID,
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }
        )
    return items


def as_chat(items: Iterable[Item]) -> list[Message]:
    """The chat messages that items stand for. Calls that follow each other are one
    message, together with the text before them."""
    messages: list[Message] = []
    for item in items:
        match item.get("type"):
            case "function_call":
                last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
                if last is None:
                    last = Message(role="assistant")
                    messages.append(last)
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                last.setdefault("tool_calls", []).append(call)
            case "function_call_output":
                message = {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
                messages.append(message)
            case "message" | None:
                messages.append(_chat_message(item))
            case _:
                # What the chat interface has no word for, such as reasoning.
                continue
    return messages


def _chat_message(item: Item) -> Message:
    content = item.get("content")
    if item.get("type") == "message" and is_list(content):
        content = "".join(part.get("text", "") for part in content if is_object(part))
    rest = {key: value for key, value in item.items() if key not in ("id", "type", "status", "role", "content")}
    return {"role": item.get("role", "user"), "content": content, **rest}


# The names that the Python package of the wire protocol gives these.
OsmosisAgent = Agent
OsmosisMemorySession = MemorySession
OsmosisRolloutModel = RolloutModel

