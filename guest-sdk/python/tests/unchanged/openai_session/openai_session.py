"""A workflow with OpenAI Agents and a session."""

from agents import ModelSettings, RunHooks, Runner, function_tool, set_tracing_disabled
from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, Grader, GraderContext
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)

set_tracing_disabled(True)
seen = []


@function_tool
def double(number: int) -> int:
    """Double a number."""
    return number * 2


class Watch(RunHooks):
    async def on_tool_end(self, context, agent, tool, result):
        seen.append((agent.name, tool.name, result))


class Doubling(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]):
        agent = OsmosisAgent(
            name="solver",
            instructions="Use the tool.",
            model=OsmosisRolloutModel(),
            model_settings=ModelSettings(temperature=0.5),
            tools=[double],
        )
        result = await Runner.run(agent, input=ctx.prompt, session=OsmosisMemorySession(), hooks=Watch())
        seen.append(result.final_output)


class SaysTheLabel(Grader):
    async def grade(self, ctx: GraderContext):
        items = ctx.sample.messages
        called = [item for item in items if item.get("type") == "function_call"]
        said = items[-1]["content"][0]["text"]
        ctx.set_reward(1.0 if called and said.endswith(ctx.label) else 0.0)
