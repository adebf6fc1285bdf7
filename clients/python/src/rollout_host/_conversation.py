"""Token sequences of a rollout, assembled from the calls of the model that its workflow makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Messages = list[dict[str, Any]]

Render = Callable[[Messages, Any, bool], list[int]]
"""Returns the token ids of messages with tools, and with or without the beginning of a reply."""


class Misaligned(Exception):
    """The chat template does not continue a conversation by appending to it."""


def normal(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message in its normal form: no empty members, text as a string, arguments of calls as objects."""
    kept = {name: value for name, value in message.items() if value is not None and value != []}
    content = kept.get("content")
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        kept["content"] = "".join(part["text"] for part in content)
    if "tool_calls" in kept:
        kept["tool_calls"] = [_normal_call(call) for call in kept["tool_calls"]]
    if kept.get("role") == "assistant":
        kept.setdefault("content", "")
    return kept


def _normal_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments)
        except ValueError:
            pass
    return {**call, "function": function}


@dataclass
class TokenSequence:
    """One sequence of tokens: a prompt, followed by tokens of the model and tokens that the workflow added."""

    messages: Messages
    tools: Any
    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """1 for tokens of the model, 0 for those that the workflow added."""
    logprobs: list[float] = field(default_factory=list)
    has_logprobs: bool = True

    def input_ids(self) -> list[int]:
        return self.prompt_ids + self.completion_ids

    def add(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        """Adds tokens of the model."""
        self.completion_ids += ids
        self.mask += [1] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)
        self.has_logprobs &= logprobs is not None

    def add_context(self, ids: Sequence[int]) -> None:
        """Adds tokens of the workflow."""
        self.completion_ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    @property
    def reply(self) -> dict[str, Any]:
        return self.messages[-1]


class Conversation:
    """The sequences of one rollout.

    A request that continues an earlier reply extends its sequence by the new messages: the model sees exactly the tokens that
    it wrote, not a repeated encoding of its text. Any other request begins a new sequence.
    """

    def __init__(self, render: Render, end_ids: Iterable[int]) -> None:
        self._render = render
        self._end_ids = frozenset(end_ids)
        self.sequences: list[TokenSequence] = []
        self._replies: list[tuple[TokenSequence, int, Messages]] = []
        """The replies in their order: the sequence, its number of completion tokens then, and its messages then."""

    @property
    def turns(self) -> int:
        """Number of replies of the model."""
        return len(self._replies)

    def add_reply(
        self, sequence: TokenSequence, message: Mapping[str, Any], ids: Sequence[int], logprobs: Sequence[float] | None
    ) -> None:
        """Adds a reply of the model and its tokens to one of the sequences."""
        sequence.add(ids, logprobs)
        sequence.messages = [*sequence.messages, normal(message)]
        self._replies.append((sequence, len(sequence.completion_ids), sequence.messages))

    def fork(self, turn: int) -> Conversation:
        """Returns the conversation of a fork, which continues this one after `turn` replies.

        The shared replies are context there: the model wrote their tokens for this conversation.
        """
        forked = Conversation(self._render, self._end_ids)
        last = {id(sequence): (sequence, length, messages) for sequence, length, messages in self._replies[:turn]}
        for sequence, length, messages in last.values():
            shared = TokenSequence(messages, sequence.tools, sequence.prompt_ids, has_logprobs=sequence.has_logprobs)
            shared.completion_ids = sequence.completion_ids[:length]
            shared.mask = [0] * length
            shared.logprobs = sequence.logprobs[:length]
            forked.sequences.append(shared)
        return forked

    def extend(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> TokenSequence:
        """Returns the sequence of a request, up to where the model continues."""
        wanted = [normal(message) for message in messages]
        for sequence in self.sequences:
            known = sequence.messages
            if tools == sequence.tools and len(wanted) > len(known) and wanted[: len(known)] == known:
                sequence.add_context(self._suffix(sequence, wanted))
                sequence.messages = wanted
                return sequence
        sequence = TokenSequence(wanted, tools, self._render(wanted, tools, True))
        self.sequences.append(sequence)
        return sequence

    def _suffix(self, sequence: TokenSequence, wanted: Messages) -> list[int]:
        """Returns the tokens of the new messages, preceded by the end of the reply if the model did not write it."""
        before = self._render(sequence.messages, sequence.tools, False)
        full = self._render(wanted, sequence.tools, True)
        # Templates may write more after the end of a turn, such as a line break, which the model does not.
        ends = [at for at, token in enumerate(before) if token in self._end_ids]
        if ends:
            before = before[: ends[-1] + 1]
        if full[: len(before)] != before:
            raise Misaligned("the chat template renders earlier messages differently when others follow")
        wrote_end = bool(sequence.completion_ids) and sequence.completion_ids[-1] in self._end_ids
        # Without an end token in the template, nothing is missing.
        return full[len(before) - (1 if ends and not wrote_end else 0) :]

    def of_sample(self, messages: Sequence[Mapping[str, Any]]) -> TokenSequence | None:
        """Returns the longest sequence whose last reply is the last one of a sample, or None."""
        replies = [normal(message) for message in messages if message.get("role") == "assistant"]
        if not replies:
            return None
        wanted = _content(replies[-1])
        found = [one for one in self.sequences if one.reply["role"] == "assistant" and _content(one.reply) == wanted]
        return max(found, key=lambda one: len(one.completion_ids), default=None)


def _content(message: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns the text and the calls of a reply, for comparisons of replies."""
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return message.get("content") or "", calls
