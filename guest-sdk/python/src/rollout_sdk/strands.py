"""Agents in the shape of the Strands framework.

    from rollout_sdk.strands import Agent, RolloutModel, tool

    agent = Agent(model=RolloutModel(temperature=0.7), tools=[calculator], messages=ctx.prompt)
    result = await agent.invoke_async()

An agent registers its sample when it is created, and its `messages` are the sample's, in the framework's own form:
content is a list of blocks, `{"text": …}`, `{"toolUse": …}` and `{"toolResult": …}`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ._history import RecordedHistory
from ._json import JsonObject, dump, is_list, is_mapping
from ._loop import run_sync
from ._models import RolloutModel, params_of
from ._schema import Mismatch
from ._strands_blocks import Block, as_chat, in_blocks, tool_result, use_of
from ._strands_hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterToolCallEvent,
    AgentInitializedEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    HookCallback,
    HookEvent,
    HookProvider,
    HookRegistry,
    MessageAddedEvent,
    StopReason,
)
from ._strands_managers import (
    ContextWindowOverflowException,
    ConversationManager,
    NullConversationManager,
    SlidingWindowConversationManager,
    SummarizingConversationManager,
)
from ._strands_results import (
    AgentResult,
    AgentState,
    CompositeCallbackHandler,
    ConcurrencyException,
    EventLoopMetrics,
    MaxTokensReachedException,
    PrintingCallbackHandler,
    StructuredOutputException,
    ToolMetrics,
    null_callback_handler,
)
from ._strands_tools import (
    AgentTool,
    ConcurrentToolExecutor,
    SequentialToolExecutor,
    ToolContext,
    tool,
    tools_of,
)
from ._structured import Structure
from .errors import ChatError
from .message import Message, ToolCall
from .sample import Completion, Sample, Usage
from .tool import Tool, explain

__all__ = [
    "AfterInvocationEvent",
    "AfterModelCallEvent",
    "AfterToolCallEvent",
    "Agent",
    "AgentInitializedEvent",
    "AgentResult",
    "AgentState",
    "BeforeInvocationEvent",
    "BeforeModelCallEvent",
    "BeforeToolCallEvent",
    "Block",
    "CompositeCallbackHandler",
    "ConcurrencyException",
    "ConcurrentToolExecutor",
    "ContextWindowOverflowException",
    "ConversationManager",
    "EventLoopMetrics",
    "HookEvent",
    "HookProvider",
    "HookRegistry",
    "MaxTokensReachedException",
    "MessageAddedEvent",
    "NullConversationManager",
    "OsmosisRolloutModel",
    "OsmosisStrandsAgent",
    "PrintingCallbackHandler",
    "RolloutModel",
    "SequentialToolExecutor",
    "SlidingWindowConversationManager",
    "StopReason",
    "StructuredOutputException",
    "SummarizingConversationManager",
    "ToolContext",
    "ToolMetrics",
    "as_chat",
    "in_blocks",
    "null_callback_handler",
    "tool",
]

Prompt: TypeAlias = "str | list[Block] | list[Message] | None"
Event: TypeAlias = dict[str, Any]


class _DirectCalls:
    """Implements `agent.tool`: tool calls by the program."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def __getattr__(self, name: str) -> Callable[..., JsonObject]:
        tools = self._agent.tools
        known = name if name in tools else next((each for each in tools if each.replace("-", "_") == name), None)
        if known is None:
            raise AttributeError(f"the agent has no tool `{name}`; it has {', '.join(tools) or 'none'}")

        def call(user_message_override: str | None = None, **arguments: Any) -> JsonObject:
            return run_sync(self._agent.call_tool(known, arguments, user_message_override))

        return call


# Texts in the errors of model servers when a conversation is too long.
_TOO_LONG = (
    "context_length_exceeded",
    "context length",
    "context window",
    "maximum context",
    "prompt is too long",
    "too many tokens",
)


@dataclass
class _Invocation:
    """An invocation in progress."""

    state: JsonObject
    structure: Structure | None
    structure_prompt: str
    limits: Mapping[str, int]
    usage: Usage = field(default_factory=Usage)
    cycles: int = 0
    forced: bool = False
    """Whether the model was required to give its structured output."""
    found: Any = None

    def limit_reached(self) -> StopReason | None:
        reached: list[tuple[str, int, StopReason]] = [
            ("turns", self.cycles, "limit_turns"),
            ("total_tokens", self.usage.total_tokens, "limit_total_tokens"),
            ("output_tokens", self.usage.completion_tokens, "limit_output_tokens"),
        ]
        return next((why for name, used, why in reached if name in self.limits and used >= self.limits[name]), None)


STRUCTURE_PROMPT = "You must format the previous response as structured output."


class Agent:
    """An agent: a model in a loop with tools, and their conversation."""

    def __init__(
        self,
        model: RolloutModel | None = None,
        messages: Iterable[Message] | None = None,
        tools: Iterable[Any] | None = None,
        system_prompt: str | list[Block] | None = None,
        structured_output_model: Any = None,
        callback_handler: Callable[..., Any] | None = None,
        conversation_manager: ConversationManager | None = None,
        record_direct_tool_call: bool = True,
        *,
        name: str | None = None,
        agent_id: str | None = None,
        description: str | None = None,
        state: AgentState | Mapping[str, Any] | None = None,
        hooks: Iterable[HookProvider | HookCallback] | None = None,
        structured_output_prompt: str | None = None,
        tool_executor: ConcurrentToolExecutor | SequentialToolExecutor | None = None,
        trace_attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Creates an agent with its own sample, whose id is the name, the agent's id or a random one. `messages` are
        chat messages or the framework's own. Nothing is printed and no message is removed unless a handler or a manager
        is given."""
        del trace_attributes
        self.model = model
        self.name = name
        self.agent_id = agent_id
        self.description = description
        self.state = state if isinstance(state, AgentState) else AgentState(state)
        self.callback_handler = callback_handler or null_callback_handler
        self.conversation_manager = conversation_manager or NullConversationManager()
        self.record_direct_tool_call = record_direct_tool_call
        self.hooks = HookRegistry()
        for provider in hooks or ():
            self.hooks.add_hook(provider)
        self.system_prompt = system_prompt
        self.event_loop_metrics = EventLoopMetrics()
        self.tools: dict[str, Tool[..., Any]] = {made.name: made for made in tools_of(list(tools or ()))}
        self._structure = structured_output_model
        self._structure_prompt = structured_output_prompt or STRUCTURE_PROMPT
        self._executor = tool_executor or ConcurrentToolExecutor()
        self._params = params_of(model)
        self._at_work = False
        blocks = [in_blocks(message) for message in messages or ()]
        self._history = RecordedHistory(blocks, name or agent_id, "an agent")
        self.hooks.call_at_once(AgentInitializedEvent(self))

    @property
    def messages(self) -> list[Message]:
        """The conversation, which is the sample's history. The author may change it."""
        return self._history.messages

    @messages.setter
    def messages(self, messages: list[Message]) -> None:
        self._history.messages = [in_blocks(message) for message in messages]

    @property
    def sample(self) -> Sample:
        """The sample that records the conversation."""
        return self._history.sample

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools that are offered to the model."""
        return list(self.tools)

    @property
    def tool(self) -> _DirectCalls:
        """The tools, for calls by the program: `agent.tool.NAME(…)`."""
        return _DirectCalls(self)

    def add_hook(
        self, callback: HookCallback, event_type: type[HookEvent] | list[type[HookEvent]] | None = None
    ) -> None:
        """Registers a callback for events of this type, or of the type hint of its parameter."""
        self.hooks.add_callback(event_type, callback)

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool[..., Any]:
        """Returns a tool that invokes this agent with a text."""
        initial = list(self.messages)

        async def invoke(input: str) -> str:
            self.messages = list(initial)
            return str(await self.invoke_async(input))

        called = name or self.name or "agent"
        return Tool(invoke, name=called, description=description or self.description or f"Asks the agent {called}.")

    def __call__(self, prompt: Prompt = None, **options: Any) -> AgentResult:
        """Runs `invoke_async` without `await`. Other tasks do not run meanwhile."""
        return run_sync(self.invoke_async(prompt, **options))

    async def invoke_async(
        self,
        prompt: Prompt = None,
        *,
        invocation_state: JsonObject | None = None,
        structured_output_model: Any = None,
        structured_output_prompt: str | None = None,
        limits: Mapping[str, int] | None = None,
        **state: Any,
    ) -> AgentResult:
        """Adds the prompt, if any, and runs the loop until the model stops."""
        result: AgentResult | None = None
        async for event in self.stream_async(
            prompt,
            invocation_state=invocation_state,
            structured_output_model=structured_output_model,
            structured_output_prompt=structured_output_prompt,
            limits=limits,
            **state,
        ):
            result = event.get("result", result)
        assert result is not None
        return result

    async def stream_async(
        self,
        prompt: Prompt = None,
        *,
        invocation_state: JsonObject | None = None,
        structured_output_model: Any = None,
        structured_output_prompt: str | None = None,
        limits: Mapping[str, int] | None = None,
        **state: Any,
    ) -> AsyncIterator[Event]:
        """Runs `invoke_async` and yields its events as they happen. A reply of the model is one event: the host does
        not stream."""
        if self._at_work:
            raise ConcurrencyException(f"agent `{self.name or self.sample.id}` is at work already")
        given = {} if invocation_state is None else invocation_state
        given.update(state)
        kind = structured_output_model or self._structure
        self._at_work = True
        try:
            while True:
                run = _Invocation(
                    given,
                    None if kind is None else Structure(kind),
                    structured_output_prompt or self._structure_prompt,
                    limits or {},
                )
                ended: AfterInvocationEvent | None = None
                async for event in self._invocation(prompt, run):
                    if isinstance(event, AfterInvocationEvent):
                        ended = event
                        continue
                    self.callback_handler(**{**given, **event})
                    yield event
                if ended is None or ended.resume is None:
                    return
                prompt = ended.resume
        finally:
            self._at_work = False

    async def _invocation(self, prompt: Prompt, run: _Invocation) -> AsyncIterator[Any]:
        """Yields the events of an invocation."""
        yield {"init_event_loop": True}
        before = BeforeInvocationEvent(self, run.state, _as_messages(prompt))
        await self.hooks.call(before)
        result: AgentResult | None = None
        try:
            for message in before.messages or ():
                await self._add(in_blocks(message))
            if before.cancel:
                message = _cancelled(before.cancel, "the invocation was denied by a hook")
                await self._add(message)
                result = self._result(run, "end_turn", message)
            else:
                async for event in self._cycles(run):
                    result = event.get("result", result)
                    # The result is yielded when the invocation has ended.
                    if "result" not in event:
                        yield event
        finally:
            self.conversation_manager.apply_management(self)
            self._history.record()
            after = AfterInvocationEvent(self, run.state, result)
            await self.hooks.call(after)
        yield {"result": result}
        yield after

    async def _add(self, message: Message) -> None:
        self.messages.append(message)
        await self.hooks.call(MessageAddedEvent(self, message))

    def _result(self, run: _Invocation, why: StopReason, message: Message) -> AgentResult:
        self._history.record()
        state = run.state.setdefault("request_state", {})
        return AgentResult(why, message, self.event_loop_metrics, state, run.found, run.usage)

    async def _cycles(self, run: _Invocation) -> AsyncIterator[Event]:
        """Calls the model and runs tools until the model stops."""
        run.state.setdefault("request_state", {})
        while True:
            if why := run.limit_reached():
                yield {"result": self._result(run, why, self.messages[-1])}
                return
            yield {"start": True}
            yield {"start_event_loop": True}
            reply, message = await self._reply(run)
            run.cycles += 1
            if text := "\n".join(_texts_of(message)):
                yield {"data": text, "delta": {"text": text}, "complete": True}
            await self._add(message)
            yield {"message": message}
            if reply is not None and reply.finish_reason == "length":
                self._history.record()
                raise MaxTokensReachedException("the model's reply was cut off at its token limit")
            if reply is None or not reply.tool_calls:
                if await self._is_over(run, message):
                    yield {"result": self._result(run, "end_turn", message)}
                    return
                continue
            for call in reply.tool_calls:
                yield {"current_tool_use": use_of(call), "type": "tool_use_stream"}
            results = await self._run_tools(run, reply.tool_calls)
            answered: Message = {"role": "user", "content": [{"toolResult": result} for result in results]}
            await self._add(answered)
            yield {"message": answered}
            if run.found is not None or run.state["request_state"].get("stop_event_loop"):
                yield {"result": self._result(run, "tool_use", message)}
                return

    async def _is_over(self, run: _Invocation, message: Message) -> bool:
        """Returns whether a reply without calls ends the invocation: not if structured output is missing."""
        if run.structure is None:
            return True
        if run.forced:
            try:
                run.found = run.structure.read_text("".join(_texts_of(message)))
            except Mismatch as mismatch:
                raise StructuredOutputException(
                    f"the model gave no {run.structure.name}, although it was required: {mismatch}"
                ) from None
            return True
        run.forced = True
        await self._add({"role": "user", "content": [{"text": run.structure_prompt}]})
        return False

    async def _reply(self, run: _Invocation) -> tuple[Completion | None, Message]:
        """Calls the model once, subject to hooks and the conversation manager. Returns no reply if a hook replaces the
        call."""
        while True:
            self.conversation_manager.before_model_call(self)
            before = BeforeModelCallEvent(self, run.state)
            await self.hooks.call(before)
            reply: Completion | None = None
            if before.cancel:
                message = _cancelled(before.cancel, "the call of the model was denied by a hook")
            else:
                try:
                    reply = await self._history.chat(self._request(), *self._offered(run))
                except ChatError as error:
                    failed = AfterModelCallEvent(self, run.state, None, error)
                    await self.hooks.call(failed)
                    if not failed.retry:
                        self._make_room(error)
                    continue
                run.usage += reply.usage or Usage()
                self.event_loop_metrics.count(reply.usage)
                message = self._reply_message(reply)
            why = _stop_reason(reply)
            after = AfterModelCallEvent(self, run.state, AfterModelCallEvent.ModelStopResponse(message, why))
            await self.hooks.call(after)
            if not after.retry:
                return reply, message

    def _make_room(self, error: ChatError) -> None:
        """Shortens the conversation if it was too long for the model; raises the error otherwise."""
        text = f"{error} {error.answer}".lower()
        if error.kind != "refused" or not any(each in text for each in _TOO_LONG):
            raise error
        self.conversation_manager.reduce_context(self, error)

    def _offered(self, run: _Invocation) -> tuple[list[JsonObject], JsonObject]:
        """Returns the tools and parameters of the next model call."""
        if run.structure is None:
            return [item.schema for item in self.tools.values()], self._params
        function = {"name": run.structure.name, "description": run.structure.description, "parameters": run.structure.schema}
        answer: JsonObject = {"type": "function", "function": function}
        if not run.forced:
            return [*(item.schema for item in self.tools.values()), answer], self._params
        choice = {"type": "function", "function": {"name": run.structure.name}}
        return [answer], {**self._params, "tool_choice": choice}

    def _request(self, messages: Iterable[Message] | None = None, system: str | list[Block] | None = None) -> list[Message]:
        system = self.system_prompt if system is None else system
        blocks = [{"text": system}] if isinstance(system, str) else system
        first = [{"role": "system", "content": blocks}] if blocks else []
        conversation = self.messages if messages is None else messages
        return [chat for message in [*first, *conversation] for chat in as_chat(message)]

    def ask_separately(self, messages: Iterable[Message], system: str) -> str:
        """Returns the model's answer to messages that are not part of the conversation."""
        request = self._request(messages, system)
        return run_sync(self._history.sample.chat(request, **self._params)).text

    def structured_output(self, output_model: Any, prompt: Prompt = None) -> Any:
        """Runs `structured_output_async` without `await`."""
        return run_sync(self.structured_output_async(output_model, prompt))

    async def structured_output_async(self, output_model: Any, prompt: Prompt = None) -> Any:
        """Asks the model for an instance of this type, from the conversation and the prompt. Neither prompt nor answer
        is recorded. Raises `StructuredOutputException`."""
        conversation = [*self.messages, *map(in_blocks, _as_messages(prompt))]
        if not conversation:
            raise ValueError("there is neither a conversation nor a prompt")
        run = _Invocation({}, Structure(output_model), "", {}, forced=True)
        await self.hooks.call(BeforeInvocationEvent(self, run.state, None))
        try:
            tools, params = self._offered(run)
            self._history.record()
            reply = await self._history.sample.chat(self._request(conversation), tools=tools, **params)
            given = reply.tool_calls[0].arguments if reply.tool_calls else reply.text
            assert run.structure is not None
            try:
                return run.structure.read_text(given)
            except Mismatch as mismatch:
                raise StructuredOutputException(f"the model gave no {run.structure.name}: {mismatch}") from None
        finally:
            await self.hooks.call(AfterInvocationEvent(self, run.state, None))

    def _reply_message(self, reply: Completion) -> Message:
        blocks: list[Block] = []
        reasoning = reply.message.get("reasoning_content")
        if isinstance(reasoning, str) and reasoning:
            blocks.append({"reasoningContent": {"reasoningText": {"text": reasoning}}})
        if reply.text:
            blocks.append({"text": reply.text})
        blocks += [{"toolUse": use_of(call)} for call in reply.tool_calls]
        return {"role": "assistant", "content": blocks}

    async def _run_tools(self, run: _Invocation, calls: Iterable[ToolCall]) -> list[JsonObject]:
        if self._executor.at_once:
            return await asyncio.gather(*(self._run_tool(run, call) for call in calls))
        return [await self._run_tool(run, call) for call in calls]

    async def _run_tool(self, run: _Invocation, call: ToolCall) -> JsonObject:
        if run.structure is not None and call.name == run.structure.name:
            return _structured(run, run.structure, call)
        while True:
            before = BeforeToolCallEvent(self, self.tools.get(call.name), use_of(call), run.state)
            await self.hooks.call(before)
            if before.cancel_tool:
                text = before.cancel_tool if isinstance(before.cancel_tool, str) else "the call was denied by a hook"
                denied = tool_result(before.tool_use, "error", [{"text": text}])
                after = AfterToolCallEvent(self, None, before.tool_use, run.state, denied, None, text)
            else:
                result, error = await self._tool_answer(before, run.state)
                after = AfterToolCallEvent(self, before.selected_tool, before.tool_use, run.state, result, error)
            await self.hooks.call(after)
            if not after.retry:
                return after.result

    async def _tool_answer(self, called: BeforeToolCallEvent, state: JsonObject) -> tuple[JsonObject, Exception | None]:
        use, made = called.tool_use, called.selected_tool
        if made is None:
            return tool_result(use, "error", [{"text": f"Unknown tool: {use['name']}"}]), None
        counted = self.event_loop_metrics.tool_metrics.setdefault(made.name, ToolMetrics())
        counted.call_count += 1
        started = time.monotonic()
        given = use["input"]
        arguments = given if isinstance(given, str) else dump(given, f"the arguments of `{made.name}`")
        try:
            beside = made.beside(ToolContext(use, self, state)) if isinstance(made, AgentTool) else {}
            result: Any = await made.run(arguments, beside)
            if inspect.isasyncgen(result):
                # The last value is the result.
                last: Any = None
                async for last in result:
                    pass
                result = last
        except Exception as error:
            counted.error_count += 1
            return tool_result(use, "error", [{"text": f"Error: {explain(error)}"}]), error
        finally:
            counted.total_time += time.monotonic() - started
        counted.success_count += 1
        # A tool may return status and blocks itself.
        if is_mapping(result) and "status" in result and "content" in result:
            return tool_result(use, result["status"], list(result["content"])), None
        return tool_result(use, "success", [{"text": str(result)}]), None

    async def call_tool(self, name: str, arguments: JsonObject, introduction: str | None = None) -> JsonObject:
        """Calls a tool for the program, and records the call in the conversation."""
        use = {"toolUseId": f"tooluse_{name}_{len(self.messages)}", "name": name, "input": arguments}
        called = BeforeToolCallEvent(self, self.tools[name], use)
        result, _ = await self._tool_answer(called, {})
        if self.record_direct_tool_call:
            shown = json.dumps(arguments, default=repr)
            about = [{"text": f"{introduction}\n"}] if introduction else []
            about.append({"text": f"agent.tool.{name} direct tool call.\nInput parameters: {shown}\n"})
            await self._add({"role": "user", "content": about})
            await self._add({"role": "assistant", "content": [{"toolUse": {**use, "input": json.loads(shown)}}]})
            await self._add({"role": "user", "content": [{"toolResult": result}]})
            await self._add({"role": "assistant", "content": [{"text": f"agent.tool.{name} was called."}]})
        return result


def _as_messages(prompt: Any) -> list[Message]:
    """Returns a prompt as messages."""
    if prompt is None:
        return []
    if isinstance(prompt, str):
        return [{"role": "user", "content": [{"text": prompt}]}]
    if not is_list(prompt):
        raise TypeError(f"a prompt is a text, blocks or messages, not {type(prompt).__name__}")
    if prompt and all("role" in each for each in prompt):
        return list(prompt)
    return [{"role": "user", "content": list(prompt)}]


def _cancelled(text: bool | str, otherwise: str) -> Message:
    return {"role": "assistant", "content": [{"text": text if isinstance(text, str) else otherwise}]}


def _stop_reason(reply: Completion | None) -> StopReason:
    if reply is not None and reply.finish_reason == "length":
        return "max_tokens"
    return "tool_use" if reply is not None and reply.tool_calls else "end_turn"


def _texts_of(message: Message) -> list[str]:
    return [block["text"] for block in message.get("content", ()) if "text" in block]


def _structured(run: _Invocation, structure: Structure, call: ToolCall) -> JsonObject:
    """Returns the result of the call with the structured output."""
    use = use_of(call)
    try:
        run.found = structure.read_text(call.arguments)
    except Mismatch as mismatch:
        return tool_result(use, "error", [{"text": f"this is not a valid {structure.name}: {mismatch}"}])
    return tool_result(use, "success", [{"text": f"this is a valid {structure.name}"}])


# The names of these classes in the Python package of the wire protocol.
OsmosisStrandsAgent = Agent
OsmosisRolloutModel = RolloutModel
