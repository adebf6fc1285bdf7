"""A grader that uses a package from the registry as its users do.

`math-verify` reads numbers, fractions and LaTeX out of what a model wrote and compares
them by value. It is pure Python, with SymPy below it, and is bundled because
`pyproject.toml` names it.
"""

from math_verify import parse, verify
from rollout_sdk import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, Grader, GraderContext


def same_value(truth: str, answer: str) -> bool:
    return bool(verify(parse(truth), parse(answer)))


# Once while the component is built: what the package imports and computes at its first
# call is then there in every instance.
assert same_value("1/2", "$\\frac{2}{4}$")


class WordProblems(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None:
        await ctx.agent().run()


class SameValue(Grader):
    async def grade(self, ctx: GraderContext) -> float:
        sample = ctx.sample
        return same_value(ctx.require_label(), sample.answer_after("####") or sample.text)
