"""Behaviours that only a Python guest can have, correct and incorrect."""

import _thread
import asyncio
import concurrent.futures
import gc
import os
import queue
import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable

from rollout_sdk import AgentWorkflowConfig, AgentWorkflowContext, Invalid, Messages, message


def deep(level: int) -> int:
    return deep(level + 1) + 1


def divide(a: int, b: int) -> float:
    return a / b


async def behave(what: str, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> Messages | None:
    """Runs the behaviour that the prompt names and reports the result."""
    found: object = None
    match what:
        case "divide":
            divide(1, 0)
        case "recurse":
            deep(0)
        case "exit":
            sys.exit(3)
        case "import":
            import nosuch  # type: ignore[import-not-found]

            found = nosuch
        case "value":
            int("many")
        case "type":
            divide(1, "2")  # type: ignore[arg-type]
        case "own timeout":
            async with asyncio.timeout(0.05):
                await asyncio.sleep(60)
        case "deadlock":
            threading.Event().wait()
        case "late":
            found = late_imports()
        case "look":
            found = look()
        case "processes":
            found = await processes()
        case "elsewhere":
            found = elsewhere()
        case "threads":
            found = await threads()
        case "alarm":
            found = alarms()
        case "timer":
            found = await timers()
        case "metrics":
            ctx.sample.metrics["height"] = 1.5
            ctx.sample.metrics.update(depth=2)
        case "random":
            found = [random.random(), str(uuid.uuid4())]
        case "count":
            found = counted()
        case "wait for nothing":
            await asyncio.get_running_loop().create_future()
        case "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(60))
                group.create_task(refuse())
        case "timeout":
            found = await time_out(ctx)
        case "sleep":
            await asyncio.gather(*(asyncio.sleep(0.3) for _ in range(5)))
            found = "slept"
        case "leave":
            asyncio.get_running_loop().create_task(asyncio.sleep(60))
            found = "left a task behind"
        case "thread":
            found = await asyncio.to_thread(sum, [1, 2])
        case "surrogate":
            found = "half \ud83d of a pair"
        case "object":
            return [{"role": "assistant", "content": object()}]
        case _:
            raise Invalid(f"unknown behaviour: {what}")
    return [*ctx.prompt, message.assistant(str(found))]


MADE_WHEN_BUILT = [{"a": [1, 2]} for _ in range(100)]


def counted() -> str:
    """Returns which objects have counted references, after a garbage collection."""
    made_now: list[object] = []
    made_now.append(made_now)
    gc.collect()
    MADE_WHEN_BUILT.pop()
    made_now.clear()
    gc.collect()
    built = [MADE_WHEN_BUILT, MADE_WHEN_BUILT[0]["a"], counted, counted.__code__, AgentWorkflowConfig]
    return f"{[sys.getrefcount(each) < 1 << 28 for each in (*built, made_now)]}"


async def refuse() -> None:
    raise Invalid("told to refuse")


async def time_out(ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> str:
    """Makes two calls, and abandons one of them."""
    first = asyncio.create_task(ctx.sample.chat([message.user("Calculate 1 + 1.")]))
    try:
        async with asyncio.timeout(0.2):
            await ctx.sample.chat([message.user("Calculate 2 + 2.")])
    except TimeoutError:
        first.cancel()
        return "timed out"
    return "was answered"


def late_imports() -> str:
    """Loads modules, codecs and data that were not used while the component was built."""
    import colorsys
    import importlib.resources
    import importlib.util
    import pkgutil
    import sched
    from pathlib import Path

    import late_package
    from late_package import inner

    beside = Path(inner.__file__).with_name("table.txt").read_text()
    spec = importlib.util.spec_from_file_location("by_path", inner.__file__)
    assert spec is not None and spec.loader is not None
    by_path = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(by_path)
    return str(
        [
            colorsys.rgb_to_hls(1, 0, 0)[1],
            sched.scheduler.__name__,
            inner.twice(21),
            importlib.resources.files(late_package).joinpath("table.txt").read_text() == beside,
            beside.strip(),
            [module.name for module in pkgutil.iter_modules(late_package.__path__)],
            "\u20ac".encode("cp1252"),
            "\u3042".encode("shift_jisx0213"),
            by_path.twice(3),
        ]
    )


def look() -> str:
    """Checks for files before opening them, and finds exactly those that can be opened."""
    import doctest
    import glob
    import importlib.resources
    from pathlib import Path

    import late_package

    place = Path(late_package.__file__).parent
    table = place / "table.txt"
    with os.scandir(place) as entries:
        scanned = sorted(each.name for each in entries if each.is_file() and each.name.endswith(".txt"))
    with importlib.resources.as_file(importlib.resources.files(late_package) / "table.txt") as copied:
        pass
    return str(
        [
            table.exists(),
            os.path.isfile(table),
            os.path.getsize(table) == len(table.read_bytes()),
            place.is_dir(),
            (place / "nothing.txt").exists(),
            scanned,
            [Path(each).name for each in glob.glob(f"{place}/*.txt")],
            [names for _, _, names in os.walk(place)][0].count("table.txt"),
            (os.access(table, os.R_OK), os.access(table, os.W_OK)),
            doctest.run_docstring_examples.__name__,
            str(copied) == str(table),
        ]
    )


def said_of(work: Callable[[], object]) -> str:
    try:
        return repr(work())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


async def processes() -> str:
    """Tries to start processes, which all raise the same error, and uses pools of threads, which work."""
    import multiprocessing.dummy
    import subprocess
    from multiprocessing.pool import ThreadPool

    with ThreadPool(2) as pool:
        done = [pool.map(abs, [-1, -2]), pool.apply_async(divide, (6, 3)).get(1), list(pool.imap(abs, [-3]))]
        failed = pool.apply_async(divide, (1, 0))
    done += [multiprocessing.dummy.Pool(2).starmap(divide, [(8, 2)]), failed.successful()]
    with multiprocessing.Lock():
        waiting: queue.Queue[int] = multiprocessing.Queue()  # type: ignore[assignment]
        waiting.put(5)
        done.append(waiting.get())
    starts: list[Callable[[], object]] = [
        lambda: multiprocessing.Pool(2),
        multiprocessing.Process(target=print).start,
        lambda: os.system("true"),
        lambda: subprocess.run(["true"], check=False),
        lambda: os.kill(os.getpid() + 1, signal.SIGTERM),
    ]
    refused = [said_of(start).partition(":")[0] for start in starts]
    try:
        await asyncio.create_subprocess_exec("true")
    except OSError as error:
        refused.append(str(error).partition(": ")[0])
    return str([done, refused])


def elsewhere() -> str:
    """Calls functions that Python has on every system: they return facts, or raise their usual exceptions."""
    import ctypes.util
    import locale
    from pathlib import Path

    def in_zone(zone: str) -> None:
        os.environ["TZ"] = zone
        time.tzset()

    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        print("lost", file=nowhere)
    begun = _thread.start_new_thread(divide, (4, 2))
    return str(
        [
            said_of(lambda: locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")).partition(":")[0],
            locale.setlocale(locale.LC_ALL, locale.setlocale(locale.LC_ALL, "C")),
            said_of(lambda: in_zone("UTC")),
            said_of(lambda: in_zone("Europe/Berlin")).partition(":")[0],
            said_of(os.get_terminal_size).partition(":")[0],
            time.thread_time() >= 0,
            begun == threading.get_native_id(),
            signal.SIGALRM in signal.valid_signals(),
            ctypes.util.find_library("c"),
            said_of(lambda: ctypes.CDLL("libc.so.6")).partition(":")[0],
            Path(os.devnull).read_text(),
            (os.getuid() == os.geteuid(), str(Path.home())),
        ]
    )


async def later(value: int) -> int:
    await asyncio.sleep(0.01)
    return value


async def threads() -> str:
    """Uses threads, pools, queues, and separate event loops."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(threading.current_thread().name), name="worker")
    thread.start()
    thread.join()
    found += [thread.is_alive(), threading.current_thread() is threading.main_thread()]
    with concurrent.futures.ThreadPoolExecutor(4, initializer=found.append, initargs=("begun",)) as pool:
        found += pool.map(abs, [-1, -2])
        found.append(pool.submit(asyncio.run, later(3)).result())
        futures = [pool.submit(divide, 1, by) for by in (0, 1)]
        found += [type(each.exception()).__name__ for each in futures]
        found.append(await asyncio.get_running_loop().run_in_executor(pool, divmod, 7, 4))
    found.append(await asyncio.to_thread(asyncio.run, later(4)))
    items: queue.Queue[int] = queue.Queue()
    lock, event = threading.Lock(), threading.Event()
    # A thread that waits forever for another one.
    threading.Thread(target=event.wait, daemon=True).start()
    with lock, threading.RLock():
        items.put(5)
        found += [items.get(), event.wait(0.01), lock.acquire(timeout=0.01)]
    try:
        items.get(timeout=0.01)
    except queue.Empty:
        found.append("empty")
    return str(found)


def alarms() -> str:
    """Sets an alarm, which fires when the clock reaches its time, and not during a computation."""

    def handle(*_: object) -> None:
        raise TimeoutError("alarm")

    signal.signal(signal.SIGALRM, handle)
    signal.alarm(100)
    sum(range(1000))
    found: list[object] = [signal.alarm(0)]
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    begun = time.monotonic()
    try:
        time.sleep(60)
    except TimeoutError as error:
        found += [str(error), time.monotonic() - begun < 30]
    return str(found)


async def timers() -> str:
    found: list[object] = []
    timer = threading.Timer(0.05, found.append, ["came"])
    stopped = threading.Timer(0.05, found.append, ["never"])
    timer.start()
    stopped.start()
    stopped.cancel()
    found.append(timer.is_alive())
    await asyncio.sleep(0.2)
    found.append(timer.is_alive())
    again = threading.Timer(0.05, found.append, ["joined"])
    again.start()
    again.join()
    return str(found)
