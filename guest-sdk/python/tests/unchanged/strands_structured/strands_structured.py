"""A Strands agent with structured output, a tool that receives its context, hooks that change actions, state, and
direct tool calls."""

from dataclasses import dataclass

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext
from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel, OsmosisStrandsAgent
from strands import ToolContext, tool
from strands.agent.conversation_manager import SummarizingConversationManager
from strands.hooks import AfterToolCallEvent, BeforeToolCallEvent
from strands.tools.executors import SequentialToolExecutor
from strands.types.content import Messages

seen = []


@dataclass
class Answer:
    """The answer to the sum."""

    value: int
    unit: str | None = None


@tool(context=True)
def double(number: int, tool_context: ToolContext) -> str:
    """Double a number.

    Args:
        number: The number.
    """
    state = tool_context.agent.state
    state.set("calls", (state.get("calls") or 0) + 1)
    seen.append(tool_context.invocation_state["who"])
    return str(number * 2)


def no_large_numbers(event: BeforeToolCallEvent) -> None:
    if event.tool_use["input"].get("number", 0) > 100:
        event.cancel_tool = "too large"


def louder(event: AfterToolCallEvent) -> None:
    seen.append(event.result["status"])


class Doubling(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext):
        agent = OsmosisStrandsAgent(
            model=OsmosisRolloutModel(params={"temperature": 0.2}),
            tools=[double],
            messages=ctx.prompt,
            hooks=[no_large_numbers, louder],
            conversation_manager=SummarizingConversationManager(),
            tool_executor=SequentialToolExecutor(),
        )
        result = await agent.invoke_async(structured_output_model=Answer, invocation_state={"who": "caller"})
        messages: Messages = agent.messages
        seen.append((result.structured_output, agent.state.get("calls"), len(messages)))
        seen.append(result.metrics.accumulated_usage["totalTokens"] > 0)


class SaysTheLabel(Grader):
    async def grade(self, ctx: GraderContext):
        uses = [block["toolUse"] for message in ctx.sample.messages for block in message["content"] if "toolUse" in block]
        ctx.set_reward(1.0 if uses[-1]["name"] == "Answer" and str(uses[-1]["input"]["value"]) == ctx.label else 0.0)
