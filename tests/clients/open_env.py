"""Plays in an environment with a client of the published package `openenv` or `openenv-core`.

    python open_env.py CLIENT URL COMMANDS [KEY]

CLIENT is `generic` or `tools`. COMMANDS is a JSON list of calls, such as `[["reset", {"seed": 1}], ["step", {"number": 2}],
["state"], ["tools"], ["call", "add", {"number": 1}]]`. `["pause"]` prints a line and waits for one. Prints one JSON line with the
result or the error of each.
"""

import asyncio
import inspect
import json
import sys

from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient


def plain(value):
    """Returns a value as JSON data."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return value


def observed(result):
    return {"observation": plain(result.observation), "reward": result.reward, "done": result.done}


async def run(client, command):
    name, *arguments = command
    if name == "reset":
        return observed(await client.reset(**(arguments[0] if arguments else {})))
    if name == "step":
        return observed(await client.step(arguments[0]))
    if name == "state":
        return plain(await client.state())
    if name == "pause":
        print("paused", flush=True)
        return await asyncio.to_thread(sys.stdin.readline)
    if name == "tools":
        return [tool.name for tool in await client.list_tools()]
    if name == "call":
        return await client.call_tool(arguments[0], **arguments[1])
    raise SystemExit(f"unknown command {name}")


async def main(kind, url, commands, key):
    clients = {"generic": GenericEnvClient, "tools": MCPToolClient}
    options = {"headers": {"Authorization": f"Bearer {key}"}} if key else {}
    client = clients[kind](base_url=url, **options)
    results = []
    try:
        connected = client.connect()
        if inspect.isawaitable(connected):
            await connected
        for command in commands:
            try:
                results.append(await run(client, command))
            except Exception as error:  # The error is what the client's user sees.
                results.append({"error": str(error)})
    finally:
        try:
            await client.close()
        except Exception:
            # The connection may have broken in a pause.
            if ["pause"] not in commands:
                raise
    print(json.dumps(results))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None))
