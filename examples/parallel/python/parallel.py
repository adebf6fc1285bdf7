"""Several calls of the model at once.

Where the caller takes several samples, each attempt is a sample of its own, rated by
itself. Where it takes one, the attempts vote, and the sample holds the winner.
"""

import asyncio

from rollout_sdk import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ChatError,
    Completion,
    Grader,
    GraderContext,
    answer_after,
    log,
    parse_number,
    same_number,
)

MARKER = "####"


class Config(AgentWorkflowConfig, extra="forbid"):
    """What the operator may configure."""

    attempts: int = 5
    """How many attempts are made at once, at least 1."""
    temperature: float = 1.0
    """How freely the model chooses its words: 0 makes all attempts alike."""


class Parallel(AgentWorkflow[Config]):
    async def run(self, ctx: AgentWorkflowContext[Config]) -> None:
        if ctx.samples_max == 1:
            await vote(ctx)
        else:
            await attempt_each(ctx)


async def vote(ctx: AgentWorkflowContext[Config]) -> None:
    """One sample, which holds the first of the attempts whose answer most agree on."""
    sample = ctx.sample
    sample.push(*ctx.prompt)
    asked = (
        sample.chat(ctx.prompt, temperature=ctx.config.temperature) for _ in range(max(1, ctx.config.attempts))
    )
    replies = successes(await asyncio.gather(*asked, return_exceptions=True))

    answers = [answer(reply) for reply in replies]
    winner = max(range(len(replies)), key=lambda place: answers.count(answers[place]))

    sample.push(replies[winner].message)
    sample.metric("agreement", answers.count(answers[winner]) / len(replies))
    sample.field("answers", answers)


async def attempt_each(ctx: AgentWorkflowContext[Config]) -> None:
    """A sample an attempt, as many as the caller takes. An attempt without a reply is
    withdrawn, and the grader gives it no reward: it was not the model that failed."""
    attempts = max(1, min(ctx.config.attempts, ctx.samples_max))
    samples = [ctx.open_sample(f"attempt-{place}") for place in range(attempts)]
    asked = (sample.chat(ctx.prompt, temperature=ctx.config.temperature) for sample in samples)
    replies = await asyncio.gather(*asked, return_exceptions=True)
    for sample, reply in zip(samples, replies, strict=True):
        sample.push(*ctx.prompt)
        if isinstance(reply, Completion):
            sample.push(reply.message)
        else:
            log.warn(f"{sample.id} has no reply: {reply}")
            sample.withdraw()
    successes(replies)


def successes(replies: list[Completion | BaseException]) -> list[Completion]:
    """The replies that came. One is enough to go on with; without any, the first error
    says why."""
    came = [reply for reply in replies if isinstance(reply, Completion)]
    for reply in replies:
        if isinstance(reply, BaseException) and not (came and isinstance(reply, ChatError)):
            raise reply
    return came


def answer(reply: Completion) -> str:
    """The answer in a form in which equal answers are equal texts; empty for none."""
    text = answer_after(reply.text, MARKER) or ""
    number = parse_number(text)
    return text if number is None else str(number)


class RateEach(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        label = ctx.require_label()
        for sample in ctx.samples.values():
            if sample.messages and sample.messages[-1].get("role") == "assistant":
                sample.reward = same_number(sample.answer_after(MARKER) or "", label)
