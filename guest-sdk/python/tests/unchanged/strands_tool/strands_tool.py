"""A workflow with a Strands agent and a tool, and a grader in another file."""

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext
from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel, OsmosisStrandsAgent
from strands import tool
from strands_grader import TwiceGrader  # noqa: F401


@tool
def double(number: int) -> int:
    """Double a number.

    Args:
        number: The number.
    """
    return number * 2


class Doubling(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext):
        agent = OsmosisStrandsAgent(
            name="main",
            model=OsmosisRolloutModel(params={"temperature": 1.0, "max_tokens": 256}),
            tools=[double],
            messages=ctx.prompt,
            callback_handler=None,
        )
        await agent.invoke_async()
