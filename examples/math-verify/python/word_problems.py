"""A grader that uses a package from the registry as its users do.

`math-verify` extracts numbers, fractions and LaTeX from a model's text and compares them
by value. It is pure Python and depends on SymPy. The build bundles both, because
`pyproject.toml` names `math-verify`.
"""

from math_verify import parse, verify
from rollout_sdk import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, Grader, GraderContext


def same_value(truth: str, answer: str) -> bool:
    return bool(verify(parse(truth), parse(answer)))


# The package's first call imports modules and computes tables. This call happens while the
# component is built, so that every instance starts with the results.
assert same_value("1/2", "$\\frac{2}{4}$")


class WordProblems(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None:
        await ctx.agent().run()


class SameValue(Grader):
    async def grade(self, ctx: GraderContext) -> float:
        sample = ctx.sample
        return same_value(ctx.require_label(), sample.answer_after("####") or sample.text)
