"""A real MCP server for the tests, made with the official Python package.

    python mcp_server.py stdio
    python mcp_server.py http PORT

Over HTTP it prints `ready` when it listens.
"""

import json
import os
import sys

import anyio
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("test")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two whole numbers."""
    return a + b


@server.tool()
def fail(why: str) -> str:
    """Always fails."""
    raise ToolError(why)


@server.tool()
def environment() -> str:
    """Returns the names of this server's environment variables."""
    return json.dumps(sorted(os.environ))


@server.tool()
def secret() -> str:
    """Returns a secret."""
    return "it is " + os.environ.get("TEST_SECRET", "nothing")


@server.tool()
def pid() -> str:
    """Returns the id of this server's process."""
    return str(os.getpid())


@server.tool()
def large(bytes: int) -> str:
    """Returns a number of bytes."""
    return "x" * bytes


@server.tool()
async def wait() -> str:
    """Never answers."""
    await anyio.sleep_forever()
    return ""


@server.tool()
def end() -> str:
    """Ends this server's process without an answer."""
    os._exit(3)


class Announced(uvicorn.Server):
    """A server that prints a line when it listens."""

    async def startup(self, sockets=None):
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        print(f"ready on {port}", flush=True)


def main() -> None:
    if sys.argv[1] == "stdio":
        server.run("stdio")
        return
    app = server.streamable_http_app()
    config = uvicorn.Config(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
    anyio.run(Announced(config).serve)


if __name__ == "__main__":
    main()
