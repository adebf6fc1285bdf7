"""A tool loop: the model solves an arithmetic problem with a calculator.

The tool is a plain function, and the loop is the SDK's. The workflow measures the number
of tool calls and stores the calculations as an artifact. The grader compares the number
after `####` with the label.
"""

from expression import as_text, evaluate
from rollout_sdk import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    artifact,
    log,
    same_number,
    tool,
)


class Config(AgentWorkflowConfig, extra="forbid"):
    """Configuration of the plugin."""

    max_turns: int = 8
    """Maximum number of model calls."""
    temperature: float = 0.7
    """Sampling temperature."""


class Calculator(AgentWorkflow[Config]):
    async def run(self, ctx: AgentWorkflowContext[Config]) -> None:
        paper: list[str] = []

        @tool
        def calculator(expression: str) -> str:
            """Works out an arithmetic expression.

            Args:
                expression: An expression of numbers, `+`, `-`, `*`, `/` and parentheses,
                    such as `-(2 + 3) * 4`.
            """
            value = as_text(evaluate(expression))
            paper.append(f"{expression} = {value}\n")
            return value

        run = await ctx.agent(
            "Use the calculator for every calculation.",
            tools=[calculator],
            max_turns=ctx.config.max_turns,
            temperature=ctx.config.temperature,
        ).run()

        run.sample.metric("tool_calls", run.tool_calls)
        artifact.write("calculations.txt", "".join(paper))
        log.info(f"{run.stop} after {run.turns} turns")


class SameNumber(Grader):
    async def grade(self, ctx: GraderContext) -> float:
        answer = ctx.sample.answer_after("####")
        ctx.sample.metric("answered", answer is not None)
        return same_number(answer or "", ctx.require_label())
