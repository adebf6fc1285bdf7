"""A client in the shape of the `openai` package's, whose server is the host's model.

The published frameworks accept this client in place of their own, and run unchanged:

    from agents import Agent, OpenAIChatCompletionsModel, Runner
    model = OpenAIChatCompletionsModel("host", HostClient(ctx.sample))

    from strands import Agent
    from strands.models.openai import OpenAIModel
    model = OpenAIModel(client=HostClient(ctx.sample), model_id="host")

The host decides which model it is, its address and its key. The sample records the conversation as the model saw it,
including the last reply: use one client for each conversation.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from ._json import JsonObject, is_list, is_object
from .context import current_rollout
from .message import Message
from .sample import Completion, Sample

__all__ = ["HostClient"]

# Parameters of a request that concern only its transport.
_OF_SENDING = ("extra_headers", "extra_query", "model", "stream", "stream_options", "timeout")



def _send_no_traces() -> None:
    """Disables the traces of OpenAI Agents, which would send each run to OpenAI from a thread that never ends. There is
    no network, and the host records every call."""
    agents: Any = sys.modules.get("agents")
    if hasattr(agents, "set_tracing_disabled"):
        agents.set_tracing_disabled(True)


# This runs while a component is built, and costs a rollout nothing.
_send_no_traces()


class HostClient:
    """Answers `chat.completions.create`, streamed or not, by calling the host's model."""

    base_url = "host:"

    def __init__(self, sample: Sample | None = None) -> None:
        """Creates a client that records in this sample, or in a new one."""
        self._sample = sample
        self._recorded: list[Message] = []
        self.chat = _Chat(self)
        _send_no_traces()

    @property
    def sample(self) -> Sample:
        """The sample that records the conversation."""
        if self._sample is None:
            self._sample = current_rollout("a client").open_sample()
        return self._sample

    def with_options(self, **_: Any) -> HostClient:
        """Returns the same client: the host decides about retries and timeouts."""
        return self

    async def close(self) -> None:
        """Does nothing: there is no connection."""

    async def ask(self, messages: list[Message], tools: list[JsonObject], params: JsonObject) -> Completion:
        """Calls the model with these messages. Messages that the sample has are not sent again, and the model's own
        replies stay as the model wrote them."""
        known = len(self._recorded)
        goes_on = known <= len(messages) and all(map(_is_same, self._recorded, messages))
        if goes_on:
            reply = await self.sample.continue_chat(*messages[known:], tools=tools, **params)
        else:
            self.sample.replace(messages)
            reply = await self.sample.continue_chat(tools=tools, **params)
        self._recorded = [*messages, reply.message]
        return reply


def _is_same(old: Message, new: Message) -> bool:
    """Returns whether a message is the recorded one. A framework changes a reply: `content` may be null or missing, and
    unknown fields are missing."""
    if old == new:
        return True
    if old.get("role") != "assistant" or new.get("role") != "assistant":
        return False
    return _text_of(old) == _text_of(new) and _calls_of(old) == _calls_of(new)


def _text_of(message: Message) -> str:
    content: Any = message.get("content")
    if is_list(content):
        return "".join(str(part.get("text", "")) if is_object(part) else str(part) for part in content)
    return str(content or "")


def _calls_of(message: Message) -> list[tuple[Any, Any, Any]]:
    calls: list[Any] = message.get("tool_calls") or []
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]


class _Chat:
    def __init__(self, client: HostClient) -> None:
        self.completions = _Completions(client)


class _Completions:
    def __init__(self, client: HostClient) -> None:
        self._client = client

    async def create(self, *, messages: Any, **given: Any) -> Any:
        """Returns the reply as an object of the `openai` package; with `stream`, in chunks."""
        given = {name: value for name, value in given.items() if not _is_left_out(value)}
        params = {name: value for name, value in given.items() if name not in (*_OF_SENDING, "extra_body", "tools")}
        params |= given.get("extra_body") or {}
        reply = await self._client.ask(list(messages), list(given.get("tools") or ()), params)
        model = str(given.get("model", "host"))
        return ReplyStream(_pieces(reply, model)) if given.get("stream") else _whole(reply, model)


def _is_left_out(value: Any) -> bool:
    """Returns whether the `openai` package uses this value for an omitted argument."""
    return type(value).__name__ in ("Omit", "NotGiven") or value is None


def _types() -> Any:
    return importlib.import_module("openai.types.chat")


def _envelope(kind: str, model: str, choices: list[JsonObject], usage: JsonObject | None) -> JsonObject:
    fields: JsonObject = {"model": model, "choices": choices, "usage": usage}
    return {"id": "host", "object": kind, "created": int(time.time()), **fields}


def _usage(reply: Completion) -> JsonObject | None:
    return None if reply.usage is None else dict(reply.usage)


def _reason(reply: Completion) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _whole(reply: Completion, model: str) -> Any:
    choice = {"index": 0, "message": reply.message, "finish_reason": _reason(reply), "logprobs": None}
    return _types().ChatCompletion.construct(**_envelope("chat.completion", model, [choice], _usage(reply)))


def _pieces(reply: Completion, model: str) -> list[Any]:
    """Returns the reply in three chunks: the message, the finish reason, the usage."""
    kind, make = "chat.completion.chunk", _types().ChatCompletionChunk.construct
    calls: list[Any] = reply.message.get("tool_calls") or []
    delta = {**reply.message, "tool_calls": [{**call, "index": index} for index, call in enumerate(calls)] or None}
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    ended: JsonObject = {"index": 0, "delta": {}, "finish_reason": _reason(reply)}
    return [
        make(**_envelope(kind, model, [choice], None)),
        make(**_envelope(kind, model, [ended], None)),
        make(**_envelope(kind, model, [], _usage(reply))),
    ]


class ReplyStream:
    """The stream of a request with `stream`. The host waits for the whole reply, so all parts come at once."""

    response = None

    def __init__(self, pieces: list[Any]) -> None:
        self._pieces = iter(pieces)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration

    async def __aenter__(self) -> ReplyStream:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the stream."""
        self._pieces = iter(())
