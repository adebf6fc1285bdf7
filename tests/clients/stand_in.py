"""A stand-in for a model: answers arithmetic over the OpenAI chat API. Standard library only.

    prints `listening on http://127.0.0.1:PORT` and answers `POST …/chat/completions` below any path. "Calculate 2 + 3."
    is answered with "2 + 3 = 5" and "#### 5"; a message without a sum with "#### unknown". `Loopback`, the small server
    underneath, also serves the drivers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

_SUM = re.compile(r"(-?\d+)\s*([-+*])\s*(-?\d+)")


@dataclass(frozen=True)
class Request:
    """A received request. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


Handler = Callable[[Request], Awaitable[tuple[int, Any]]]


class Loopback:
    """An HTTP/1.1 server on 127.0.0.1 with keep-alive: one handler, JSON answers."""

    def __init__(self, handler: Handler, port: int = 0) -> None:
        self._handler = handler
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> Loopback:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self._port, backlog=1024
        )
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while (request := await _read(reader)) is not None:
                status, value = await self._handler(request)
                writer.write(_response(status, value))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # The peer disconnected, or this server is closing.
        finally:
            self._connections.discard(task)
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """Reads one request; None if the peer closed between two."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
    while (await reader.readline()).strip():
        pass
    return body


def _response(status: int, value: Any) -> bytes:
    body = json.dumps(value).encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass
class Model:
    """The handler of the model, with a record of its requests."""

    latency_ms: float = 0.0
    record: bool = False
    requests: list[Request] = field(default_factory=list)

    async def __call__(self, request: Request) -> tuple[int, Any]:
        if request.method != "POST" or not request.path.endswith("/chat/completions"):
            return 404, _error("only POST …/chat/completions is served here")
        if self.record:
            self.requests.append(request)
        if self.latency_ms:
            await asyncio.sleep(self.latency_ms / 1000)
        try:
            body = request.json()
            messages = body["messages"]
        except (ValueError, KeyError, TypeError):
            return 400, _error("the body must be JSON with messages")
        if body.get("stream"):
            return 400, _error("this stand-in does not stream")
        return 200, completion(body.get("model", "stand-in"), answer(messages))


def answer(messages: list[dict[str, Any]]) -> str:
    """Returns the reply to a conversation: the result of the last user message's sum."""
    asked = [text_of(m) for m in messages if m.get("role") == "user"]
    found = _SUM.search(asked[-1]) if asked else None
    if found is None:
        return "#### unknown"
    left, sign, right = int(found[1]), found[2], int(found[3])
    value = {"+": left + right, "-": left - right, "*": left * right}[sign]
    return f"{left} {sign} {right} = {value}\n#### {value}"


def text_of(message: dict[str, Any]) -> str:
    """Returns a message's text, from a string or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def completion(model: str, content: str) -> dict[str, Any]:
    tokens = len(content.split())
    return {
        "id": "chatcmpl-stand-in",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": tokens,
            "total_tokens": 10 + tokens,
        },
    }


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    args = parser.parse_args()
    async with Loopback(Model(latency_ms=args.latency_ms), args.port) as server:
        print(f"listening on {server.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
