"""A configuration in the module, with tools in it."""

from typing import Any

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, ConcurrencyConfig
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
