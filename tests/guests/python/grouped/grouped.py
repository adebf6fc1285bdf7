"""A workflow that calls the model once, a grader, and a group grader that compares the answers."""

from rollout_sdk import *


class Member(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        await ctx.agent().run()


class SameNumber(Grader):
    async def grade(self, ctx: GraderContext) -> float:
        return same_number(ctx.sample.answer_after("####") or "", ctx.require_label())


class Ranked(GroupGrader):
    """Rates each answer by its rank among the numbers of the group, from 0 to 1."""

    async def grade_group(self, ctx: GroupContext) -> list[float] | None:
        if ctx.id.startswith("reject"):
            raise Failed(f"there is no order among {len(list(ctx.samples))} samples")
        numbers = [float(sample.answer_after("####") or "") for sample in ctx.samples]
        ranks = [sum(other < number for other in numbers) / max(len(numbers) - 1, 1) for number in numbers]
        for member, rank in zip(ctx.members, ranks, strict=True):
            (sample,) = member.samples
            assert member.label == "2"
            sample.metric("before", -1.0 if sample.reward is None else sample.reward)
            sample.metric("failed", len(ctx.failed))
            if not ctx.id.startswith("forget"):
                sample.rate(rank)
        return None if "rated" in ctx.id or "forget" in ctx.id else ranks
