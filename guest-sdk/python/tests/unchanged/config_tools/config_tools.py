"""A configuration in the module, with tools in it."""

from typing import Any

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, ConcurrencyConfig, Grader, GraderContext
from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel, OsmosisStrandsAgent
from strands import tool


@tool
def double(number: int) -> int:
    """Double a number."""
    return number * 2


class DoublingConfig(AgentWorkflowConfig):
    tools: list[Any]
    stops: tuple[str, ...] = ()


class Doubling(AgentWorkflow[DoublingConfig]):
    async def run(self, ctx: AgentWorkflowContext[DoublingConfig]):
        agent = OsmosisStrandsAgent(model=OsmosisRolloutModel(), tools=ctx.config.tools, messages=ctx.prompt)
        await agent.invoke_async()


config = DoublingConfig(
    name="doubling", concurrency=ConcurrencyConfig(max_concurrent=8), tools=[double], stops=("####",)
)


class SaysTheLabel(Grader):
    async def grade(self, ctx: GraderContext):
        for sample_id, sample in ctx.get_samples().items():
            text = sample.messages[-1]["content"][0]["text"]
            ctx.set_sample_reward(sample_id, 1.0 if text.endswith(ctx.label) else 0.0)
