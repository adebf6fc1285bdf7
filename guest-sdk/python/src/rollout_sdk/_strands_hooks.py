"""Hooks of agents in the shape of the Strands framework: who is called for what an agent does,
and what they may change.

An event says which of its values may be written; writing another one raises, because nobody
would look at it.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, Union, get_args, get_origin, get_type_hints

from ._json import JsonObject, is_list
from .message import Message
from .tool import Tool

if TYPE_CHECKING:
    from .strands import Agent, AgentResult

StopReason: TypeAlias = Literal[
    "end_turn", "tool_use", "max_tokens", "limit_turns", "limit_output_tokens", "limit_total_tokens"
]

HookCallback: TypeAlias = Callable[[Any], Any]


@dataclass
class HookEvent:
    """Something that an agent does."""

    writable: ClassVar[tuple[str, ...]] = ()
    reverse: ClassVar[bool] = False
    """Whether who was registered last is called first, as for whatever ends."""

    agent: Agent

    def __post_init__(self) -> None:
        self.__dict__["_made"] = True

    def __setattr__(self, name: str, value: Any) -> None:
        if "_made" in self.__dict__ and name not in self.writable:
            raise AttributeError(f"{type(self).__name__}.{name} is not for hooks to write; {self._may_write()}")
        self.__dict__[name] = value

    def _may_write(self) -> str:
        return f"they may write {', '.join(self.writable)}" if self.writable else "they may write nothing of it"


@dataclass
class AgentInitializedEvent(HookEvent):
    """An agent was made."""


@dataclass
class BeforeInvocationEvent(HookEvent):
    """An invocation begins."""

    writable = ("messages", "cancel")

    invocation_state: JsonObject = field(default_factory=dict[str, Any])
    messages: list[Message] | None = None
    """What is said to the agent."""
    cancel: bool | str = False
    """Ends the invocation at once, with this text."""


@dataclass
class AfterInvocationEvent(HookEvent):
    """An invocation is over."""

    writable = ("resume",)
    reverse = True

    invocation_state: JsonObject = field(default_factory=dict[str, Any])
    result: AgentResult | None = None
    resume: Any = None
    """What the agent is invoked with once more."""


@dataclass
class MessageAddedEvent(HookEvent):
    """A message was added to the conversation."""

    message: Message


@dataclass
class BeforeModelCallEvent(HookEvent):
    """The model is about to be asked."""

    writable = ("cancel",)

    invocation_state: JsonObject = field(default_factory=dict[str, Any])
    cancel: bool | str = False
    """Has the model not be asked, and this text stand for its reply."""


@dataclass
class AfterModelCallEvent(HookEvent):
    """The model has answered, or failed to."""

    writable = ("retry",)
    reverse = True

    @dataclass
    class ModelStopResponse:
        """The reply."""

        message: Message
        stop_reason: StopReason

    invocation_state: JsonObject = field(default_factory=dict[str, Any])
    stop_response: ModelStopResponse | None = None
    exception: Exception | None = None
    retry: bool = False
    """Has the reply be forgotten and the model asked again."""


@dataclass
class BeforeToolCallEvent(HookEvent):
    """A tool is about to be called."""

    writable = ("selected_tool", "tool_use", "cancel_tool")

    selected_tool: Tool[..., Any] | None
    tool_use: JsonObject
    invocation_state: JsonObject = field(default_factory=dict[str, Any])
    cancel_tool: bool | str = False
    """Has the tool not be called, and this text be its result, an error."""


@dataclass
class AfterToolCallEvent(HookEvent):
    """A tool was called. The result may be replaced."""

    writable = ("result", "retry")
    reverse = True

    selected_tool: Tool[..., Any] | None
    tool_use: JsonObject
    invocation_state: JsonObject
    result: JsonObject
    exception: Exception | None = None
    cancel_message: str | None = None
    retry: bool = False
    """Has the result be forgotten and the tool called again."""


class HookProvider(Protocol):
    """Registers callbacks."""

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Registers callbacks with `registry.add_callback`."""


class HookRegistry:
    """Who is called for which events, in the order of their registration."""

    def __init__(self) -> None:
        self._callbacks: dict[type[HookEvent], list[HookCallback]] = {}

    def add_callback(
        self,
        event_type: type[HookEvent] | list[type[HookEvent]] | HookCallback | None,
        callback: HookCallback | None = None,
    ) -> None:
        """Has the callback called for events of this type, or these; without one, of those
        that its parameter is hinted with."""
        if callback is None:
            given: Any = event_type
            if not callable(given) or isinstance(given, type):
                raise TypeError("add_callback wants a callback")
            self.add_callback(None, given)
            return
        for each in _event_types(event_type, callback):
            self._callbacks.setdefault(each, []).append(callback)

    def add_hook(self, hook: HookProvider | HookCallback) -> None:
        """Has a provider register its callbacks; or a callback with a hinted parameter be called."""
        register: Any = getattr(hook, "register_hooks", None)
        if register is not None:
            register(self)
        elif callable(hook):
            self.add_callback(None, hook)
        else:
            raise TypeError(f"a hook is a provider with `register_hooks`, or a callback, not {hook!r}")

    def has_callbacks(self) -> bool:
        """Whether anybody wants to know of anything."""
        return bool(self._callbacks)

    async def call(self, event: HookEvent) -> None:
        """Calls whoever wants to know of this."""
        called = self._callbacks.get(type(event), [])
        for callback in reversed(called) if event.reverse else list(called):
            result = callback(event)
            if inspect.isawaitable(result):
                await result

    def call_at_once(self, event: HookEvent) -> None:
        """Calls whoever wants to know of this where nothing can be awaited."""
        for callback in self._callbacks.get(type(event), []):
            if inspect.iscoroutinefunction(callback):
                raise TypeError(f"a callback for {type(event).__name__} cannot be `async`")
            callback(event)


def _event_types(given: Any, callback: HookCallback) -> Iterable[type[HookEvent]]:
    if given is None:
        first = next(iter(inspect.signature(callback).parameters.values()), None)
        hints = get_type_hints(callback)
        given = hints.get(first.name) if first is not None else None
        if get_origin(given) in (Union, types.UnionType):
            given = list(get_args(given))
    wanted: list[Any] = given if is_list(given) else [given]
    for each in wanted:
        if not isinstance(each, type) or not issubclass(each, HookEvent):
            raise TypeError(
                f"{each!r} is no event of hooks; say which one the callback `{getattr(callback, '__name__', callback)}` is "
                "for, or hint its parameter with it"
            )
    return wanted
