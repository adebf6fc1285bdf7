"""Hooks of agents in the shape of the Strands framework: callbacks for the actions of an agent, which may change parts
of them.

An event lists the values that may be written; writing another one raises, because it would have no effect.
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
    """Base class of the events."""

    writable: ClassVar[tuple[str, ...]] = ()
    reverse: ClassVar[bool] = False
    """Whether callbacks are called in reverse order of registration, as for the end of an action."""

    agent: Agent

    def __post_init__(self) -> None:
        self.__dict__["_made"] = True

    def __setattr__(self, name: str, value: Any) -> None:
        if "_made" in self.__dict__ and name not in self.writable:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be written by a hook; {self._may_write()}")
        self.__dict__[name] = value

    def _may_write(self) -> str:
        return f"hooks may write {', '.join(self.writable)}" if self.writable else "hooks may write none of its values"


@dataclass
class AgentInitializedEvent(HookEvent):
    """An agent was created."""


@dataclass
class BeforeInvocationEvent(HookEvent):
    """An invocation begins."""

    writable = ("messages", "cancel")

    invocation_state: JsonObject = field(default_factory=dict[str, Any])
    messages: list[Message] | None = None
    """The new messages to the agent."""
    cancel: bool | str = False
    """Ends the invocation immediately, with this text."""


@dataclass
class AfterInvocationEvent(HookEvent):
    """An invocation has ended."""

    writable = ("resume",)
    reverse = True

    invocation_state: JsonObject = field(default_factory=dict[str, Any])
    result: AgentResult | None = None
    resume: Any = None
    """The prompt with which the agent is invoked again."""


@dataclass
class MessageAddedEvent(HookEvent):
    """A message was added to the conversation."""

    message: Message


@dataclass
class BeforeModelCallEvent(HookEvent):
    """A model call is about to start."""

    writable = ("cancel",)

    invocation_state: JsonObject = field(default_factory=dict[str, Any])
    cancel: bool | str = False
    """Skips the model call; the text replaces its reply."""


@dataclass
class AfterModelCallEvent(HookEvent):
    """A model call has ended, with a reply or an error."""

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
    """Discards the reply and calls the model again."""


@dataclass
class BeforeToolCallEvent(HookEvent):
    """A tool is about to be called."""

    writable = ("selected_tool", "tool_use", "cancel_tool")

    selected_tool: Tool[..., Any] | None
    tool_use: JsonObject
    invocation_state: JsonObject = field(default_factory=dict[str, Any])
    cancel_tool: bool | str = False
    """Skips the tool call; the text is its result and counts as an error."""


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
    """Discards the result and calls the tool again."""


class HookProvider(Protocol):
    """An object that registers callbacks."""

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Registers callbacks with `registry.add_callback`."""


class HookRegistry:
    """Callbacks by type of event, in the order of their registration."""

    def __init__(self) -> None:
        self._callbacks: dict[type[HookEvent], list[HookCallback]] = {}

    def add_callback(
        self,
        event_type: type[HookEvent] | list[type[HookEvent]] | HookCallback | None,
        callback: HookCallback | None = None,
    ) -> None:
        """Registers a callback for events of one type or of several types. Without a type, they are those in the type
        hint of the callback's parameter."""
        if callback is None:
            given: Any = event_type
            if not callable(given) or isinstance(given, type):
                raise TypeError("add_callback: the callback is missing")
            self.add_callback(None, given)
            return
        for each in _event_types(event_type, callback):
            self._callbacks.setdefault(each, []).append(callback)

    def add_hook(self, hook: HookProvider | HookCallback) -> None:
        """Lets a provider register its callbacks, or registers a callback by the type hint of its parameter."""
        register: Any = getattr(hook, "register_hooks", None)
        if register is not None:
            register(self)
        elif callable(hook):
            self.add_callback(None, hook)
        else:
            raise TypeError(f"a hook is a provider with `register_hooks`, or a callback, not {hook!r}")

    def has_callbacks(self) -> bool:
        """Returns whether there are any callbacks."""
        return bool(self._callbacks)

    async def call(self, event: HookEvent) -> None:
        """Calls the callbacks for an event."""
        called = self._callbacks.get(type(event), [])
        for callback in reversed(called) if event.reverse else list(called):
            result = callback(event)
            if inspect.isawaitable(result):
                await result

    def call_at_once(self, event: HookEvent) -> None:
        """Calls the callbacks for an event from code that cannot await."""
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
                f"{each!r} is not a hook event; pass the event type of the callback `{getattr(callback, '__name__', callback)}` is "
                "for, or hint its parameter with it"
            )
    return wanted
