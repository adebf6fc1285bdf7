"""An event loop whose only idle step is the host's `calls.wait`.

Tasks, futures and timers of `asyncio` are those of the standard library; this module replaces the wait for sockets. A
call in progress is a future, so the calls of one `gather` run concurrently, and timers follow the host's clock.

The first loop is created while the component is built and used for one run, because an instance exists for one run.
Code that creates its own loop, for example in a thread, gets another one. The first loop does not run while another one
runs, as if its thread were busy.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import base_events, events
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

from . import _host, _one_thread, _processes, _unawaited
from ._older import Never, Runner
from .errors import Failed

T = TypeVar("T")
R = TypeVar("R")


class _Stuck(Failed):
    """All tasks wait, and no call or timer can wake one."""

    def __init__(self) -> None:
        super().__init__(
            "waits for an event that cannot happen: no model or tool call is in progress, and no timer is running"
        )


class _Waiting:
    """Replaces the loop's selector: waits for calls instead of sockets."""

    def __init__(self) -> None:
        self._calls: dict[asyncio.Future[None], _host.Call] = {}

    def watch(self, future: asyncio.Future[None], call: _host.Call) -> None:
        self._calls[future] = call

    def forget(self, future: asyncio.Future[None]) -> None:
        self._calls.pop(future, None)

    def select(self, timeout: float | None) -> list[Never]:
        """Waits for calls and timers. The loop calls it between two rounds of callbacks."""
        following = _one_thread.time_to_next()
        if following is not None:
            timeout = following if timeout is None else min(timeout, following)
        self._wait(timeout)
        if following is not None:
            _one_thread.do_what_is_due()
        return []

    def _wait(self, timeout: float | None) -> None:
        if not self._calls:
            if timeout is None:
                raise _Stuck
            if timeout > 0:
                _host.wait([], _millis(timeout))
            return
        futures = list(self._calls)
        for place in _host.wait(list(self._calls.values()), None if timeout is None else _millis(timeout)):
            future = futures[place]
            self.forget(future)
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        self._calls.clear()


def _millis(seconds: float) -> int:
    # Rounded up, so that a wait is never shorter than requested.
    return math.ceil(seconds * 1000)


class GuestLoop(base_events.BaseEventLoop):
    """The event loop of an instance."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Waiting()

    def _process_events(self, event_list: list[Never]) -> None:
        """Does nothing: `select` has processed the events."""

    def __del__(self) -> None:
        """Does nothing: there is nothing to close, and the loop ends with the instance."""

    def _write_to_self(self) -> None:
        """Does nothing: there is no other thread that could wake the loop."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., R], *args: Any
    ) -> asyncio.Future[R]:
        """Calls the function immediately: a component has one thread. `asyncio.to_thread` calls this."""
        if executor is not None:
            return asyncio.wrap_future(executor.submit(func, *args), loop=self)
        future: asyncio.Future[R] = self.create_future()
        try:
            future.set_result(_one_thread.run_apart(lambda: func(*args)))
        except Exception as error:
            future.set_exception(error)
        return future

    async def subprocess_exec(self, protocol_factory: Any, program: Any, *args: Any, **kwargs: Any) -> Never:
        raise _processes.NoProcesses("asyncio.create_subprocess_exec")

    async def subprocess_shell(self, protocol_factory: Any, cmd: Any, *args: Any, **kwargs: Any) -> Never:
        raise _processes.NoProcesses("asyncio.create_subprocess_shell")

    async def outcome(self, call: _host.Call, finish: Callable[[_host.Call], T]) -> T:
        """Waits for a call while other tasks run. A task that is cancelled meanwhile abandons its call."""
        ready: asyncio.Future[None] = self.create_future()
        self._selector.watch(ready, call)
        try:
            await ready
        except asyncio.CancelledError:
            self._selector.forget(ready)
            _host.abandon(call)
            raise
        return finish(call)

    def run_main(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end. Tasks that are unfinished then are cancelled, as in `asyncio.run`."""
        task = self.create_task(main)
        try:
            return self.run_until_complete(task)
        except _Stuck:
            raise self._stuck_error(task) from None
        finally:
            left = asyncio.all_tasks(self)
            _unawaited.warn_of_tasks(left)
            for task in left:
                task.cancel()
            if left:
                self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            inner: Any = self
            if inner._asyncgens:
                self.run_until_complete(self.shutdown_asyncgens())


    def _stuck_error(self, task: asyncio.Task[Any]) -> Failed:
        """Cancels a task where it waits, and returns an error with that location."""
        place = None
        task.cancel()
        try:
            self.run_until_complete(task)
        except (asyncio.CancelledError, _Stuck) as error:
            place = error.__traceback__
        return _Stuck().with_traceback(place)


loop = GuestLoop()
"""This instance's loop."""


def renew() -> None:
    """Recreates the loop, so that it is at the end of the memory."""
    global loop
    loop = GuestLoop()


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end for a caller that does not await it. Other tasks do not run meanwhile."""


    def run() -> T:
        with Runner(loop_factory=GuestLoop) as runner:
            return runner.run(work)

    return _one_thread.run_apart(run)


def install() -> None:
    """Makes `asyncio` create loops of this kind for code that creates its own."""
    of_asyncio: Any = events
    policy = of_asyncio._BaseDefaultEventLoopPolicy()
    policy._loop_factory = GuestLoop
    of_asyncio._set_event_loop_policy(policy)


async def outcome(call: _host.Call, finish: Callable[[_host.Call], T]) -> T:
    """Waits for a call while other tasks run."""
    running = asyncio.get_running_loop()
    if not isinstance(running, GuestLoop):
        raise Failed(f"the host's calls are awaited in the component's own event loop, not in {running!r}")
    return await running.outcome(call, finish)
