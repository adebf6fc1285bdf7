"""The smallest plugin: calls the model once and compares the number after `####` with the label."""

from rollout_sdk import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, Grader, GraderContext, same_number


class OneTurn(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None:
        await ctx.agent().run()


class SameNumber(Grader):
    async def grade(self, ctx: GraderContext) -> float:
        return same_number(ctx.sample.answer_after("####") or "", ctx.require_label())
