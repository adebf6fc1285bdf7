"""Samples: conversations that are graded and trained on.

A `Sample` is registered with the host when it is opened, and its messages are stored even if the rollout is
interrupted. Each model call belongs to a sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _host, _loop
from ._json import JsonObject, as_number, dump, dump_messages, load
from ._metrics import Metrics
from .message import Message, ToolCall


@dataclass(frozen=True)
class Usage(Mapping[str, int]):
    """Tokens of model calls, as the model's server counted them: by attribute, or by key as in a reply's JSON
    (`usage["total_tokens"]`, `usage.get("prompt_tokens", 0)`)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """The sum of both numbers."""
        return self.prompt_tokens + self.completion_tokens

    def __getitem__(self, name: str) -> int:
        if name not in _USAGE:
            raise KeyError(name)
        return int(getattr(self, name))

    def __iter__(self) -> Iterator[str]:
        return iter(_USAGE)

    def __len__(self) -> int:
        return len(_USAGE)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens
        )


_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass(frozen=True, slots=True)
class Completion:
    """The model's reply."""

    message: Message
    """The assistant's message. Store it unchanged."""
    text: str
    """The reply's text; empty if it has none."""
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])
    """The model's tool calls, in order."""
    finish_reason: str | None = None
    """The reason why the model stopped: `stop`, `tool_calls`, `length` or another."""
    usage: Usage | None = None
    """The tokens of the call, if the server reports them."""


class Sample:
    """One conversation, registered with the host."""

    # Any other attribute would be lost silently.
    __slots__ = ("_handle", "_metrics", "_recorded", "id")

    def __init__(self, name: str | None = None) -> None:
        """Registers a sample. Its id is the name, or a random one."""
        self._handle = _host.open_sample(name)
        self.id: str = self._handle.id()
        """The id, which every model call of this sample carries."""
        self._metrics = Metrics({}, self._record_metric)
        # Number of messages in its history, if known.
        self._recorded: int | None = 0

    def __repr__(self) -> str:
        return f"<sample {self.id}>"

    async def chat(
        self,
        messages: Iterable[Message],
        *,
        tools: Iterable[Mapping[str, Any]] = (),
        keep_reply: bool = False,
        **params: Any,
    ) -> Completion:
        """Calls the model with these messages, which are not pushed: the workflow decides what belongs to the history.
        The reply is pushed only with `keep_reply`.

        `tools` are schemas in OpenAI's form, `params` any sampling parameters (`temperature=0.7, max_tokens=512`), sent
        unchanged. Raises `ChatError`."""
        return await self._ask(dump_messages(messages), tools, params, after_history=False, keep_reply=keep_reply)

    async def continue_chat(
        self,
        *messages: Message,
        tools: Iterable[Mapping[str, Any]] = (),
        keep_reply: bool = True,
        **params: Any,
    ) -> Completion:
        """Calls the model with the whole history followed by these messages, which are pushed; so is the reply, unless
        `keep_reply` is false. Only new messages are sent to the host, so a late turn of a conversation costs no more
        than the first. Raises `ChatError`."""
        return await self._ask(dump_messages(messages), tools, params, after_history=True, keep_reply=keep_reply)

    async def _ask(
        self,
        messages: list[str],
        tools: Iterable[Mapping[str, Any]],
        params: dict[str, Any],
        *,
        after_history: bool,
        keep_reply: bool,
    ) -> Completion:
        schemas = [dump(schema, "the schema of a tool") for schema in tools]
        given = dump(params, "the sampling parameters") if params else None
        recorded = self._recorded
        if after_history:
            # Unknown while the call runs: if a budget is spent, it may be the one for messages.
            self._recorded = None
        call = _host.start_chat(
            self._handle, messages, schemas, given, after_history=after_history, keep_reply=keep_reply
        )
        if after_history:
            self._recorded = None if recorded is None else recorded + len(messages)
        reply = _completion(await _loop.outcome(call, _host.finish_chat))
        if keep_reply and self._recorded is not None:
            self._recorded += 1
        return reply

    def push(self, *messages: Message) -> None:
        """Appends messages to the history, all of them or none. Raises `RecordError` if a limit of this rollout is
        reached."""
        _host.push(self._handle, dump_messages(messages))
        if self._recorded is not None:
            self._recorded += len(messages)

    def replace(self, messages: Iterable[Message]) -> None:
        """Replaces the whole history."""
        texts = dump_messages(messages)
        _host.replace(self._handle, texts)
        self._recorded = len(texts)

    def has_recorded(self, count: int) -> bool:
        """Returns whether the sample's history has this number of messages, all recorded by this object."""
        return self._recorded == count

    def metric(self, name: str, value: float) -> None:
        """Records a finite metric. The last value of a name counts."""
        self._metrics[name] = value

    def _record_metric(self, name: str, value: float) -> None:
        _host.set_metric(self._handle, name, as_number(value, f"metric `{name}`"))

    @property
    def metrics(self) -> dict[str, float]:
        """The recorded metrics. A write here records a metric, like `metric`."""
        return self._metrics

    @metrics.setter
    def metrics(self, given: Mapping[str, float]) -> None:
        # `sample.metrics |= …` assigns the same object.
        if given is not self._metrics:
            self._metrics.update(given)

    def field(self, name: str, value: Any) -> None:
        """Records a JSON value with the sample. The last value of a name counts."""
        _host.set_field(self._handle, name, dump(value, f"field `{name}`"))

    def withdraw(self) -> None:
        """Excludes this sample from training. It is still graded."""
        self._handle.withdraw()


async def chat_with(
    sample: Sample, messages: Iterable[Message], tools: Iterable[Mapping[str, Any]], params: dict[str, Any]
) -> Completion:
    """Calls the model like `Sample.chat`, with parameters of any names."""
    return await sample._ask(  # pyright: ignore[reportPrivateUsage]
        dump_messages(messages), tools, params, after_history=False, keep_reply=False
    )


def _completion(raw: _host.RawCompletion) -> Completion:
    message: JsonObject = load(raw.message, "the model's reply")
    return Completion(
        message,
        raw.text,
        [ToolCall(*call) for call in raw.tool_calls],
        raw.finish_reason,
        None if raw.usage is None else Usage(*raw.usage),
    )
