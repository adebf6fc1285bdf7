"""A taskset and a harness for `verifiers` 0.4: a plugin on a host runs the agent and grades it.

    vf-eval rollout-host-env -m MODEL --env.taskset.data rows.jsonl \\
        --env.agent.harness.id rollout-host-env --env.agent.harness.url http://127.0.0.1:9000 \\
        --env.agent.runtime.type subprocess …

The model is verifiers' own endpoint of the rollout, so tokens and calls are recorded in its trace. A rollout that fails
raises a `HarnessError`, and a sample without a reward a `TaskError`: the episode then counts as failed, not as an
episode with a reward of 0.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ._optional import need

need("verifiers.v1", "verifiers", "rollout_host.verifiers")
import verifiers.v1 as vf  # noqa: E402
from verifiers.v1.configs.harness import HarnessConfig  # noqa: E402
from verifiers.v1.configs.taskset import TasksetConfig  # noqa: E402
from verifiers.v1.runtimes import ProgramResult, Runtime  # noqa: E402

from .client import AsyncClient, RolloutFailed, RolloutHostError, RolloutRequest  # noqa: E402
from .rows import read_rows  # noqa: E402

__all__ = ["RolloutHostHarness", "RolloutHostTaskset"]

INFO = "rollout_host"
"""Member of a trace's `info` with the host's sample, without messages and label."""


class RolloutHostData(vf.TaskData):
    """A row of the host's format."""

    label: str | None = None
    metadata: dict[str, Any] | None = None


class RolloutHostTask(vf.Task[RolloutHostData]):
    """A task with the host's grader as its reward."""

    @vf.reward
    async def rollout_host(self, trace: vf.Trace) -> float:
        """The reward of the plugin's grader."""
        sample = trace.info.get(INFO)
        if sample is None:
            raise vf.TaskError("the host reported no sample; is the harness `rollout-host-env`?")
        if sample["remove_sample"]:
            raise vf.TaskError("the workflow withdrew its sample from training")
        if sample["reward"] is None:
            raise vf.TaskError("the host's sample has no reward")
        return float(sample["reward"])


class RolloutHostTasksetConfig(TasksetConfig):
    """Options below `--env.taskset`."""

    data: Path = Path("rows.jsonl")
    """Data set in JSON Lines, one row of the host's format per line."""


class RolloutHostTaskset(vf.Taskset[RolloutHostTask, RolloutHostTasksetConfig]):
    """The rows of a data set of the host's format."""

    def load(self) -> Iterable[RolloutHostTask]:
        for row in read_rows(self.config.data):
            data = RolloutHostData(
                prompt=row.prompt, system_prompt=row.system_prompt, label=row.label, metadata=row.metadata
            )
            yield RolloutHostTask(data, self.config.task)


class RolloutHostHarnessConfig(HarnessConfig):
    """Options below `--env.agent.harness`."""

    url: str = "http://127.0.0.1:9000"
    """Address of the host; `http://HOST/p/NAME` for a plugin of a catalog."""
    key_var: str | None = None
    """Environment variable with the host's key."""


class RolloutHostHarness(vf.Harness[RolloutHostHarnessConfig]):
    """Runs the workflow and the grader of a plugin on a host."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    def __init__(self, config: RolloutHostHarnessConfig) -> None:
        super().__init__(config)
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()

    def _client(self) -> AsyncClient:
        """Returns the client of this event loop, whose connections its rollouts share."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = AsyncClient(self.config.url, api_key=self._key())
        return self._clients[loop]

    def _key(self) -> str | None:
        name = self.config.key_var
        if name is None:
            return None
        key = os.environ.get(name)
        if not key:
            raise vf.HarnessError(f"the variable {name} with the host's key is not set (harness.key_var)")
        return key

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> ProgramResult:
        if mcp_urls:
            names = ", ".join(mcp_urls)
            raise vf.HarnessError(f"a plugin uses its own tools, not the task's tool servers ({names})")
        request = RolloutRequest(
            initial_messages=self._messages(data),
            chat_completions_url=endpoint,
            llm_api_key=secret,
            label=getattr(data, "label", None),
            metadata=getattr(data, "metadata", None),
            agent_timeout_sec=data.timeout.agent,
        )
        try:
            result = await self._client().run(request)
        except RolloutFailed as error:
            if trace.stop_condition is not None:
                # verifiers refused the next call of the model, which is a normal end of the episode.
                return ProgramResult(0, "", "")
            raise vf.HarnessError(str(error)) from error
        except RolloutHostError as error:
            raise vf.HarnessError(f"{type(error).__name__}: {error}") from error
        if result.sample is not None:
            sample = dataclasses.asdict(result.sample)
            del sample["messages"], sample["label"]
            trace.info[INFO] = sample | {"rollout_id": result.rollout_id}
            trace.record_metrics(result.sample.metrics)
        return ProgramResult(0, "", "")

    def _messages(self, data: vf.TaskData) -> list[dict[str, Any]]:
        """Returns the conversation to start with."""
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message.model_dump(mode="json", exclude_none=True) for message in prompt or []]
        if not messages:
            raise vf.HarnessError("the task has no prompt, and a rollout begins with one")
        return messages
