"""The workflow and grader of `cases.py` for the package's own server; either release serves them."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import tempfile
from typing import Any

import httpx
import uvicorn
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
from stand_in import text_of

# Shared by all rollouts; opened when first needed, inside the server's event loop.
_model_client: httpx.AsyncClient | None = None


def model_client(connections: int | None) -> httpx.AsyncClient:
    global _model_client
    if _model_client is None:
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        _model_client = httpx.AsyncClient(limits=limits, timeout=600.0, trust_env=False)
    return _model_client


class OneTurn(AgentWorkflow[AgentWorkflowConfig]):
    """Asks the model once, plainly."""

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


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--max-concurrent", type=int, default=64)
    parser.add_argument("--full-at", type=int, metavar="N", help="429 while N rollouts are held")
    parser.add_argument(
        "--artifacts",
        metavar="DIR",
        help="where trajectories go; default: a directory removed at exit",
    )
    return parser


class Bounded(LocalBackend):
    """The package's backend, which never refuses, with a bound on what it holds."""

    full_at: int | None = None

    def has_capacity(self) -> bool:
        held = self.limiter.queued + self.limiter.running
        return self.full_at is None or held < self.full_at


def backend(args: argparse.Namespace) -> LocalBackend:
    config = AgentWorkflowConfig(
        name="one-turn", concurrency=ConcurrencyConfig(max_concurrent=args.max_concurrent)
    )
    made = Bounded(workflow=OneTurn, workflow_config=config, grader=Equality)
    made.full_at = args.full_at
    return made


class _Announcing(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            port = sockets[0].getsockname()[1]
            print(f"listening on http://127.0.0.1:{port}", flush=True)


def serve(make_app: Any, args: argparse.Namespace) -> None:
    """Serves `make_app()` until a signal, with the package's files kept out of the home directory."""
    with tempfile.TemporaryDirectory(prefix="osmosis-baseline-") as scratch:
        root = args.artifacts or os.environ.get("_OSMOSIS_ROLLOUT_ARTIFACT_ROOT") or scratch
        os.environ["_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"] = root
        # With the protocol named: asyncio sets TCP_NODELAY only then, as on sockets that it makes itself.
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", args.port))
        config = uvicorn.Config(make_app(), log_level="warning", access_log=False)
        _Announcing(config).run(sockets=[bound])
