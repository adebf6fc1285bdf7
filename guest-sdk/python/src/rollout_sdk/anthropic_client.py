"""Clients in the shape of the `anthropic` package's, whose server is the host's model.

Code written for that package runs unchanged, except for the client:

    from rollout_sdk.anthropic_client import HostClient       # in place of anthropic.AsyncAnthropic
    client = HostClient(ctx.sample)
    reply = await client.messages.create(model="host", max_tokens=512, messages=[{"role": "user", "content": "Hi"}])

    from rollout_sdk.anthropic_client import SyncHostClient   # in place of anthropic.Anthropic

The host decides which model it is, its address and its key. It speaks OpenAI's chat completions, so requests are converted
to them and replies from them: the sample records the conversation as the model saw it, including the last reply. Use one
client for each conversation.

Features of Anthropic's servers that a model of any other server does not have raise `TypeError`: tools that run there,
documents, containers, and a conversation that ends with the beginning of the reply.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import _loop, log, openai_client
from ._json import JsonObject, is_mapping, is_object
from ._older import Never
from .message import Message
from .sample import Completion, Sample

__all__ = ["HostClient", "SyncHostClient"]

# Parameters that concern the transport, the account or the cache of Anthropic's servers. They do not change a reply.
_NOT_SENT = (
    "betas", "cache_control", "diagnostics", "extra_headers", "extra_query", "inference_geo", "metadata", "model",
    "service_tier", "speed", "timeout", "user_profile_id", "workspace_id",
)

# Parameters with the same meaning in a chat completion.
_SAME = ("max_tokens", "temperature", "top_k", "top_p")

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}

_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}

# The key that Anthropic's documentation recommends for arguments that are not JSON.
INVALID_JSON = "INVALID_JSON"


class _Client:
    """The part that both clients share: the conversation and the conversion."""

    base_url = "host:"

    def __init__(self, sample: Sample | None = None) -> None:
        """Creates a client that records in this sample, or in a new one."""
        self._host = openai_client.HostClient(sample)
        # The arguments of tool calls as the model wrote them, with the input that the caller received, by call id.
        self._arguments: dict[str, tuple[str, Any]] = {}

    @property
    def sample(self) -> Sample:
        """The sample that records the conversation."""
        return self._host.sample

    def __getattr__(self, name: str) -> Never:
        raise AttributeError(f"the client of the host's model has no `{name}`; it has `messages.create` and `messages.stream`")

    async def ask(self, given: JsonObject) -> tuple[Completion, JsonObject]:
        """Calls the model. Returns its reply, and the same as the JSON of a message of Anthropic's."""
        given = {name: value for name, value in given.items() if not _is_left_out(value)}
        thinks = _wants_reasoning(given.pop("thinking", None))
        messages = _messages(given.pop("system", None), given.pop("messages", ()), self._arguments)
        tools = [_tool(_plain(each, "a tool")) for each in given.pop("tools", ())]
        params = _params(given)
        if messages and messages[-1]["role"] == "assistant" and not params.get("continue_final_message"):
            raise TypeError(
                "the conversation ends with an assistant message. Anthropic's servers continue it, and the host's model may "
                "begin a new one; say in a user message how the reply begins, or, if the model's server has the parameter, "
                'give extra_body={"continue_final_message": True, "add_generation_prompt": False}'
            )
        reply = await self._host.ask(messages, tools, params)
        return reply, self._converted(reply, str(given.get("model", "host")), thinks)

    def _converted(self, reply: Completion, model: str, thinks: bool) -> JsonObject:
        blocks: list[JsonObject] = []
        reasoning = reply.message.get("reasoning_content") or reply.message.get("reasoning")
        if thinks and isinstance(reasoning, str):
            blocks.append({"type": "thinking", "thinking": reasoning, "signature": ""})
        if reply.text or not reply.tool_calls:
            blocks.append({"type": "text", "text": reply.text, "citations": None})
        for call in reply.tool_calls:
            found = _input(call.arguments)
            self._arguments[call.id] = (call.arguments, found)
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": found})
        reason = _STOP_REASONS.get(reply.finish_reason or "", "tool_use" if reply.tool_calls else "end_turn")
        usage = reply.usage
        tokens = (0, 0) if usage is None else (usage.prompt_tokens, usage.completion_tokens)
        return {
            "id": "host", "type": "message", "role": "assistant", "model": model, "content": blocks, "stop_reason": reason,
            "stop_sequence": None, "usage": {"input_tokens": tokens[0], "output_tokens": tokens[1]},
        }


class HostClient(_Client):
    """Has the shape of `anthropic.AsyncAnthropic`."""

    def __init__(self, sample: Sample | None = None) -> None:
        """Creates a client that records in this sample, or in a new one."""
        super().__init__(sample)
        self.messages = _Messages(self)

    def with_options(self, **_: Any) -> HostClient:
        """Returns the same client: the host decides about retries and timeouts."""
        return self

    copy = with_options

    async def close(self) -> None:
        """Does nothing: there is no connection."""

    async def __aenter__(self) -> HostClient:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()


class SyncHostClient(_Client):
    """Has the shape of `anthropic.Anthropic`. Other tasks do not run while it waits for the model."""

    def __init__(self, sample: Sample | None = None) -> None:
        """Creates a client that records in this sample, or in a new one."""
        super().__init__(sample)
        self.messages = _SyncMessages(self)

    def with_options(self, **_: Any) -> SyncHostClient:
        """Returns the same client: the host decides about retries and timeouts."""
        return self

    copy = with_options

    def close(self) -> None:
        """Does nothing: there is no connection."""

    def __enter__(self) -> SyncHostClient:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _AnyMessages:
    def __init__(self, client: _Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Never:
        raise AttributeError(f"the client of the host's model has no `messages.{name}`; it has `create` and `stream`")


class _Messages(_AnyMessages):
    async def create(self, *, messages: Any, stream: Any = False, **given: Any) -> Any:
        """Returns the reply as a message of the `anthropic` package; with `stream`, its events, all at the end."""
        _, reply = await self._client.ask({**given, "messages": messages})
        return openai_client.ReplyStream(_events(reply)) if stream is True else _types().Message.construct(**reply)

    def stream(self, *, output_format: Any = None, **given: Any) -> Any:
        """Returns the package's own context manager over the events of the reply."""
        _refuse_output_format(output_format)
        return _streaming().AsyncMessageStreamManager(self.create(stream=True, **given))


class _SyncMessages(_AnyMessages):
    def create(self, *, messages: Any, stream: Any = False, **given: Any) -> Any:
        """Returns the reply as a message of the `anthropic` package; with `stream`, its events, all at the end."""
        _, reply = _loop.run_sync(self._client.ask({**given, "messages": messages}))
        return _SyncStream(_events(reply)) if stream is True else _types().Message.construct(**reply)

    def stream(self, *, output_format: Any = None, **given: Any) -> Any:
        """Returns the package's own context manager over the events of the reply."""
        _refuse_output_format(output_format)
        streaming = _streaming()
        absent = importlib.import_module("anthropic").NOT_GIVEN
        return streaming.MessageStreamManager(lambda: self.create(stream=True, **given), output_format=absent)


def _refuse_output_format(given: Any) -> None:
    if not _is_left_out(given):
        raise TypeError('`output_format` is not supported; give output_config={"format": {"type": "json_schema", "schema": …}}')


def _is_left_out(value: Any) -> bool:
    """Returns whether the `anthropic` package uses this value for an omitted argument."""
    return type(value).__name__ in ("Omit", "NotGiven") or value is None


# From requests of Anthropic's to chat completions.


def _plain(value: Any, what: str) -> JsonObject:
    """Returns a dict of a block, which may be one of the package's objects."""
    if is_mapping(value):
        return dict(value)
    if hasattr(value, "to_dict"):
        found: JsonObject = value.to_dict()
        return found
    raise TypeError(f"{what} is a dict or an object of the `anthropic` package, not {type(value).__name__}")


def _wants_reasoning(given: Any) -> bool:
    """Returns whether the reply is to have the model's reasoning. The host decides how much a model reasons."""
    if given is None:
        return False
    kind: str = _plain(given, "`thinking`").get("type", "")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise TypeError("`thinking` has a `type`: enabled, adaptive or disabled")
    return kind != "disabled"


def _params(given: JsonObject) -> JsonObject:
    """Returns the parameters of a chat completion."""
    params: JsonObject = {}
    for name, value in given.items():
        if name in _SAME:
            params[name] = value
        elif name == "stop_sequences":
            params["stop"] = list(value)
        elif name == "tool_choice":
            params |= _tool_choice(_plain(value, "`tool_choice`"))
        elif name == "output_config":
            params |= _output_config(_plain(value, "`output_config`"))
        elif name not in (*_NOT_SENT, "extra_body"):
            raise TypeError(f"the host's model takes no `{name}`, which is a feature of Anthropic's servers")
    extra: JsonObject = given.get("extra_body") or {}
    return params | extra


def _tool_choice(choice: JsonObject) -> JsonObject:
    kind = choice.get("type")
    if kind == "tool":
        params: JsonObject = {"tool_choice": {"type": "function", "function": {"name": choice["name"]}}}
    elif kind in _TOOL_CHOICES:
        params = {"tool_choice": _TOOL_CHOICES[kind]}
    else:
        raise TypeError(f"`tool_choice` is of the type auto, any, tool or none, not {kind!r}")
    if choice.get("disable_parallel_tool_use"):
        params["parallel_tool_calls"] = False
    return params


def _output_config(config: JsonObject) -> JsonObject:
    params: JsonObject = {}
    for name, value in config.items():
        if value is None:
            continue
        if name == "effort":
            params["reasoning_effort"] = value
        elif name == "format" and value.get("type") == "json_schema":
            schema = {"name": "reply", "schema": value["schema"], "strict": True}
            params["response_format"] = {"type": "json_schema", "json_schema": schema}
        else:
            raise TypeError(f"the host's model takes no `output_config` with `{name}`: {value!r}")
    return params


def _tool(tool: JsonObject) -> JsonObject:
    """Returns a tool in OpenAI's form."""
    kind = tool.get("type") or "custom"
    if kind != "custom":
        raise TypeError(
            f"the tool `{tool.get('name', kind)}` of the type `{kind}` is one of Anthropic's servers or clients, which the host's "
            "model does not know; describe a function by `name`, `description` and `input_schema`"
        )
    function: JsonObject = {"name": tool["name"], "parameters": tool["input_schema"]}
    for name in ("description", "strict"):
        if tool.get(name) is not None:
            function[name] = tool[name]
    return {"type": "function", "function": function}


def _messages(system: Any, given: Iterable[Any], arguments: Mapping[str, tuple[str, Any]]) -> list[Message]:
    """Returns the conversation in OpenAI's form."""
    messages: list[Message] = []
    if system:
        messages.append({"role": "system", "content": _text(system, "`system`")})
    for each in given:
        message = _plain(each, "a message")
        role, content = message.get("role"), message.get("content")
        if role == "assistant":
            messages.append(_assistant(content, arguments))
        elif role == "user":
            messages += _user(content)
        elif role == "system":
            messages.append({"role": "system", "content": _text(content, "a system message")})
        else:
            raise TypeError(f"a message has the role user or assistant, not {role!r}")
    return messages


def _blocks(content: Any, what: str) -> list[JsonObject]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if content is None or is_mapping(content):
        raise TypeError(f"the content of {what} is a text or a list of blocks")
    return [_plain(each, f"a block of {what}") for each in content]


def _text(content: Any, what: str) -> str:
    """Returns the text of blocks that are all texts."""
    texts: list[str] = []
    for block in _blocks(content, what):
        if block.get("type") != "text":
            _refuse_block(block, what)
        texts.append(str(block["text"]))
    return "\n".join(texts)


def _user(content: Any) -> list[Message]:
    """Returns the messages of a user's turn: the results of tools, and then the rest."""
    messages: list[Message] = []
    parts: list[JsonObject] = []
    for block in _blocks(content, "a user message"):
        kind = block.get("type")
        if kind == "tool_result":
            text = _text(block.get("content") or "", "a tool's result")
            if block.get("is_error") and not text:
                text = "the tool failed"
            messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": text})
        elif kind == "text":
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": _image(_plain(block["source"], "an image"))}})
        else:
            _refuse_block(block, "a user message")
    if len(parts) == 1 and parts[0]["type"] == "text":
        messages.append({"role": "user", "content": parts[0]["text"]})
    elif parts:
        messages.append({"role": "user", "content": parts})
    return messages


def _image(source: JsonObject) -> str:
    if source.get("type") == "url":
        return str(source["url"])
    if source.get("type") == "base64" and isinstance(source.get("data"), str):
        return f"data:{source['media_type']};base64,{source['data']}"
    raise TypeError("the source of an image is a `url`, or `base64` with its data as a text")


def _assistant(content: Any, arguments: Mapping[str, tuple[str, Any]]) -> Message:
    texts: list[str] = []
    calls: list[JsonObject] = []
    for block in _blocks(content, "an assistant message"):
        kind = block.get("type")
        if kind == "text":
            texts.append(str(block["text"]))
        elif kind == "tool_use":
            written, read = arguments.get(block["id"], ("", None))
            text = written if read == block["input"] and written else json.dumps(block["input"], ensure_ascii=False)
            calls.append({"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": text}})
        elif kind not in ("thinking", "redacted_thinking"):
            # The sample has the model's reasoning in its own reply.
            _refuse_block(block, "an assistant message")
    message: Message = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    return message | ({"tool_calls": calls} if calls else {})


def _refuse_block(block: JsonObject, what: str) -> Never:
    raise TypeError(f"{what} with a block of the type {block.get('type')!r} cannot be sent to the host's model")


# From replies of chat completions to Anthropic's.


def _input(arguments: str) -> JsonObject:
    """Returns the input of a tool call. Arguments that are no JSON object are passed on under a key that no tool has."""
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    if is_object(found):
        return found
    log.warn(f"the model called a tool with arguments that are not a JSON object: {arguments[:200]}")
    return {INVALID_JSON: arguments}


def _types() -> Any:
    return importlib.import_module("anthropic.types")


def _streaming() -> Any:
    return importlib.import_module("anthropic.lib.streaming")


def _events(reply: JsonObject) -> list[Any]:
    """Returns the events of a streamed reply: each block is one piece."""
    types = _types()
    usage = reply["usage"]
    begun: JsonObject = {**reply, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
    events: list[Any] = [types.RawMessageStartEvent.construct(type="message_start", message=begun)]
    for index, block in enumerate(reply["content"]):
        empty: JsonObject
        match block["type"]:
            case "text":
                empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
            case "thinking":
                empty, delta = {**block, "thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
            case _:
                text = json.dumps(block["input"], ensure_ascii=False)
                nothing: JsonObject = {}
                empty, delta = {**block, "input": nothing}, {"type": "input_json_delta", "partial_json": text}
        events += [
            types.RawContentBlockStartEvent.construct(type="content_block_start", index=index, content_block=empty),
            types.RawContentBlockDeltaEvent.construct(type="content_block_delta", index=index, delta=delta),
            types.RawContentBlockStopEvent.construct(type="content_block_stop", index=index),
        ]
    ended = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    events.append(types.RawMessageDeltaEvent.construct(type="message_delta", delta=ended, usage=usage))
    events.append(types.RawMessageStopEvent.construct(type="message_stop"))
    return events


class _SyncStream:
    """The events of a request with `stream`, for a caller that does not await them."""

    response = None

    def __init__(self, events: list[Any]) -> None:
        self._events = iter(events)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._events)

    def __enter__(self) -> _SyncStream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the stream."""
        self._events = iter(())
