"""A server of a backend, as the package's own scaffold generates it: a sample source, files, and a rubric."""

from __future__ import annotations

import json
import os

import uvicorn

from osmosis_ai import evaluate_rubric
from osmosis_ai.rollout.agent_workflow import AgentWorkflow
from osmosis_ai.rollout.backend.local import LocalBackend
from osmosis_ai.rollout.context import AgentWorkflowContext, GraderContext, SampleSource, get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.server import create_rollout_server
from osmosis_ai.rollout.types import RolloutSample


class Conversation(SampleSource):
    def __init__(self, messages):
        self.messages = messages

    async def get_sample(self) -> RolloutSample:
        return RolloutSample(messages=self.messages, metrics={"length": len(self.messages)})


class Recite(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        messages = list(ctx.prompt)
        get_rollout_context().set_sample_source(Conversation(messages))
        messages.append({"role": "assistant", "content": "#### 4"})
        if ctx.artifacts_dir:
            (ctx.artifacts_dir / "notes" / "said.json").write_text(json.dumps(messages[-1]))


class Judged(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        said = json.loads((ctx.artifacts_dir / "notes/said.json").read_text())
        assert said == ctx.sample.messages[-1]
        verdict = await evaluate_rubric(
            solution_str=said["content"], rubric="Is it right?", model="openai/gpt-5.4", ground_truth=ctx.label
        )
        ctx.set_reward(verdict.score)


def main() -> None:
    app = create_rollout_server(backend=LocalBackend(workflow=Recite, grader=Judged))
    uvicorn.run(app, host="0.0.0.0", port=int(os.environ.get("_OSMOSIS_ROLLOUT_PORT", "8000")))


if __name__ == "__main__":
    main()
