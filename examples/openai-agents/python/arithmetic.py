"""Two agents in the shape of the OpenAI Agents framework, one of which hands over."""

from rollout_sdk import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, Grader, GraderContext, same_number
from rollout_sdk.openai_agents import Agent, MemorySession, ModelSettings, Runner, function_tool


@function_tool
def calculator(expression: str) -> str:
    """Works out a sum.

    Args:
        expression: Whole numbers with `+` and `-` between them.
    """
    terms = expression.replace("-", "+-").replace(" ", "").split("+")
    return str(sum(int(term) for term in terms if term))


class Arithmetic(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None:
        settings = ModelSettings(temperature=0.7)
        words = Agent(name="Words", instructions="Answer in words.", model_settings=settings)
        agent = Agent(
            name="Arithmetic",
            instructions="Use the calculator. Hand over what is no sum.",
            tools=[calculator],
            handoffs=[words],
            model_settings=settings,
        )
        session = MemorySession("main")
        result = await Runner.run(agent, ctx.prompt, session=session)
        session.sample.metric("items", len(result.new_items))


class SameNumber(Grader):
    async def grade(self, ctx: GraderContext) -> float:
        last = ctx.sample.messages[-1]
        text = "".join(part["text"] for part in last["content"])
        return same_number(text.rpartition("####")[2], ctx.require_label())
