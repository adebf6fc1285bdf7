"""Plays in an environment with the client of the published package `openreward`.

    python ors.py URL NAME COMMANDS [KEY]

NAME is the environment that the client asks for. COMMANDS is a JSON list, such as `[["splits"], ["tasks", "train"], ["open",
"train", 1], ["open_task", {"x": 1}], ["tools"], ["prompt"], ["call", "add", {"number": 1}], ["close"]]`. `["pause"]` prints a
line and waits for one. Prints one JSON line with the result or the error of each.
"""

import asyncio
import json
import sys

from openreward.api.environments.client import AsyncEnvironmentsAPI
from openreward.api.environments.types import Task


def text_of(blocks):
    return "".join(block.text for block in blocks)


class Player:
    def __init__(self, environment):
        self.environment = environment
        self.session = None

    async def open(self, **options):
        session = self.environment.session(**options)
        await session.__aenter__()
        self.session = session
        return session.sid

    async def run(self, name, *arguments):
        if name == "pause":
            print("paused", flush=True)
            return await asyncio.to_thread(sys.stdin.readline)
        if name == "splits":
            return await self.environment.list_splits()
        if name == "tasks":
            return [task.task_spec for task in await self.environment.list_tasks(arguments[0])]
        if name == "range":
            return [task.task_spec for task in await self.environment.get_task_range(*arguments)]
        if name == "num_tasks":
            return await self.environment.num_tasks(arguments[0])
        if name == "open":
            return await self.open(split=arguments[0], index=arguments[1])
        if name == "open_task":
            task = Task(
                server_name=self.environment.server,
                environment_name=arguments[1],
                task_spec=arguments[0],
                namespace=None,
            )
            return await self.open(task=task)
        if name == "environment_tools":
            return [tool.name for tool in await self.environment.list_tools()]
        if name == "tools":
            return [tool.name for tool in await self.session.list_tools()]
        if name == "prompt":
            return text_of(await self.session.get_prompt())
        if name == "messages":
            return [[message.role, text_of(message.blocks)] for message in await self.session.get_messages()]
        if name == "call":
            output = await self.session.call_tool(arguments[0], arguments[1])
            return {
                "text": text_of(output.blocks),
                "metadata": output.metadata,
                "reward": output.reward,
                "finished": output.finished,
            }
        if name == "close":
            session, self.session = self.session, None
            await session.__aexit__(None, None, None)
            return None
        raise SystemExit(f"unknown command {name}")


async def main(url, name, commands, key):
    results = []
    async with AsyncEnvironmentsAPI(base_url=url, api_key=key) as api:
        player = Player(api.get(name))
        for command in commands:
            try:
                results.append(await player.run(*command))
            except Exception as error:  # The error is what the client's user sees.
                results.append({"error": f"{type(error).__name__}: {error}"})
        if player.session is not None:
            await player.run("close")
    print(json.dumps(results))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else ""))
