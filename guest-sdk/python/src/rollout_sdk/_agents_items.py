"""The parts of a run of agents in the shape of the OpenAI Agents framework: items, context and exceptions.

Items are those of the Responses API. A session stores them as plain dictionaries; a result wraps each in an object
with the kind of item and its agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias

from ._json import JsonObject, is_list, is_object
from .errors import RolloutError
from .message import Message
from .sample import Completion

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ._agents_guards import InputGuardrailResult, OutputGuardrailResult
    from .openai_agents import Agent

    # A context without a type parameter is of any type, as in the framework.
    ContextT = TypeVar("ContextT", default=Any)
else:
    from typing import TypeVar

    ContextT = TypeVar("ContextT")

Item: TypeAlias = dict[str, Any]

# The framework's placeholder for ids that a server of the Responses API would assign.
FAKE_ID = "__fake_id__"


class AgentsException(RolloutError):
    """Base class of the framework's exceptions."""


class MaxTurnsExceeded(AgentsException):
    """The model still called tools after the maximum number of turns."""


class ModelBehaviorError(AgentsException):
    """The model did something that it was not offered, such as call an unknown tool."""


class UserError(AgentsException):
    """The program uses the framework incorrectly."""


class InputGuardrailTripwireTriggered(AgentsException):
    """A guardrail rejected the input."""

    def __init__(self, guardrail_result: InputGuardrailResult) -> None:
        super().__init__(f"guardrail `{guardrail_result.guardrail.get_name()}` does not let the input pass")
        self.guardrail_result = guardrail_result


class OutputGuardrailTripwireTriggered(AgentsException):
    """A guardrail rejected the output."""

    def __init__(self, guardrail_result: OutputGuardrailResult) -> None:
        super().__init__(f"guardrail `{guardrail_result.guardrail.get_name()}` does not let the output pass")
        self.guardrail_result = guardrail_result


@dataclass
class Usage:
    """The tokens and requests of a run, as far as the model's server reports them."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0

    def add(self, other: Usage) -> None:
        """Adds another usage to this one."""
        for name in ("requests", "input_tokens", "output_tokens", "total_tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def usage_of(reply: Completion) -> Usage:
    """Returns the usage of one model call."""
    if reply.usage is None:
        return Usage(requests=1)
    return Usage(1, reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens)


@dataclass
class RunContextWrapper(Generic[ContextT]):
    """The `context` argument of `Runner.run`, for tools, hooks and instructions."""

    context: ContextT
    usage: Usage = field(default_factory=Usage)


@dataclass
class ToolContext(RunContextWrapper[ContextT]):
    """The run's context in a tool call."""

    tool_name: str = ""
    tool_call_id: str = ""
    tool_arguments: str = ""
    agent: Agent[Any] | None = None


class Raw(Item):
    """An item whose values can also be read as attributes, as in the framework."""

    def __getattr__(self, name: str) -> Any:
        try:
            value: Any = self[name]
        except KeyError:
            raise AttributeError(f"the item has no `{name}`; it has {', '.join(self)}") from None
        if is_list(value):
            return [Raw(each) if is_object(each) else each for each in value]
        return Raw(value) if is_object(value) else value


@dataclass
class RunItem:
    """Base class of the items that a run adds."""

    type: ClassVar[str] = ""

    agent: Agent[Any]
    raw_item: Raw

    def to_input_item(self) -> Item:
        """Returns the item in the form of model input."""
        return dict(self.raw_item)


@dataclass
class MessageOutputItem(RunItem):
    """A message of the model."""

    type = "message_output_item"


@dataclass
class ToolCallItem(RunItem):
    """A tool call of the model."""

    type = "tool_call_item"

    @property
    def tool_name(self) -> str:
        return str(self.raw_item["name"])

    @property
    def call_id(self) -> str:
        return str(self.raw_item["call_id"])


@dataclass
class ToolCallOutputItem(RunItem):
    """The output of a tool call."""

    type = "tool_call_output_item"

    output: Any = None
    """The tool's return value."""

    @property
    def call_id(self) -> str:
        return str(self.raw_item["call_id"])


@dataclass
class HandoffCallItem(RunItem):
    """A handoff call of the model."""

    type = "handoff_call_item"


@dataclass
class HandoffOutputItem(RunItem):
    """A handoff from one agent to another."""

    type = "handoff_output_item"

    source_agent: Agent[Any] | None = None
    target_agent: Agent[Any] | None = None


@dataclass
class ModelResponse:
    """One reply of the model."""

    output: list[Raw]
    usage: Usage
    response_id: str | None = None

    def to_input_items(self) -> list[Item]:
        """Returns the reply in the form of model input."""
        return [dict(each) for each in self.output]


class ItemHelpers:
    """Functions that read texts from items."""

    @classmethod
    def extract_last_content(cls, message: Item) -> str:
        """Returns the text of the last part of a message, or an empty text."""
        return cls.extract_last_text(message) or ""

    @classmethod
    def extract_last_text(cls, message: Item) -> str | None:
        """Returns the text of the last part of a message."""
        content = message.get("content")
        last: Any = content[-1] if is_list(content) and content else {"text": content}
        text = last.get("text") if is_object(last) else None
        return text if isinstance(text, str) else None

    @classmethod
    def extract_text(cls, message: Item) -> str | None:
        """Returns the text of all parts of a message."""
        return _text_of_parts(message.get("content")) or None

    @classmethod
    def text_message_output(cls, message: MessageOutputItem) -> str:
        """Returns the text of a message of the model."""
        return _text_of_parts(message.raw_item.get("content"))

    @classmethod
    def text_message_outputs(cls, items: Iterable[RunItem]) -> str:
        """Returns the text of all messages of the model."""
        return "".join(cls.text_message_output(each) for each in items if isinstance(each, MessageOutputItem))

    @classmethod
    def input_to_new_input_list(cls, input: str | Sequence[Item]) -> list[Item]:
        """Returns an input as items."""
        return as_items(input)

    @classmethod
    def tool_call_output_item(cls, tool_call: Item, output: Any) -> Item:
        """Returns the item that reports the output of a tool call to the model."""
        return output_item(tool_call["call_id"], str(output))


def output_item(call_id: str, output: str) -> Item:
    """Returns the item that reports the output of a tool call to the model."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def as_items(input: str | Sequence[Item]) -> list[Item]:
    """Returns an input as items."""
    return [{"role": "user", "content": input}] if isinstance(input, str) else list(input)


def reply_items(reply: Completion) -> list[Item]:
    """Returns the model's reply as items."""
    items: list[Item] = []
    if reply.text or not reply.tool_calls:
        text: JsonObject = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        message = {"id": FAKE_ID, "type": "message", "role": "assistant", "status": "completed", "content": [text]}
        items.append(message)
    for call in reply.tool_calls:
        named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"id": FAKE_ID, "type": "function_call", **named})
    return items


def as_chat(items: Iterable[Item]) -> list[Message]:
    """Returns the chat messages for these items. Consecutive calls form one message, together with the text before
    them."""
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
                # Items that the chat API does not have, such as reasoning, are left out.
                continue
    return messages


def _chat_message(item: Item) -> Message:
    content = item.get("content")
    if item.get("type") == "message" and is_list(content):
        content = _text_of_parts(content)
    rest = {key: value for key, value in item.items() if key not in ("id", "type", "status", "role", "content")}
    return {"role": item.get("role", "user"), "content": content, **rest}


def _text_of_parts(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if is_object(part)) if is_list(content) else ""
