"""A Strands agent that is called without `await`, with hooks and a window."""

import logging

from osmosis_ai.rollout import AgentWorkflow, Grader, GraderContext
from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel
from strands import Agent, tool
from strands.agent.conversation_manager import SlidingWindowConversationManager
from strands.hooks import AfterToolCallEvent, BeforeInvocationEvent, HookProvider, HookRegistry

logger = logging.getLogger(__name__)
seen = []


@tool
def double(number: int) -> int:
    """Double a number."""
    return number * 2


class Watch(HookProvider):
    def register_hooks(self, registry: HookRegistry, **kwargs):
        registry.add_callback(BeforeInvocationEvent, lambda event: seen.append("invoked"))
        registry.add_callback(AfterToolCallEvent, self.after_tool)

    def after_tool(self, event):
        logger.info("tool %s", event.tool_use["name"])
        seen.append(event.result["content"][0]["text"])


class Doubling(AgentWorkflow):
    async def run(self, ctx):
        agent = Agent(
            model=OsmosisRolloutModel(),
            tools=[double],
            system_prompt="Use the tool.",
            hooks=[Watch()],
            conversation_manager=SlidingWindowConversationManager(window_size=10),
        )
        result = agent(ctx.prompt[-1]["content"])
        seen.append(str(result).strip())


class SaysTheLabel(Grader):
    async def grade(self, ctx: GraderContext):
        ctx.set_reward(float(ctx.sample.messages[-1]["content"][0]["text"].endswith(ctx.label)))
