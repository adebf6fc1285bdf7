"""Starts the host's programs for the tests of trainers' clients.

ROLLOUT_HOST_BIN names the program, ROLLOUT_GUESTS_DIR the folder of the compiled test guests.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[2]

# The scenarios' report, and the modules under test.
sys.path[:0] = [str(HERE.parent), str(PROJECT / "clients/python/src")]

START_SECS = 60.0


def program() -> str:
    return os.environ["ROLLOUT_HOST_BIN"]


def guest(name: str) -> Path:
    """Returns a compiled test guest, or an example of the project by its package's name."""
    guests = Path(os.environ["ROLLOUT_GUESTS_DIR"])
    folder = guests / "../../guest" if name.startswith("example_") else guests
    path = folder / f"{name}.wasm"
    assert path.is_file(), f"there is no {path}"
    return path


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


class Program:
    """A program of the host that listens."""

    def __init__(self, arguments: list[str], directory: Path | None, variables: dict[str, str]) -> None:
        self._arguments = arguments
        self._directory = directory
        self._variables = variables
        self._reading: asyncio.Task[None] | None = None
        self.lines: list[str] = []

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            program(),
            *self._arguments,
            cwd=self._directory,
            env={**os.environ, "RUST_LOG": "warn", **self._variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECS):
            async for line in self._process.stdout:
                self.lines.append(line.decode().rstrip("\n"))
                if self.lines[-1].startswith("listening on "):
                    self.url = self.lines[-1].split()[2]
                    return
        raise AssertionError(f"{self._arguments[0]} ended before it listened")

    async def kill(self) -> None:
        """Ends it at once, without a chance to clean up."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()


@asynccontextmanager
async def running(*arguments: Any, directory: Path | None = None, **variables: str) -> AsyncIterator[Program]:
    """Runs a program until the context ends."""
    started = Program([str(one) for one in arguments], directory, variables)
    await started.start()
    try:
        yield started
    finally:
        await started.kill()


def mock_model(*options: Any) -> Any:
    return running("mock-model", "--listen", "127.0.0.1:0", *options)


def serve(component: str, *options: Any, port: int = 0, directory: Path | None = None, **variables: str) -> Any:
    return running(
        "serve", guest(component), "--listen", f"127.0.0.1:{port}", *options, directory=directory, **variables
    )


async def command(*arguments: Any, directory: Path, **variables: str) -> str:
    """Runs a command of the host and returns its output."""
    ran = await asyncio.create_subprocess_exec(
        program(),
        *map(str, arguments),
        cwd=directory,
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await ran.communicate()
    assert ran.returncode == 0, f"{arguments}: {error.decode()}"
    return out.decode()


class Proxy:
    """Forwards connections to a server, and drops the answers to requests that a test chooses.

    `drop` receives the first bytes of a request; if it returns true, the request reaches the server and its answer is lost.
    """

    def __init__(self, target: str, drop: Any) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._drop = drop
        self.dropped = 0

    async def __aenter__(self) -> Proxy:
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        # Whether the answer to the last request is dropped.
        drops = False

        async def requests() -> None:
            nonlocal drops
            while data := await reader.read(1 << 16):
                drops = drops or self._drop(data)
                up_writer.write(data)
                await up_writer.drain()

        async def answers() -> None:
            while data := await up_reader.read(1 << 16):
                if drops:
                    self.dropped += 1
                    return
                writer.write(data)
                await writer.drain()

        both = [asyncio.ensure_future(requests()), asyncio.ensure_future(answers())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The test has ended. `start_server` would report the cancellation as an error.
            pass
        finally:
            for one in both:
                one.cancel()
            for end in (writer, up_writer):
                end.close()


PAGE = PROJECT / "docs/serve/trainers.md"


def blocks(heading: str, language: str) -> list[str]:
    """Returns the blocks of code below a heading of the page about trainers."""
    section = PAGE.read_text().split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]
    return [part.split("\n```", 1)[0] for part in section.split(f"```{language}\n")[1:]]


def environment() -> dict[str, str]:
    """Returns the variables in which commands of the page find the host, this Python's packages and the modules."""
    folders = [str(Path(program()).parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    source = str(PROJECT / "clients/python/src")
    return {**os.environ, "PATH": os.pathsep.join(folders), "PYTHONPATH": source, "RUST_LOG": "warn"}


async def shell(script: str, directory: Path, **variables: str) -> tuple[int, str]:
    """Runs a script; returns its exit code and its output."""
    ran = await asyncio.create_subprocess_exec(
        "bash",
        *("-euo", "pipefail", "-c", script),
        cwd=directory,
        env={**environment(), **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await ran.communicate()
    finally:
        if ran.returncode is None:
            ran.kill()
    return ran.returncode or 0, out.decode()


def page_script(blocks_of_commands: list[str], server: str, model: str) -> str:
    """Returns commands of the page, with the addresses of running programs."""
    script = "\n".join(blocks_of_commands)
    return script.replace("http://127.0.0.1:9000", server).replace("http://127.0.0.1:9100/v1", model)


def arguments(scenarios: Any, description: str | None, timeout: float) -> Any:
    """Parses the arguments of a driver."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--scenario", action="append", choices=list(scenarios.by_name), metavar="NAME")
    parser.add_argument("--timeout", type=float, default=timeout, help="the timeout of a scenario in seconds")
    return parser.parse_args()
