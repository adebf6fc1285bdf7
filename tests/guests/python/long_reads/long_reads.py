"""A typical agent: it calls a tool repeatedly, whose results have the length that the model requests. The same as
`examples/long_reads.rs`, for `scripts/bench-languages`."""

from rollout_sdk import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext, same_number, tool


@tool
def read(bytes: int) -> str:
    """Reads a number of bytes."""
    return "x" * bytes


class LongReads(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        await ctx.agent(tools=[read], max_turns=1000).run()


class SameNumber(Grader):
    async def grade(self, ctx: GraderContext) -> float:
        return same_number(ctx.sample.answer_after("####") or "", ctx.require_label())
