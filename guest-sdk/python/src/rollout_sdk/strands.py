"""Agents in the shape of the Strands framework.

    from rollout_sdk.strands import Agent, RolloutModel, tool

    agent = Agent(model=RolloutModel(temperature=0.7), tools=[calculator], messages=ctx.prompt)
    result = await agent.invoke_async()

An agent registers its sample when it is made, and its `messages` are the sample's, in the
framework's own form: content is a list of blocks, `{"text": …}`, `{"toolUse": …}` and
`{"toolResult": …}`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from ._history import RecordedHistory
from ._json import JsonObject, is_list, is_mapping
from ._loop import run_sync
from ._models import RolloutModel, params_of
from .errors import RolloutError
from .message import Message, ToolCall, text_of
from .sample import Completion, Sample, Usage
from .tool import Tool, as_tool, explain, tool

__all__ = [
    "AfterInvocationEvent",
    "AfterModelCallEvent",
    "AfterToolCallEvent",
    "Agent",
    "AgentResult",
    "BeforeInvocationEvent",
    "BeforeModelCallEvent",
    "BeforeToolCallEvent",
    "Block",
    "ConversationManager",
    "HookProvider",
    "HookRegistry",
    "MaxTokensReachedException",
    "MessageAddedEvent",
    "NullConversationManager",
    "OsmosisRolloutModel",
    "OsmosisStrandsAgent",
    "RolloutModel",
    "SlidingWindowConversationManager",
    "tool",
]

Block: TypeAlias = dict[str, Any]

StopReason: TypeAlias = Literal["end_turn", "tool_use", "max_tokens"]


class MaxTokensReachedException(RolloutError):
    """The model's reply was cut off at its token limit."""


@dataclass
class AgentResult:
    """What came of one invocation. Its text is that of the last message."""

    stop_reason: StopReason
    message: Message
    """The model's last message."""
    usage: Usage = field(default_factory=Usage)
    """What the invocation cost, as far as the server said."""

    def __str__(self) -> str:
        texts = (block["text"] for block in self.message.get("content", []) if "text" in block)
        return "".join(f"{text}\n" for text in texts)


# Hooks: who wants to know what an agent does.


@dataclass
class HookEvent:
    """Something that an agent does."""

    agent: Agent


@dataclass
class BeforeInvocationEvent(HookEvent):
    """An invocation begins."""


@dataclass
class AfterInvocationEvent(HookEvent):
    """An invocation is over."""

    result: AgentResult | None = None


@dataclass
class MessageAddedEvent(HookEvent):
    """A message was added to the conversation."""

    message: Message


@dataclass
class BeforeModelCallEvent(HookEvent):
    """The model is about to be asked."""


@dataclass
class AfterModelCallEvent(HookEvent):
    """The model has answered."""


@dataclass
class BeforeToolCallEvent(HookEvent):
    """A tool is about to be called."""

    selected_tool: Tool[..., Any] | None
    tool_use: JsonObject


@dataclass
class AfterToolCallEvent(HookEvent):
    """A tool was called. The result may be replaced."""

    selected_tool: Tool[..., Any] | None
    tool_use: JsonObject
    result: JsonObject


class HookRegistry:
    """Who is called for which events, in the order of their registration."""

    def __init__(self) -> None:
        self._callbacks: dict[type[HookEvent], list[Callable[[Any], Any]]] = {}

    def add_callback(self, event_type: type[HookEvent], callback: Callable[[Any], Any]) -> None:
        """Has the callback called for events of this type."""
        self._callbacks.setdefault(event_type, []).append(callback)

    def add_hook(self, hook: HookProvider) -> None:
        """Has a provider register its callbacks."""
        hook.register_hooks(self)

    async def call(self, event: HookEvent) -> None:
        """Calls whoever wants to know of this."""
        for callback in self._callbacks.get(type(event), ()):
            called = callback(event)
            if inspect.isawaitable(called):
                await called


class HookProvider(Protocol):
    """Registers callbacks."""

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Registers callbacks with `registry.add_callback`."""


# Conversation managers: how much of a conversation is kept.


class ConversationManager(Protocol):
    """Says how much of a conversation is kept."""

    def apply_management(self, agent: Agent, **kwargs: Any) -> None:
        """Called after every invocation; it may change the agent's messages."""


class NullConversationManager:
    """Keeps all of it."""

    def apply_management(self, agent: Agent, **kwargs: Any) -> None:
        """Nothing."""


class SlidingWindowConversationManager:
    """Keeps the last messages, beginning with one of the user's that is no tool's result."""

    def __init__(self, window_size: int = 40, should_truncate_results: bool = True, **_: Any) -> None:
        self.window_size = window_size

    def apply_management(self, agent: Agent, **kwargs: Any) -> None:
        """Takes the first messages out."""
        messages = agent.messages
        begin = max(len(messages) - self.window_size, 0)
        while begin < len(messages) and not _may_begin(messages[begin]):
            begin += 1
        if 0 < begin < len(messages):
            del messages[:begin]


def _may_begin(message: Message) -> bool:
    return message.get("role") == "user" and not any("toolResult" in block for block in message.get("content", ()))


class Agent:
    """An agent: a model in a loop with tools, and the conversation they have."""

    def __init__(
        self,
        model: RolloutModel | None = None,
        messages: Iterable[Message] | None = None,
        tools: Iterable[Tool[..., Any] | Callable[..., Any]] | None = None,
        system_prompt: str | None = None,
        callback_handler: Any = None,
        conversation_manager: ConversationManager | None = None,
        *,
        name: str | None = None,
        agent_id: str | None = None,
        description: str | None = None,
        state: Mapping[str, Any] | None = None,
        hooks: Iterable[HookProvider] | None = None,
    ) -> None:
        """An agent with a sample of its own, whose id is the name, the agent's id or a
        random one. `messages` are chat messages or the framework's own.
        `callback_handler` is there for the framework's sake; nothing calls it."""
        del callback_handler
        self.model = model
        self.name = name
        self.agent_id = agent_id
        self.description = description
        self.state: dict[str, Any] = dict(state or {})
        self.conversation_manager = conversation_manager
        self.hooks = HookRegistry()
        for provider in hooks or ():
            self.hooks.add_hook(provider)
        self.system_prompt = system_prompt
        self.tools: dict[str, Tool[..., Any]] = {}
        for item in tools or ():
            made = as_tool(item)
            self.tools[made.name] = made
        self._params = params_of(model)
        blocks = [in_blocks(message) for message in messages or ()]
        self._history = RecordedHistory(blocks, name or agent_id, "an agent")

    @property
    def messages(self) -> list[Message]:
        """The conversation, which is the sample's history. It may be changed."""
        return self._history.messages

    @messages.setter
    def messages(self, messages: list[Message]) -> None:
        self._history.messages = [in_blocks(message) for message in messages]

    @property
    def sample(self) -> Sample:
        """The sample that holds the conversation."""
        return self._history.sample

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools that are offered to the model."""
        return list(self.tools)

    def __call__(self, prompt: str | list[Block] | None = None) -> AgentResult:
        """As `invoke_async`, for who does not await it. Other tasks stand still meanwhile."""
        return run_sync(self.invoke_async(prompt))

    async def invoke_async(self, prompt: str | list[Block] | None = None) -> AgentResult:
        """Says something, if anything, and runs the loop until the model stops."""
        await self.hooks.call(BeforeInvocationEvent(self))
        if prompt is not None:
            content = [{"text": prompt}] if isinstance(prompt, str) else list(prompt)
            await self._add({"role": "user", "content": content})
        result: AgentResult | None = None
        try:
            result = await self._run()
            return result
        finally:
            if self.conversation_manager is not None:
                self.conversation_manager.apply_management(self)
                self._history.record()
            await self.hooks.call(AfterInvocationEvent(self, result))

    async def _add(self, message: Message) -> None:
        self.messages.append(message)
        await self.hooks.call(MessageAddedEvent(self, message))

    async def _run(self) -> AgentResult:
        usage = Usage()
        while True:
            schemas = [item.schema for item in self.tools.values()]
            await self.hooks.call(BeforeModelCallEvent(self))
            reply = await self._history.chat(self._request(), schemas, self._params)
            await self.hooks.call(AfterModelCallEvent(self))
            usage += reply.usage or Usage()
            message = self._reply_message(reply)
            await self._add(message)
            if reply.finish_reason == "length":
                self._history.record()
                raise MaxTokensReachedException("the model's reply was cut off at its token limit")
            if not reply.tool_calls:
                self._history.record()
                return AgentResult("end_turn", message, usage)
            results = await asyncio.gather(*map(self._run_tool, reply.tool_calls))
            await self._add({"role": "user", "content": [{"toolResult": result} for result in results]})

    def _request(self) -> list[Message]:
        system = [] if self.system_prompt is None else [{"role": "system", "content": [{"text": self.system_prompt}]}]
        return [chat for message in [*system, *self.messages] for chat in as_chat(message)]

    def _reply_message(self, reply: Completion) -> Message:
        blocks: list[Block] = []
        reasoning = reply.message.get("reasoning_content")
        if isinstance(reasoning, str) and reasoning:
            blocks.append({"reasoningContent": {"reasoningText": {"text": reasoning}}})
        if reply.text:
            blocks.append({"text": reply.text})
        for call in reply.tool_calls:
            use = {"toolUseId": call.id, "name": call.name, "input": _input_of(call.arguments)}
            blocks.append({"toolUse": use})
        return {"role": "assistant", "content": blocks}

    async def _run_tool(self, call: ToolCall) -> JsonObject:
        use = {"toolUseId": call.id, "name": call.name, "input": _input_of(call.arguments)}
        await self.hooks.call(BeforeToolCallEvent(self, self.tools.get(call.name), use))
        result = await self._tool_answer(call)
        event = AfterToolCallEvent(self, self.tools.get(call.name), use, result)
        await self.hooks.call(event)
        return event.result

    async def _tool_answer(self, call: ToolCall) -> JsonObject:
        made = self.tools.get(call.name)
        if made is None:
            return _tool_result(call, "error", [{"text": f"Unknown tool: {call.name}"}])
        try:
            result = await made.run(call.arguments)
        except Exception as error:
            return _tool_result(call, "error", [{"text": f"Error: {explain(error)}"}])
        # A tool may say status and blocks itself.
        if is_mapping(result) and "status" in result and "content" in result:
            return _tool_result(call, result["status"], list(result["content"]))
        return _tool_result(call, "success", [{"text": str(result)}])


def _tool_result(call: ToolCall, status: str, content: list[Block]) -> JsonObject:
    return {"toolUseId": call.id, "status": status, "content": content}


def _input_of(arguments: str) -> Any:
    """The arguments as the framework keeps them: an object where they are one."""
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return arguments


def in_blocks(message: Message) -> Message:
    """A message in the framework's form. One that is in it already stays as it is."""
    content = message.get("content")
    if is_list(content) and all(is_mapping(block) and "type" not in block for block in content):
        return message
    if message.get("role") == "tool":
        text = text_of(message)
        result = {"toolUseId": message.get("tool_call_id", ""), "status": "success", "content": [{"text": text}]}
        return {"role": "user", "content": [{"toolResult": result}]}
    blocks: list[Block] = []
    if text := text_of(message):
        blocks.append({"text": text})
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        use = {
            "toolUseId": call.get("id", ""),
            "name": function.get("name", ""),
            "input": _input_of(function.get("arguments") or ""),
        }
        blocks.append({"toolUse": use})
    return {**{k: v for k, v in message.items() if k not in ("content", "tool_calls")}, "content": blocks}


def as_chat(message: Message) -> list[Message]:
    """The chat messages that a message in the framework's form stands for."""
    parts: list[JsonObject] = []
    calls: list[JsonObject] = []
    results: list[Message] = []
    for block in message.get("content", []):
        if "text" in block:
            parts.append({"type": "text", "text": block["text"]})
        elif use := block.get("toolUse"):
            given = use["input"]
            arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            function = {"name": use["name"], "arguments": arguments}
            calls.append({"id": use["toolUseId"], "type": "function", "function": function})
        elif result := block.get("toolResult"):
            text = "\n".join(_result_text(piece) for piece in result["content"])
            results.append({"role": "tool", "tool_call_id": result["toolUseId"], "content": text})
    if not parts and not calls:
        return results
    chat: Message = {"role": message["role"]}
    if parts:
        chat["content"] = parts
    if calls:
        chat["tool_calls"] = calls
    return [*results, chat]


def _result_text(piece: Block) -> str:
    if "text" in piece:
        return str(piece["text"])
    return json.dumps(piece.get("json", piece), ensure_ascii=False)


# The names that the Python package of the wire protocol gives these.
OsmosisStrandsAgent = Agent
OsmosisRolloutModel = RolloutModel
