"""Conversation managers of agents in the shape of the Strands framework: they limit the length of a conversation, and
shorten it when it is too long for the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._json import is_list
from .errors import RolloutError
from .message import Message

if TYPE_CHECKING:
    from .strands import Agent


class ContextWindowOverflowException(RolloutError):
    """The conversation is too long for the model."""


class ConversationManager:
    """Base class of conversation managers."""

    removed_message_count: int = 0
    """Number of messages that were removed."""

    def apply_management(self, agent: Agent, **kwargs: Any) -> None:
        """Shortens the conversation after an invocation. It may change the agent's messages."""

    def reduce_context(self, agent: Agent, e: Exception | None = None, **kwargs: Any) -> None:
        """Shortens the conversation when it is too long for the model, which is called again afterwards. Raises if
        nothing can be removed."""
        raise ContextWindowOverflowException("the conversation is too long for the model") from e

    def before_model_call(self, agent: Agent) -> None:
        """Shortens the conversation before a model call."""


class NullConversationManager(ConversationManager):
    """Keeps the whole conversation."""


_KEPT_OF_RESULT = 200
"""Number of characters at each end that remain of a shortened tool result."""


class SlidingWindowConversationManager(ConversationManager):
    """Keeps the last messages. The first of them is a user message that is not a tool result, or else a tool call with
    its results."""

    def __init__(
        self, window_size: int = 40, should_truncate_results: bool = True, *, per_turn: bool | int = False
    ) -> None:
        """With `per_turn`, the messages are also shortened before each model call, or before every n-th."""
        if window_size < 0:
            raise ValueError(f"window_size is 0 or more, not {window_size}")
        if per_turn is not False and per_turn < 1:
            raise ValueError(f"per_turn is True, False, or a number from 1 on, not {per_turn}")
        self.window_size = window_size
        self.should_truncate_results = should_truncate_results
        self.per_turn = per_turn
        self._calls = 0

    def before_model_call(self, agent: Agent) -> None:
        self._calls += 1
        if self.per_turn is not False and self._calls % int(self.per_turn) == 0:
            self.apply_management(agent)

    def apply_management(self, agent: Agent, **kwargs: Any) -> None:
        """Removes the first messages."""
        if len(agent.messages) > self.window_size:
            self.reduce_context(agent)

    def reduce_context(self, agent: Agent, e: Exception | None = None, **kwargs: Any) -> None:
        """Shortens tool results if the conversation was too long for the model, or else removes the first messages."""
        messages = agent.messages
        if e is not None and self.should_truncate_results and _cut_results(messages):
            return
        begin = len(messages)
        if self.window_size:
            wanted = 2 if len(messages) <= self.window_size else len(messages) - self.window_size
            found = _beginning(messages, wanted)
            if found is None:
                if e is not None:
                    raise ContextWindowOverflowException("no message can be taken out of the conversation") from e
                return
            begin = found
        self.removed_message_count += begin
        del messages[:begin]


class SummarizingConversationManager(ConversationManager):
    """Lets the model summarize the first messages when the conversation is too long for it, and replaces them with the
    summary."""

    def __init__(
        self,
        summary_ratio: float = 0.3,
        preserve_recent_messages: int = 10,
        summarization_agent: Agent | None = None,
        summarization_system_prompt: str | None = None,
    ) -> None:
        """Without `summarization_agent`, the agent's own model summarizes, on behalf of its sample."""
        if summarization_agent is not None and summarization_system_prompt is not None:
            raise ValueError("an agent that summarizes has a system prompt of its own")
        self.summary_ratio = min(max(summary_ratio, 0.1), 0.8)
        self.preserve_recent_messages = preserve_recent_messages
        self.summarization_agent = summarization_agent
        self.summarization_system_prompt = summarization_system_prompt

    def reduce_context(self, agent: Agent, e: Exception | None = None, **kwargs: Any) -> None:
        """Summarizes the first messages."""
        messages = agent.messages
        count = max(int(len(messages) * self.summary_ratio), 1)
        count = min(count, len(messages) - self.preserve_recent_messages)
        # Tool calls and their results stay together.
        while 0 < count < len(messages) and _has(messages[count], "toolResult"):
            count += 1
        if not 0 < count < len(messages):
            raise ContextWindowOverflowException("there are too few messages to summarize") from e
        summary = self._summarized(agent, messages[:count])
        self.removed_message_count += count
        messages[:count] = [{"role": "user", "content": [{"text": summary}]}]

    def _summarized(self, agent: Agent, messages: Sequence[Message]) -> str:
        request: Message = {"role": "user", "content": [{"text": "Please summarize this conversation."}]}
        if self.summarization_agent is None:
            return agent.ask_separately([*messages, request], self.summarization_system_prompt or _SUMMARIZE)
        other = self.summarization_agent
        kept = list(other.messages)
        try:
            other.messages = list(messages)
            return str(other(request["content"])).strip()
        finally:
            other.messages = kept


_SUMMARIZE = (
    "You summarize conversations. Say in the third person, in a few bullet points, what was asked, what was found out, "
    "which tools were used with what result, and what is still to be done. Answer nothing of the conversation itself."
)


def _has(message: Message, kind: str) -> bool:
    content = message.get("content")
    return is_list(content) and any(kind in block for block in content)


def _beginning(messages: Sequence[Message], wanted: int) -> int | None:
    """Returns the first index from `wanted` on at which a conversation may start."""
    places = range(wanted, len(messages))
    for place in places:
        if messages[place].get("role") == "user" and not _has(messages[place], "toolResult"):
            return place
    for place in places[:-1]:
        if _has(messages[place], "toolUse") and _has(messages[place + 1], "toolResult"):
            return place
    return None


def _cut_results(messages: list[Message]) -> bool:
    """Shortens the results in the first message with long ones. Returns whether there was one."""
    for place, message in enumerate(messages):
        if not _has(message, "toolResult"):
            continue
        blocks = [_cut_block(block) for block in message["content"]]
        if blocks != message["content"]:
            messages[place] = {**message, "content": blocks}
            return True
    return False


def _cut_block(block: dict[str, Any]) -> dict[str, Any]:
    result = block.get("toolResult")
    if result is None:
        return block
    content = [{**each, "text": _cut(each["text"])} if "text" in each else each for each in result["content"]]
    return {**block, "toolResult": {**result, "content": content}}


def _cut(text: str) -> str:
    left = len(text) - 2 * _KEPT_OF_RESULT
    note = f"\n… {left} characters were left out …\n"
    return text if left <= len(note) else text[:_KEPT_OF_RESULT] + note + text[-_KEPT_OF_RESULT:]
