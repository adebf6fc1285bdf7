"""A workflow in the shape of the Strands framework: only its imports are this package's."""

from rollout_sdk import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, Grader, GraderContext, same_number
from rollout_sdk.strands import Agent, RolloutModel, tool


@tool
def calculator(expression: str) -> int:
    """Works out a sum.

    Args:
        expression: Whole numbers with `+` and `-` between them.
    """
    terms = expression.replace("-", "+-").replace(" ", "").split("+")
    return sum(int(term) for term in terms if term)


class Arithmetic(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None:
        agent = Agent(
            name="solver",
            model=RolloutModel(temperature=0.7),
            tools=[calculator],
            messages=ctx.prompt,
        )
        await agent.invoke_async()


class SameNumber(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        for sample_id, sample in ctx.get_samples().items():
            text = "".join(block.get("text", "") for block in sample.messages[-1]["content"])
            right = same_number(text.rpartition("####")[2], ctx.require_label())
            ctx.set_sample_reward(sample_id, right)
