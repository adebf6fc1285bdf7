"""What only a guest in Python can do, right or wrong."""

import asyncio
import gc
import random
import sys
import uuid

from rollout_sdk import AgentWorkflowConfig, AgentWorkflowContext, Invalid, Messages, message


def deep(level: int) -> int:
    return deep(level + 1) + 1


def divide(a: int, b: int) -> float:
    return a / b


async def behave(what: str, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> Messages | None:
    """Does what the prompt says and reports it."""
    found: object = None
    match what:
        case "divide":
            divide(1, 0)
        case "recurse":
            deep(0)
        case "exit":
            sys.exit(3)
        case "import":
            import colorsys

            found = colorsys.__name__
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
            raise Invalid(f"nobody knows how to {what}")
    return [*ctx.prompt, message.assistant(str(found))]


MADE_WHEN_BUILT = [{"a": [1, 2]} for _ in range(100)]


def counted() -> str:
    """Which objects have their references counted, and that the collector works."""
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
    """Asks twice, and gives one of the calls up."""
    first = asyncio.create_task(ctx.sample.chat([message.user("Calculate 1 + 1.")]))
    try:
        async with asyncio.timeout(0.2):
            await ctx.sample.chat([message.user("Calculate 2 + 2.")])
    except TimeoutError:
        first.cancel()
        return "timed out"
    return "was answered"
