"""Opens idle sessions of a served environment, and prints the memory of the host's process.

    python3 idle_sessions.py URL PID COUNT [http | sockets [ARGUMENTS]]

URL is that of the server, which needs no key, such as http://127.0.0.1:9000. Each session has an episode that was reset and is
waiting. Sessions of `http` (the default) have no connection; those of `sockets` have one each, so COUNT is limited by the open
files of both processes. ARGUMENTS are those of the reset over a socket, a short JSON object. Uses Python's own library alone.
"""

import asyncio
import base64
import json
import os
import sys
from urllib.parse import urlsplit

# Sessions that are opened at once.
AT_ONCE = 16


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def request(host, port, method, params):
    """Makes a call by JSON-RPC and returns its result."""
    reader, writer = await asyncio.open_connection(host, port)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    head = f"POST /openenv/mcp HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    answer = json.loads(answer.split(b"\r\n\r\n", 1)[1])
    if "error" in answer:
        raise SystemExit(f"the server refused: {answer['error']}")
    return answer["result"]


async def open_by_http(host, port, _arguments):
    session = (await request(host, port, "openenv/session/create", {}))["session_id"]
    # The first call resets.
    await request(host, port, "tools/call", {"session_id": session, "name": "add", "arguments": {"number": 1}})


async def open_socket(host, port, arguments):
    reader, writer = await asyncio.open_connection(host, port)
    key = base64.b64encode(os.urandom(16)).decode()
    head = f"GET /openenv/ws HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    writer.write(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    frame = json.dumps({"type": "reset", "data": arguments}).encode()
    if len(frame) > 125:
        raise SystemExit("the arguments are too long for a short frame")
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(frame))
    writer.write(bytes([0x81, 0x80 | len(frame)]) + mask + masked)
    head = await reader.readexactly(2)
    length = head[1]
    if length == 126:
        length = int.from_bytes(await reader.readexactly(2), "big")
    answer = json.loads(await reader.readexactly(length))
    if answer["type"] != "observation":
        raise SystemExit(f"the server refused: {answer}")
    return writer


async def main(url, pid, count, kind, arguments):
    address = urlsplit(url)
    opens = open_socket if kind == "sockets" else open_by_http
    before = resident_bytes(pid)
    turns, held = asyncio.Semaphore(AT_ONCE), []

    async def one():
        async with turns:
            held.append(await opens(address.hostname, address.port, arguments))

    await asyncio.gather(*(one() for _ in range(count)))
    after = resident_bytes(pid)
    each = (after - before) / count / 1024
    print(f"{count} idle sessions by {kind}: {after >> 20} MiB, {(before >> 20)} MiB without them, {each:.1f} KiB each")


if __name__ == "__main__":
    kind = sys.argv[4] if len(sys.argv) > 4 else "http"
    arguments = json.loads(sys.argv[5]) if len(sys.argv) > 5 else {}
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), kind, arguments))
