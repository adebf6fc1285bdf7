"""Runs the example of a package that the prompt names, in a component. The packages are imported in the rollout, not
while the component is built, like by a grader that imports them in a function."""

from examples_of_packages import EXAMPLES
from rollout_sdk import AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, Grader, GraderContext, Messages, message


class Trial(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> Messages:
        scope: dict[str, object] = {}
        try:
            exec(EXAMPLES[message.text_of(ctx.prompt[-1])], scope)
            found = repr(scope["result"])
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        return [*ctx.prompt, message.assistant(found)]


class AsExpected(Grader):
    async def grade(self, ctx: GraderContext) -> float:
        return ctx.sample.text == ctx.require_label()
