"""Several concurrent calls of the model.

If the caller accepts several samples, each attempt becomes a sample with its own reward.
If it accepts one, the attempts vote, and the sample has the winner.
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
    """Configuration of the plugin."""

    attempts: int = 5
    """Number of concurrent attempts, at least 1."""
    temperature: float = 1.0
    """Sampling temperature; 0 makes all attempts alike."""


class Parallel(AgentWorkflow[Config]):
    async def run(self, ctx: AgentWorkflowContext[Config]) -> None:
        if ctx.samples_max == 1:
            await vote(ctx)
        else:
            await attempt_each(ctx)


async def vote(ctx: AgentWorkflowContext[Config]) -> None:
    """Records one sample with the first attempt that has the most frequent answer."""
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
    """Records one sample per attempt, as many as the caller accepts. An attempt without a
    reply is withdrawn and gets no reward, because the model did not fail."""
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
    """Returns the successful replies. One is enough; without any, raises the first error."""
    came = [reply for reply in replies if isinstance(reply, Completion)]
    for reply in replies:
        if isinstance(reply, BaseException) and not (came and isinstance(reply, ChatError)):
            raise reply
    return came


def answer(reply: Completion) -> str:
    """Normalizes the answer, so that equal answers are equal texts. Returns an empty text for none."""
    text = answer_after(reply.text, MARKER) or ""
    number = parse_number(text)
    return text if number is None else str(number)


class RateEach(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        label = ctx.require_label()
        for sample in ctx.samples.values():
            if sample.messages and sample.messages[-1].get("role") == "assistant":
                sample.reward = same_number(sample.answer_after(MARKER) or "", label)
