"""An OpenAI endpoint whose completions another thread generates, in batches."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

# Maximum size of a request in bytes, as on the host.
BODY_BYTES_MAX = 64 << 20

# Time for which a connection may be idle, in seconds.
IDLE_SECS = 300.0


class Refused(Exception):
    """A request that the model does not serve, with the HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass
class Call:
    """A request for a completion that waits for its reply."""

    rollout: Any
    """The object that `ModelServer` has for the request's key."""
    messages: list[dict[str, Any]]
    tools: Any
    _answered: threading.Event = field(default_factory=threading.Event)
    _reply: tuple[dict[str, Any], str, int, int] | Refused | None = None

    def answer(self, message: dict[str, Any], finish_reason: str, prompt_tokens: int, completion_tokens: int) -> None:
        self._reply = (message, finish_reason, prompt_tokens, completion_tokens)
        self._answered.set()

    def refuse(self, why: Refused) -> None:
        self._reply = why
        self._answered.set()

    def wait(self) -> tuple[dict[str, Any], str, int, int]:
        self._answered.wait()
        if isinstance(self._reply, Refused):
            raise self._reply
        assert self._reply is not None
        return self._reply


@dataclass
class _Key:
    """The rollouts whose calls carry a key."""

    live: dict[int, Any]
    """Rollouts that have not ended, by number."""
    is_tree: bool
    """Whether they are the branches of a tree, whose ids end with their numbers."""
    has_begun: bool
    """Whether calls are expected."""


class ModelServer:
    """Listens for the calls of rollouts. Each has a key of its own, or shares it with the other branches of its tree."""

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        self._changed = threading.Condition()
        self._keys: dict[str, _Key] = {}
        self._calls: list[Call] = []
        self._is_closed = False
        server = self

        class Handler(_Handler):
            model = server

        self._http = ThreadingHTTPServer((address, port), Handler)
        self._http.daemon_threads = True
        self.port = int(self._http.server_address[1])
        threading.Thread(target=self._http.serve_forever, name="model-server", daemon=True).start()

    def close(self) -> None:
        """Refuses all waiting calls and stops listening."""
        with self._changed:
            self._is_closed = True
            calls, self._calls = self._calls, []
        for call in calls:
            call.refuse(Refused(503, "the trainer has ended"))
        self._http.shutdown()
        self._http.server_close()

    def open(self, rollout: Any) -> str:
        """Registers a rollout, and returns the key that its calls must carry."""
        return self._open(_Key({0: rollout}, False, True))

    def open_tree(self, branches: Sequence[Any]) -> str:
        """Registers the branches of a tree, which `begin` starts, and returns the key that their calls must carry."""
        return self._open(_Key(dict(enumerate(branches)), True, False))

    def _open(self, opened: _Key) -> str:
        key = secrets.token_urlsafe(24)
        with self._changed:
            self._keys[key] = opened
        return key

    def begin(self, key: str) -> None:
        """Expects calls of a tree from now on."""
        with self._changed:
            if key in self._keys:
                self._keys[key].has_begun = True

    def end(self, key: str) -> None:
        """Removes the rollouts of a key. Their waiting calls are refused."""
        with self._changed:
            opened = self._keys.get(key)
            numbers = [] if opened is None else list(opened.live)
        for number in numbers:
            self.end_branch(key, number)

    def end_branch(self, key: str, number: int) -> None:
        """Removes one rollout of a key. Its waiting calls are refused."""
        with self._changed:
            opened = self._keys.get(key)
            rollout = None if opened is None else opened.live.pop(number, None)
            if opened is None or rollout is None:
                return
            if not opened.live:
                del self._keys[key]
            ended = [call for call in self._calls if call.rollout is rollout]
            self._calls = [call for call in self._calls if call.rollout is not rollout]
            self._changed.notify_all()
        for call in ended:
            call.refuse(Refused(503, "the rollout has ended"))

    def batch(self, window_secs: float, batch_max: int) -> list[Call]:
        """Waits for calls and returns them, or an empty list when no rollout is left.

        A batch is complete when every rollout waits for the model, or when its first call is as old as `window_secs`.
        """
        first = 0.0
        with self._changed:
            while True:
                if self._calls:
                    callers = sum(len(opened.live) for opened in self._keys.values() if opened.has_begun)
                    now = time.monotonic()
                    first = first or now
                    if len(self._calls) >= min(callers, batch_max) or now - first >= window_secs:
                        taken, self._calls = self._calls[:batch_max], self._calls[batch_max:]
                        return taken
                    self._changed.wait(window_secs - (now - first))
                elif not self._keys:
                    return []
                else:
                    first = 0.0
                    self._changed.wait()

    def _enter(self, authorization: str, rollout_id: str, messages: list[dict[str, Any]], tools: Any) -> Call:
        key = authorization.removeprefix("Bearer ").strip()
        with self._changed:
            if self._is_closed:
                raise Refused(503, "the trainer has ended")
            known = [one for one in self._keys if hmac.compare_digest(one.encode(), key.encode())]
            if not known:
                raise Refused(401, "the key is not one of a running rollout")
            opened = self._keys[known[0]]
            number = 0
            if opened.is_tree:
                number = _branch(rollout_id)
            if number not in opened.live:
                raise Refused(401, "the key is not one of this rollout, or the rollout has ended")
            call = Call(opened.live[number], messages, tools)
            self._calls.append(call)
            self._changed.notify_all()
        return call


def _branch(rollout_id: str) -> int:
    """Returns the number of a branch, with which its id ends; -1 if there is none."""
    number = rollout_id.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else -1


class _Handler(BaseHTTPRequestHandler):
    model: ModelServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECS
    # Head and body are sent in one segment.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        try:
            reply = self._complete()
        except Refused as refused:
            self._send(refused.status, {"error": {"message": str(refused), "type": "invalid_request_error"}})
        else:
            self._send(200, reply)

    def _complete(self) -> dict[str, Any]:
        body = self._body()
        if self.path != "/v1/chat/completions":
            raise Refused(404, f"there is no {self.path}; the model is at /v1/chat/completions")
        try:
            request = json.loads(body)
            messages = request["messages"]
            is_valid = isinstance(messages, list) and messages and all(isinstance(one, dict) for one in messages)
        except (ValueError, KeyError, TypeError):
            is_valid = False
        if not is_valid:
            raise Refused(400, "the body is not a request with a list of messages")
        if request.get("stream"):
            raise Refused(400, "the trainer's model does not stream; send \"stream\": false")
        if request.get("n", 1) != 1:
            raise Refused(400, "the trainer's model returns one choice")
        authorization, rollout_id = (self.headers.get(name, "") for name in ("Authorization", "X-Rollout-Id"))
        call = self.model._enter(authorization, rollout_id, messages, request.get("tools") or None)
        message, finish_reason, prompt_tokens, completion_tokens = call.wait()
        return {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request.get("model") or "trainer",
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }

    def _body(self) -> bytes:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self.close_connection = True
            raise Refused(411, "the request has no Content-Length") from None
        if not 0 <= length <= BODY_BYTES_MAX:
            self.close_connection = True
            raise Refused(413, f"the body has more than {BODY_BYTES_MAX} bytes")
        return self.rfile.read(length)

    def _send(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            # The host abandoned the rollout.
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass
