"""The workflow and grader of `cases.py` for the package's own servers of generations C and D."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    ConcurrencyConfig,
    Grader,
    GraderContext,
    LocalBackend,
    get_rollout_context,
)

import cases
from serving import model_client
from stand_in import text_of


class OneTurn(AgentWorkflow[AgentWorkflowConfig]):
    """Calls the model once, over plain HTTP."""

    async def run(self, ctx: AgentWorkflowContext[Any]) -> AgentWorkflowOutput:
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
                return AgentWorkflowOutput()
        rollout = get_rollout_context()
        assert rollout is not None and self.config is not None
        headers = {"Authorization": f"Bearer {rollout.api_key}"} if rollout.api_key else {}
        response = await model_client(self.config.concurrency.max_concurrent).post(
            rollout.chat_completions_url + "/chat/completions",
            json={"model": "osmosis-rollout", "messages": ctx.prompt, "stream": False},
            headers=headers,
        )
        response.raise_for_status()
        reply = response.json()["choices"][0]["message"]
        return AgentWorkflowOutput(messages=[*ctx.prompt, reply])


READ = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Reads a number of bytes.",
        "parameters": {"type": "object", "properties": {"bytes": {"type": "integer"}}, "required": ["bytes"]},
    },
}


class LongReads(AgentWorkflow[AgentWorkflowConfig]):
    """A typical agent: it calls a tool repeatedly, whose results have the length that the model requests."""

    async def run(self, ctx: AgentWorkflowContext[Any]) -> AgentWorkflowOutput:
        rollout = get_rollout_context()
        assert rollout is not None and self.config is not None
        headers = {"Authorization": f"Bearer {rollout.api_key}"} if rollout.api_key else {}
        client = model_client(self.config.concurrency.max_concurrent)
        messages = list(ctx.prompt)
        while True:
            response = await client.post(
                rollout.chat_completions_url + "/chat/completions",
                json={"model": "osmosis-rollout", "messages": messages, "tools": [READ], "stream": False},
                headers=headers,
            )
            response.raise_for_status()
            reply = response.json()["choices"][0]["message"]
            messages.append(reply)
            if not reply.get("tool_calls"):
                return AgentWorkflowOutput(messages=messages)
            for call in reply["tool_calls"]:
                length = json.loads(call["function"]["arguments"])["bytes"]
                messages.append({"role": "tool", "content": "x" * length, "tool_call_id": call["id"]})


class Equality(Grader):
    """Rewards a final answer that equals the label."""

    async def grade(self, ctx: GraderContext) -> None:
        match ctx.label:
            case cases.FAIL_GRADING:
                raise RuntimeError(cases.GRADER_FAILED)
            case cases.SPIN_GRADING:
                await asyncio.Event().wait()
            case cases.GIVE_NO_REWARD:
                return
        if ctx.sample is None:
            return
        if ctx.label == cases.REMOVE_SAMPLE:
            ctx.set_reward(1.0)
            ctx.sample.remove_sample = True
            return
        truth = ctx.label if ctx.label is not None else (ctx.metadata or {}).get("ground_truth")
        final = text_of(dict(ctx.sample.messages[-1])).rpartition("####")[2].strip()
        ctx.set_reward(1.0 if final == truth else 0.0)


class Bounded(LocalBackend):
    """The package's backend, which never refuses, with a limit on its rollouts."""

    full_at: int | None = None

    def has_capacity(self) -> bool:
        held = self.limiter.queued + self.limiter.running
        return self.full_at is None or held < self.full_at


def backend(args: argparse.Namespace) -> LocalBackend:
    config = AgentWorkflowConfig(
        name="one-turn", concurrency=ConcurrencyConfig(max_concurrent=args.max_concurrent)
    )
    workflow = LongReads if args.long else OneTurn
    made = Bounded(workflow=workflow, workflow_config=config, grader=Equality)
    made.full_at = args.full_at
    return made
