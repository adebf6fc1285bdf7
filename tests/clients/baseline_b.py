"""The package's own generation-B server (0.2.31) over the workflow and grader of `cases.py`.

Run it with the 0.2.31 environment's Python. It prints `listening on http://127.0.0.1:PORT` when ready.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

# Otherwise the import of the package would download a price list, with retries if there is no network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ConcurrencyConfig,
    Grader,
    GraderContext,
    LocalBackend,
    RolloutSample,
    create_rollout_server,
    get_rollout_context,
)
from osmosis_ai.rollout.context import SampleSource

import cases
import serving
from stand_in import text_of


class Conversation(SampleSource):
    """A sample of this generation: messages under their registered name."""

    def __init__(self, messages: cases.Messages) -> None:
        self.messages = list(messages)

    async def get_sample(self, name: str) -> RolloutSample:
        return RolloutSample(id=name, messages=self.messages)


class Branching(AgentWorkflow[AgentWorkflowConfig]):
    """Registers one or two samples, and calls the model for those with a reply."""

    async def run(self, ctx: AgentWorkflowContext[Any]) -> None:
        asking, silent = ["main"], []
        match text_of(ctx.prompt[-1]) if ctx.prompt else "":
            case cases.PLEASE_FAIL:
                raise RuntimeError(cases.WORKFLOW_FAILED)
            case cases.PLEASE_REFUSE:
                raise ValueError(cases.WORKFLOW_REFUSED)
            case cases.PLEASE_SPIN:
                await asyncio.Event().wait()
            case cases.PLEASE_TRAP:
                raise RuntimeError("the nearest that Python has to a trap")
            case cases.PLEASE_RETURN_NOTHING:
                return
            case cases.PLEASE_STAY_SILENT:
                self.register("main", [*ctx.prompt, {"role": "assistant", "content": "#### 5"}])
                return
            case text if text.startswith(cases.PLEASE_BRANCH):
                asking = [cases.FIRST, cases.SECOND]
            case text if text.startswith(cases.PLEASE_HALF_BRANCH):
                asking, silent = [cases.FIRST], [cases.SILENT]
        for name in asking:
            conversation = self.register(name, ctx.prompt)
            conversation.messages.append(await self.ask(ctx.prompt, name))
        for name in silent:
            self.register(name, ctx.prompt)

    def register(self, name: str, messages: cases.Messages) -> Conversation:
        rollout = get_rollout_context()
        assert rollout is not None
        conversation = Conversation(messages)
        rollout.register_sample_source(name, conversation)
        return conversation

    async def ask(self, prompt: cases.Messages, name: str) -> dict[str, Any]:
        rollout = get_rollout_context()
        assert rollout is not None and self.config is not None
        headers = {"x-rollout-id": rollout.rollout_id, "x-sample-id": name}
        if rollout.api_key:
            headers["Authorization"] = f"Bearer {rollout.api_key}"
        client = serving.model_client(self.config.concurrency.max_concurrent)
        response = await client.post(
            rollout.chat_completions_url + "/chat/completions",
            json={"model": "osmosis-rollout", "messages": prompt, "stream": False},
            headers=headers,
        )
        response.raise_for_status()
        return response.json()["choices"][0]["message"]


class Equality(Grader):
    """Rewards each final answer that equals the label."""

    async def grade(self, ctx: GraderContext) -> None:
        samples = ctx.get_samples()
        match ctx.label:
            case cases.FAIL_GRADING:
                raise RuntimeError(cases.GRADER_FAILED)
            case cases.SPIN_GRADING:
                await asyncio.Event().wait()
            case cases.GIVE_NO_REWARD:
                return
            case cases.REMOVE_SAMPLE:
                for name, sample in samples.items():
                    ctx.set_sample_reward(name, 1.0)
                    sample.remove_sample = True
                return
            case cases.RATE_THE_FIRST:
                ctx.set_sample_reward(cases.FIRST, 1.0)
                return
            case cases.REMOVE_THE_SECOND:
                ctx.set_sample_reward(cases.FIRST, 1.0)
                ctx.set_sample_reward(cases.SECOND, 0.5)
                samples[cases.SECOND].remove_sample = True
                return
        truth = ctx.label if ctx.label is not None else (ctx.metadata or {}).get("ground_truth")
        for name, sample in samples.items():
            final = text_of(dict(sample.messages[-1])).rpartition("####")[2].strip()
            ctx.set_sample_reward(name, 1.0 if final == truth else 0.0)


def make_app(args: argparse.Namespace) -> Any:
    # This release stores its files below the home directory.
    os.environ["HOME"] = os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"]
    config = AgentWorkflowConfig(
        name="branching", concurrency=ConcurrencyConfig(max_concurrent=args.max_concurrent)
    )
    backend = LocalBackend(workflow=Branching, workflow_config=config, grader=Equality)
    return create_rollout_server(backend=backend, configure_logging=False)


def main() -> None:
    parser = serving.arguments(__doc__.splitlines()[0])
    args = parser.parse_args()
    if args.full_at is not None:
        parser.error("--full-at: this generation's server never refuses")
    serving.serve(lambda: make_app(args), args)


if __name__ == "__main__":
    main()
