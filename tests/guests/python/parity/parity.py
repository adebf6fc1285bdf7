"""Behaves as each prompt says, exactly like `examples/parity.rs`."""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Annotated, Any

from only_python import behave
from rollout_sdk import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Failed,
    Grader,
    GraderContext,
    Invalid,
    Messages,
    RolloutError,
    RolloutSample,
    Stop,
    TimedOut,
    artifact,
    log,
    message,
    same_number,
    tool,
)


class Config(AgentWorkflowConfig, extra="forbid"):
    greeting: str = "Hello."
    turns: int = 3


Context = AgentWorkflowContext[Config]


@tool
def join(
    words: Annotated[list[str], "The words to join."],
    *,
    between: Annotated[str | None, "The separator."] = None,
    loud: bool,
) -> str:
    """Joins words."""
    if not words:
        raise Failed("there are no words")
    text = (" " if between is None else between).join(words)
    return text.upper() if loud else text


class Parity(AgentWorkflow[Config]):
    async def run(self, ctx: Context) -> Messages | None:
        asked = message.text_of(ctx.prompt[-1])
        if asked.startswith("python: "):
            return await behave(asked.removeprefix("python: "), ctx)
        match asked:
            case "messages":
                odd = {"role": "assistant", "content": "caf\u00e9 \U0001f600 \0\u2028"}
                return [*ctx.prompt, {**odd, "x": [1.5, -0.0, 12345678901234567890, None]}]
            case "push":
                push(ctx)
            case "names":
                names(ctx)
            case "parallel":
                await parallel(ctx)
            case "refused" | "no json":
                return await told_by_chat(ctx)
            case "reserved":
                return await told_by_chat(ctx, model="mine")
            case "budget":
                await budget(ctx)
            case "artifacts":
                return artifacts(ctx)
            case "config":
                return report(ctx, [ctx.config.greeting, ctx.config.turns])
            case "context":
                return report(ctx, [ctx.rollout_id, ctx.attempt, ctx.metadata])
            case "tools":
                await tools(ctx)
            case "log":
                return speak(ctx)
            case "fail":
                raise Failed("told to fail")
            case "refuse":
                raise Invalid("told to refuse")
            case "time out":
                raise TimedOut("told to run out of time")
            case "unhandled":
                await ctx.sample.chat(ctx.prompt)
            case "nothing":
                return None
            case _:
                await ctx.agent().run()
        return None


def report(ctx: Context, found: Any) -> Messages:
    """Returns the prompt with a report as its reply."""
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return [*ctx.prompt, message.assistant(text)]


def push(ctx: Context) -> None:
    sample = ctx.open_sample()
    sample.push(message.user("not kept"))
    sample.replace(ctx.prompt)
    sample.push(message.assistant("one"), message.tool_result("1", "two"))
    sample.metric("height", 1.5)
    sample.metric("height", 2.5)
    sample.field("notes", {"a": [1, "b"]})
    sample.push(message.assistant(text_of(lambda: sample.metric("depth", math.nan))))


def text_of(work: Callable[[], Any]) -> str:
    try:
        work()
    except RolloutError as error:
        return str(error)
    return "done"


def names(ctx: Context) -> None:
    first = ctx.open_sample("first")
    told = [text_of(lambda: ctx.open_sample(name)) for name in ("first", "caf\u00e9", "second")]
    first.push(message.assistant("\n".join(told)))
    first.withdraw()


async def parallel(ctx: Context) -> None:
    sample = ctx.open_sample()
    replies = await asyncio.gather(
        *(sample.chat([message.user(f"Calculate {number} + 10.")]) for number in range(1, 4))
    )
    sample.push(message.assistant("\n".join(reply.text for reply in replies)))


async def told_by_chat(ctx: Context, **params: Any) -> Messages:
    try:
        await ctx.sample.chat(ctx.prompt, **params)
    except RolloutError as error:
        return report(ctx, str(error))
    return report(ctx, "done")


async def budget(ctx: Context) -> None:
    agent = ctx.agent()
    for number in range(1, 5):
        run = await agent.say(message.user(f"Calculate {number} + {number}.")).run()
    run.sample.metric("spent", run.stop == Stop.BUDGET_SPENT)


def artifacts(ctx: Context) -> Messages:
    artifact.write("notes/a.txt", "first")
    artifact.write("notes/a.txt", "caf\u00e9")
    artifact.write("b.bin", bytes([0, 255]))
    told = [text_of(lambda: artifact.write("../up", "x")), text_of(lambda: artifact.read("none"))]
    return report(ctx, [artifact.names(), list(artifact.read("b.bin")), told])


async def tools(ctx: Context) -> None:
    run = await ctx.agent("Use the tool.", tools=[join], max_turns=4, temperature=0.5).run()
    run.sample.metric("tool_calls", run.tool_calls)
    run.sample.metric("turns", run.turns)


def speak(ctx: Context) -> Messages:
    log.debug("one")
    log.info("caf\u00e9")
    log.warn("three")
    log.error("four")
    log.event("step", {"n": 1})
    print("printed")
    return report(ctx, "spoken")


class Rate(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        for sample in ctx.samples.values():
            rate(ctx, sample)


def rate(ctx: GraderContext, sample: RolloutSample) -> None:
    match ctx.label:
        case "withdraw":
            sample.reward = 0.5
            sample.withdraw()
        case "none":
            pass
        case "infinite":
            sample.reward = math.inf
        case "observe":
            observed = sample.observed()
            sample.reward = 0.25
            sample.metric("observed", len(observed))
            sample.metric("replied", sum(exchange.error is None for exchange in observed))
        case "artifact":
            sample.reward = len(artifact.read("b.bin"))
        case "fail":
            raise Failed("the grader was told to fail")
        case "metric":
            sample.reward = sample.metrics.get("height", 0.0)
        case None:
            sample.reward = 1.0
        case label:
            sample.reward = same_number(sample.answer_after("####") or "", label)
