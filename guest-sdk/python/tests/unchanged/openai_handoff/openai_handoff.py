"""OpenAI Agents that hand over, with guardrails, an output type, hooks and a context."""

from dataclasses import dataclass

from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    MessageOutputItem,
    ModelSettings,
    RunContextWrapper,
    Runner,
    function_tool,
    handoff,
    input_guardrail,
)
from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisMemorySession,
    OsmosisRolloutModel,
)

seen = []


@dataclass
class Caller:
    name: str


@dataclass
class Answer:
    value: int


@dataclass
class Reason:
    reason: str


@function_tool
def double(caller: RunContextWrapper[Caller], number: int) -> int:
    """Double a number."""
    seen.append(caller.context.name)
    return number * 2


@input_guardrail
async def no_politics(ctx: RunContextWrapper[Caller], agent: Agent[Caller], input) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="election" in str(input))


class Watch(AgentHooks[Caller]):
    async def on_handoff(self, context, agent, source):
        seen.append((source.name, agent.name))


async def on_handoff(ctx: RunContextWrapper[Caller], why: Reason) -> None:
    seen.append(why.reason)


class Doubling(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext):
        model = OsmosisRolloutModel()
        sums = Agent[Caller](
            name="Sums",
            instructions=lambda context, agent: f"Do sums for {context.context.name}.",
            model=model,
            model_settings=ModelSettings(tool_choice="required"),
            tools=[double],
            output_type=Answer,
            hooks=Watch(),
        )
        front = OsmosisAgent(
            name="Front",
            instructions="Hand over.",
            model=model,
            handoffs=[handoff(sums, on_handoff=on_handoff, input_type=Reason)],
            input_guardrails=[no_politics],
        )
        try:
            await Runner.run(front, "Who wins the election?", session=None, context=Caller("nobody"))
        except InputGuardrailTripwireTriggered as refused:
            seen.append(refused.guardrail_result.guardrail.get_name())
        result = await Runner.run(front, ctx.prompt, session=OsmosisMemorySession(), context=Caller("Ada"))
        seen.append(result.final_output_as(Answer).value)
        seen.append(sum(isinstance(item, MessageOutputItem) for item in result.new_items))
        seen.append(result.last_agent.name)


class SaysTheLabel(Grader):
    async def grade(self, ctx: GraderContext):
        for sample_id, sample in ctx.get_samples().items():
            text = sample.messages[-1]["content"][0].get("text", "") if sample.messages[-1].get("type") else ""
            ctx.set_sample_reward(sample_id, 1.0 if ctx.label in text else 0.0)
