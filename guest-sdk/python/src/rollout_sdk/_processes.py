"""Replaces parts of `multiprocessing` in a component, which starts no processes.

Functions that need a process raise `NoProcesses`. Those that need only threads work: `ThreadPool` and
`multiprocessing.dummy` do the work when it is submitted, and locks and queues are those of threads, because there is
one process. The modules are changed when they are imported.
"""

from __future__ import annotations

import concurrent.futures
import errno
import importlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import _after, _refused
from ._older import Never
from ._one_thread import run_apart


NO_PROCESSES = "a component starts no processes; do the work in place, or in threads, which run in place too"


class NoProcesses(OSError):
    """An operation that would start a process."""

    def __init__(self, what: str) -> None:
        _refused.note("process", what)
        super().__init__(
            errno.ENOTSUP,
            f"{what}: {NO_PROCESSES}",
        )


def refusal(what: str) -> Callable[..., Never]:
    """Returns a function that raises, because it would start a process."""

    def refuse(*_: Any, **__: Any) -> Never:
        raise NoProcesses(what)

    return refuse


def install() -> None:
    """Changes the modules when they are imported."""
    _after.change({"multiprocessing.pool": _pool, "multiprocessing.context": _context})
    _change_subprocess()
    futures: Any = concurrent.futures
    futures.ProcessPoolExecutor = NoProcessPool
    # Functions that Python has on every system. Programs test for others (fork) before they use them.
    system: Any = os
    system.system = refusal("os.system")
    system.pipe = refusal("os.pipe")
    system.kill = _kill
    system.getppid = lambda: 0


class NoProcessPool(concurrent.futures.Executor):
    """Replaces `ProcessPoolExecutor`. Packages read and replace its methods while they are imported."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NoProcesses("concurrent.futures.ProcessPoolExecutor")

    submit = map = shutdown = refusal("concurrent.futures.ProcessPoolExecutor")


def _change_subprocess() -> None:
    """Makes `subprocess` raise the same error. `asyncio` imports it, so it is loaded already."""

    def refuse(*_: Any, **__: Any) -> Never:
        _refused.note("process", "subprocess.Popen")
        raise OSError(errno.ENOTSUP, f"subprocess: {NO_PROCESSES}")

    opened: Any = subprocess.Popen
    opened.__init__ = refuse


def _kill(pid: int, number: int, /) -> None:
    """Implements `os.kill`: there is one process."""
    if pid != os.getpid():
        raise ProcessLookupError(errno.ESRCH, "No such process")
    if number:
        signal.raise_signal(number)


# Pools of threads.


class _Done:
    """The result of work that was submitted and is done."""

    def __init__(self, work: Callable[[], Any], callback: Any, error_callback: Any) -> None:
        self._value: Any = None
        self._error: Exception | None = None
        try:
            self._value = run_apart(work)
        except Exception as error:
            self._error = error
        listener = callback if self._error is None else error_callback
        if listener is not None:
            listener(self._value if self._error is None else self._error)

    def get(self, timeout: float | None = None) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, timeout: float | None = None) -> None:
        """Does nothing: the work is done."""

    def ready(self) -> bool:
        return True

    def successful(self) -> bool:
        return self._error is None


class ThreadPool:
    """Implements `multiprocessing.pool.ThreadPool`: runs work when it is submitted."""

    def __init__(
        self, processes: int | None = None, initializer: Callable[..., Any] | None = None, initargs: Iterable[Any] = ()
    ) -> None:
        if processes is not None and processes < 1:
            raise ValueError("Number of processes must be at least 1")
        self._open = True
        if initializer is not None:
            initializer(*initargs)

    def _check(self) -> None:
        if not self._open:
            raise ValueError("Pool not running")

    def apply(self, func: Callable[..., Any], args: Iterable[Any] = (), kwds: dict[str, Any] | None = None) -> Any:
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Iterable[Any] = (),
        kwds: dict[str, Any] | None = None,
        callback: Any = None,
        error_callback: Any = None,
    ) -> _Done:
        self._check()
        return _Done(lambda: func(*args, **(kwds or {})), callback, error_callback)

    def map(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int | None = None) -> list[Any]:
        return list(self.map_async(func, iterable, chunksize).get())

    def map_async(
        self,
        func: Callable[[Any], Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Any = None,
        error_callback: Any = None,
    ) -> _Done:
        self._check()
        return _Done(lambda: [func(each) for each in iterable], callback, error_callback)

    def starmap(
        self, func: Callable[..., Any], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[Any]:
        return list(self.starmap_async(func, iterable, chunksize).get())

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Any = None,
        error_callback: Any = None,
    ) -> _Done:
        self._check()
        return _Done(lambda: [func(*each) for each in iterable], callback, error_callback)

    def imap(self, func: Callable[[Any], Any], iterable: Iterable[Any], chunksize: int = 1) -> Iterator[Any]:
        self._check()
        return _Results(func, iterable)

    imap_unordered = imap

    def close(self) -> None:
        self._open = False

    terminate = close

    def join(self) -> None:
        if self._open:
            raise ValueError("Pool is still running")

    def __enter__(self) -> ThreadPool:
        self._check()
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()


class _Results:
    """The results of `imap`, each computed on request."""

    def __init__(self, func: Callable[[Any], Any], iterable: Iterable[Any]) -> None:
        self._func = func
        self._left = iter(iterable)

    def __iter__(self) -> _Results:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        each = next(self._left)
        return run_apart(lambda: self._func(each))


def _pool(module: Any) -> None:
    module.ThreadPool = ThreadPool
    module.Pool = refusal("multiprocessing.Pool")


# Contexts create the same objects as the package itself.


def _context(module: Any) -> None:
    context: Any = module.BaseContext
    for name in ("Pool", "Manager", "Pipe", "Value", "Array", "RawValue", "RawArray"):
        setattr(context, name, refusal(f"multiprocessing.{name}"))
    for name in ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier"):
        setattr(context, name, _of_context(getattr(threading, name)))
    for name, made in (("Queue", queue.Queue), ("JoinableQueue", queue.Queue), ("SimpleQueue", queue.SimpleQueue)):
        setattr(context, name, _of_context(made))
    process: Any = importlib.import_module("multiprocessing.process").BaseProcess
    process.start = refusal("multiprocessing.Process.start")


def _of_context(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(_context: Any, *args: Any, **kwargs: Any) -> Any:
        return make(*args, **kwargs)

    return made
