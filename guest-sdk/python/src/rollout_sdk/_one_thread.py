"""Threads, timers and alarms in a component, which has one thread and a clock that does not advance while it computes.

- A thread runs to its end when it is started, and an executor's work when it is submitted. So `start`, `submit` and
  `asyncio.to_thread` give the same results as elsewhere, one after another.
- Locks, conditions, events and queues work. A wait for another thread without a timeout is an error, because that
  thread can no longer act; a wait with a timeout takes that time. A daemon thread that waits for others ends there: it
  is assumed to be a watcher.
- A timer and an alarm (`signal.alarm`, `signal.setitimer`) fire when the clock reaches their time. It advances during
  sleeps and waits for the host, never during computation, so neither interrupts a computation; the host's limit of CPU
  time does.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import contextvars
import inspect
import math
import queue
import signal
import threading
import time
from asyncio import events
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import thread as pool
from typing import Any, TypeVar

from . import _host, _refused
from .errors import OutsideOfHost

T = TypeVar("T")

_sleep = time.sleep


def install() -> None:
    """Replaces the functions that start threads or wait for them."""
    thread: Any = threading.Thread
    thread.start = _start_thread
    threads: Any = _thread
    threads.start_new_thread = threads.start_new = _start_new_thread
    timer: Any = threading.Timer
    timer.start = _start_timer
    condition: Any = threading.Condition
    condition.wait = _wait_on_condition
    modules: Any = threading
    modules.Lock = Lock
    modules._allocate_lock = Lock
    queues: Any = queue
    # The queue in C would wait outside of Python's control.
    queues.SimpleQueue = queues._PySimpleQueue
    workers: Any = pool
    workers.queue.SimpleQueue = queues.SimpleQueue
    executor: Any = ThreadPoolExecutor
    executor.submit = _submit
    clock: Any = time
    clock.sleep = sleep
    signals: Any = signal
    signals.alarm = alarm
    signals.setitimer = set_timer
    signals.getitimer = get_timer
    signals.ITIMER_REAL, signals.ITIMER_VIRTUAL, signals.ITIMER_PROF = range(3)
    signals.ItimerError = OSError


class Deadlock(RuntimeError):
    """A wait for another thread that can never end."""

    def __init__(self) -> None:
        _refused.note("thread", "waiting")
        super().__init__(
            "waits for another thread, and a component has one: a thread runs where it is started, so "
            "whatever this waits for can no longer happen"
        )


class _Parked(BaseException):
    """Ends a daemon thread that waits for others."""


# Time.


class _Due:
    """An action that is due at a time."""

    def __init__(self, delay: float, action: Callable[[], None]) -> None:
        self.at = time.monotonic() + max(delay, 0.0)
        self.action = action
        _due.append(self)

    def left(self) -> float:
        return self.at - time.monotonic()

    def cancel(self) -> None:
        with contextlib.suppress(ValueError):
            _due.remove(self)


_due: list[_Due] = []


def time_to_next() -> float | None:
    """Returns the seconds until the next action is due; None if there is none."""
    return max(min(each.left() for each in _due), 0.0) if _due else None


def do_what_is_due() -> None:
    """Runs the actions that are due, in order. Their exceptions are raised where the program waits, as for a signal."""
    while ready := [each for each in _due if each.left() <= 0]:
        first = min(ready, key=lambda each: each.at)
        first.cancel()
        first.action()


def sleep(seconds: float) -> None:
    """Implements `time.sleep`, and runs the actions that become due."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    if not _due:
        _rest(seconds)
        return
    end = time.monotonic() + seconds
    while (following := time_to_next()) is not None and following <= (left := end - time.monotonic()):
        if left > 0 and following > 0:
            _rest(following)
        do_what_is_due()
    _rest(end - time.monotonic())


def _rest(seconds: float) -> None:
    """Sleeps for whole milliseconds by the host's wait, because the clock advances during that and not during the
    system's sleep."""
    if seconds <= 0:
        return
    try:
        _host.wait([], math.ceil(seconds * 1000))
    except OutsideOfHost:
        _sleep(seconds)


# Signals.


class _Alarm:
    """An interval timer. Its signal is raised where the program waits."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._due: _Due | None = None
        self._interval = 0.0

    def get(self) -> tuple[float, float]:
        left = 0.0 if self._due is None else max(self._due.left(), 1e-6)
        return left, self._interval if self._due else 0.0

    def set(self, seconds: float, interval: float) -> tuple[float, float]:
        before = self.get()
        if self._due is not None:
            self._due.cancel()
        self._due = _Due(seconds, self._ring) if seconds > 0 else None
        self._interval = interval
        return before

    def _ring(self) -> None:
        self._due = _Due(self._interval, self._ring) if self._interval > 0 else None
        handler = signal.getsignal(self._number)
        if callable(handler):
            handler(self._number, inspect.currentframe())
        elif handler != signal.SIG_IGN:
            raise SystemExit(f"alarm: signal {self._number} came, and nothing handles it")


_real = _Alarm(signal.SIGALRM)
# These timers count computing time, which never advances in a component.
_never = {1: _Alarm(signal.SIGVTALRM), 2: _Alarm(signal.SIGPROF)}


def alarm(seconds: int) -> int:
    """Implements `signal.alarm`."""
    if seconds > 0:
        _refused.note("alarm", "signal.alarm")
    left, _ = _real.set(seconds, 0.0)
    return int(left + 0.999999)


def set_timer(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
    """Implements `signal.setitimer`."""
    if seconds > 0:
        _refused.note("alarm", "signal.setitimer")
    if which in _never:
        return 0.0, 0.0
    if which != 0 or seconds < 0 or interval < 0:
        raise OSError(22, "Invalid argument")
    return _real.set(seconds, interval)


def get_timer(which: int) -> tuple[float, float]:
    """Implements `signal.getitimer`."""
    return _real.get() if which == 0 else (0.0, 0.0)


# Threads.


class _Handle:
    """Replaces the system's thread handle."""

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.done = False

    def is_done(self) -> bool:
        return self.done

    def join(self, timeout: float | None = None) -> None:
        """Waits for the thread. If it has not ended, the caller runs within it."""
        if self.done:
            return
        if timeout is None:
            raise Deadlock
        sleep(timeout)

    def _set_done(self) -> None:
        self.done = True


def run_apart(work: Callable[[], T]) -> T:
    """Runs work outside of the current task, so that it may run its own event loop."""
    loop = events._get_running_loop()
    if loop is None:
        return work()
    tasks: Any = asyncio.tasks
    task = asyncio.current_task(loop)
    if task is not None:
        tasks._leave_task(loop, task)
    events._set_running_loop(None)
    try:
        return work()
    finally:
        events._set_running_loop(loop)
        if task is not None:
            tasks._enter_task(loop, task)


def _check_unstarted(thread: Any) -> None:
    if not thread._initialized:
        raise RuntimeError("thread.__init__() not called")
    if thread._started.is_set():
        raise RuntimeError("threads can only be started once")
    if thread._context is None:
        thread._context = contextvars.Context()


@contextlib.contextmanager
def _current(thread: Any) -> Generator[None, None, None]:
    """Makes the thread the current one in a `with` block."""
    active: dict[int, Any] = vars(threading)["_active"]
    ident = threading.get_ident()
    before = active.get(ident)
    active[ident] = thread
    try:
        yield
    finally:
        if before is None:
            del active[ident]
        else:
            active[ident] = before


def _run_as(thread: Any, work: Callable[[], object]) -> None:
    """Runs a thread to its end."""
    try:
        with _current(thread):
            try:
                run_apart(lambda: thread._context.run(work))
            except _Parked:
                # The thread waits for a change that no other thread can make.
                pass
            except BaseException:
                thread._invoke_excepthook(thread)
    finally:
        thread._os_thread_handle.done = True


def _start_thread(thread: Any) -> None:
    """Implements `Thread.start`: runs the thread."""
    _check_unstarted(thread)
    thread._os_thread_handle = _Handle()
    thread._ident = thread._native_id = threading.get_ident()
    thread._started.set()
    _run_as(thread, thread.run)


def _start_new_thread(
    function: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
) -> int:
    """Implements `_thread.start_new_thread`: runs the thread."""
    threading.Thread(target=function, args=args, kwargs=kwargs or {}).start()
    return threading.get_ident()


class _TimerHandle(_Handle):
    """The handle of a timer, which runs when it is due or joined."""

    def __init__(self, timer: Any) -> None:
        super().__init__()
        self._timer = timer
        self.place = _refused.place_of("threading.Timer.start")
        self._due = _Due(timer.interval, self._ring)
        _timers.append(self)

    def never_came(self) -> bool:
        """Returns whether a program would still wait for the timer."""
        return not self.is_done() and not self._timer.daemon

    def _ring(self) -> None:
        timer = self._timer
        if not timer.finished.is_set():
            _run_as(timer, lambda: timer.function(*timer.args, **timer.kwargs))
            timer.finished.set()
        self.done = True

    def is_done(self) -> bool:
        return self.done or bool(self._timer.finished.is_set())

    def join(self, timeout: float | None = None) -> None:
        if self.is_done():
            self._due.cancel()
            return
        left = max(self._due.left(), 0.0)
        sleep(left if timeout is None else min(timeout, left))


_timers: list[_TimerHandle] = []


def note_timers() -> None:
    """Reports timers that did not fire before the end of the rollout: elsewhere a program waits for them."""
    for each in _timers:
        if each.never_came():
            _refused.note("thread", "", each.place)


def _start_timer(timer: Any) -> None:
    """Implements `Timer.start`: the timer fires when it is due."""
    _check_unstarted(timer)
    timer._os_thread_handle = _TimerHandle(timer)
    timer._ident = timer._native_id = threading.get_ident()
    timer._started.set()


# Waiting for others.


class Lock:
    """Implements `threading.Lock`."""

    __slots__ = ("__weakref__", "_held")

    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        if not self._held:
            self._held = True
            return True
        if blocking:
            wait_for_others(None if timeout == -1 else timeout)
        return False

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False

    def locked(self) -> bool:
        return self._held

    def _at_fork_reinit(self) -> None:
        self._held = False

    acquire_lock, release_lock, locked_lock = acquire, release, locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<{'locked' if self._held else 'unlocked'} lock>"


def wait_for_others(timeout: float | None) -> None:
    """Waits for another thread."""
    if threading.current_thread() is not threading.main_thread() and threading.current_thread().daemon:
        if timeout is None:
            # With a timeout, the thread polls and can do without; without one, it waits forever.
            _refused.note("thread", "waiting in a daemon thread")
        raise _Parked
    if timeout is None:
        # A timer or an alarm may end the wait.
        following = time_to_next()
        if following is None:
            raise Deadlock
        sleep(following)
    else:
        sleep(timeout)


def _wait_on_condition(condition: Any, timeout: float | None = None) -> bool:
    """Implements `Condition.wait`: only a timer or an alarm can notify."""
    if not condition._is_owned():
        raise RuntimeError("cannot wait on un-acquired lock")
    waiter = Lock()
    waiter.acquire()
    condition._waiters.append(waiter)
    saved = condition._release_save()
    try:
        end = None if timeout is None else time.monotonic() + timeout
        while waiter.locked():
            following = time_to_next()
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return False
            known = [each for each in (left, following) if each is not None]
            wait_for_others(min(known) if known else None)
        return True
    finally:
        condition._acquire_restore(saved)
        with contextlib.suppress(ValueError):
            condition._waiters.remove(waiter)


def _submit(executor: Any, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
    """Implements `ThreadPoolExecutor.submit`: runs the function."""
    if executor._broken:
        raise executor.BROKEN(executor._broken)
    if executor._shutdown:
        raise RuntimeError("cannot schedule new futures after shutdown")
    future: Future[T] = Future()
    worker: Any = threading.Thread(name=f"{executor._thread_name_prefix}_0")
    worker._context = contextvars.Context()
    worker._os_thread_handle = _Handle()
    initialize = _initializer_of(executor)
    if initialize is not None:
        try:
            with _current(worker):
                run_apart(initialize)
        except BaseException:
            workers: Any = pool
            workers._base.LOGGER.critical("Exception in initializer:", exc_info=True)
            executor._broken = "A thread initializer failed, the thread pool is not usable anymore"
            future.set_exception(executor.BROKEN(executor._broken))
            return future
    future.set_running_or_notify_cancel()
    try:
        with _current(worker):
            result = run_apart(lambda: worker._context.run(function, *args, **kwargs))
    except _Parked:
        future.set_exception(Deadlock())
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
    return future


def _initializer_of(executor: Any) -> Callable[[], object] | None:
    """Returns the initializer of a pool's worker, the first time."""
    own: dict[str, Any] = executor.__dict__
    make: Any = own.pop("_create_worker_context", None)
    if make is None:
        return None
    begin: Callable[[], object] = make().initialize
    return begin


