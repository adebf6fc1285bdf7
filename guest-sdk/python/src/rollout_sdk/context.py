"""The arguments and results of a workflow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from . import _host, _loop
from ._artifacts_dir import ArtifactsDir
from ._json import JsonObject
from .agent import TURNS_MAX, Agent
from .config import AgentWorkflowConfig
from .message import Message
from .sample import Sample
from .tool import Tool

ConfigT = TypeVar("ConfigT", bound=AgentWorkflowConfig)
# For classes that only return a configuration.
ConfigT_co = TypeVar("ConfigT_co", bound=AgentWorkflowConfig, covariant=True)

Messages: TypeAlias = list[Message]


@dataclass
class AgentWorkflowOutput:
    """The result of a workflow: the messages of its only sample, with metrics and other values."""

    messages: Messages | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    info: JsonObject = field(default_factory=dict[str, Any])


class AgentWorkflow(ABC, Generic[ConfigT]):
    """An agent loop. The entry module has exactly one subclass with `run`."""

    def __init__(self, config: ConfigT | None = None) -> None:
        self.config = config

    @abstractmethod
    async def run(self, ctx: AgentWorkflowContext[ConfigT]) -> AgentWorkflowOutput | Messages | None:
        """Runs one rollout.

        Returns the messages of its only sample, or None if it registered its samples, as agents do. An exception leaves
        the rollout without a reward."""


class SampleSource(ABC):
    """Provides a sample after the workflow has ended: `get_rollout_context().set_sample_source(…)`."""

    @abstractmethod
    async def get_sample(self, *name: Any) -> Any:
        """Returns a `RolloutSample` with the messages. The argument is the name of a source with a name."""


class RolloutContext:
    """The rollout of this instance."""

    def __init__(self) -> None:
        self.rollout_id: str = _host.rollout_id()
        """The rollout's id, which the caller chose."""
        self.attempt: int = _host.attempt()
        """The number of the attempt: 1 at first, one more each time the rollout restarts."""
        self.samples: list[Sample] = []
        """The open samples, in order."""
        self.at_end: list[Callable[[], None]] = []
        """Functions that are called after the workflow has succeeded."""

    def time_left(self) -> float | None:
        """Returns the seconds until the host ends this run; None if it has no deadline."""
        left = _host.time_left_ms()
        return None if left is None else left / 1000

    def samples_max(self) -> int:
        """Returns the maximum number of samples that this rollout's caller accepts. Some callers accept one."""
        return _host.samples_max()

    def open_sample(self, name: str | None = None) -> Sample:
        """Registers a sample. Its id is the name (1 to 128 visible ASCII characters, unique in the rollout), or a
        random one. Raises `OpenError`."""
        sample = Sample(name)
        self.samples.append(sample)
        return sample

    def set_sample_source(self, source: SampleSource) -> None:
        """Registers a sample that the source provides after the workflow has ended."""
        self._collect(self.open_sample(), source)

    def register_sample_source(self, name: str, source: SampleSource) -> None:
        """Registers a sample of this name that the source provides after the workflow has ended."""
        self._collect(self.open_sample(name), source, name)

    def _collect(self, sample: Sample, source: SampleSource, *name: str) -> None:
        def collect() -> None:
            found = _loop.run_sync(source.get_sample(*name))
            sample.replace(found.messages)
            for metric, value in found.metrics.items():
                sample.metric(metric, value)
            for extra, value in found.extra_fields.items():
                sample.field(extra, value)

        self.at_end.append(collect)

    def __getattr__(self, name: str) -> Any:
        if name in ("chat_completions_url", "api_key"):
            raise AttributeError(
                f"a component has no {name}: it asks the model by `ctx.sample.chat(…)`, `ctx.agent(…)` or an agent in a "
                "framework's shape, and the host adds address and key"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


_current: RolloutContext | None = None


def get_rollout_context() -> RolloutContext | None:
    """Returns the current rollout; None at build time and outside of a rollout."""
    return _current


def enter_rollout() -> RolloutContext:
    """Makes this instance's rollout the current one."""
    global _current
    _current = RolloutContext()
    return _current


def leave_rollout() -> None:
    """Ends the current rollout."""
    global _current
    _current = None


def current_rollout(what: str) -> RolloutContext:
    """Returns the current rollout. Raises `RuntimeError` with `what` if there is none."""
    if _current is None:
        raise RuntimeError(f"{what} belongs to a rollout: make it within the workflow's `run`")
    return _current


class AgentWorkflowContext(Generic[ConfigT_co]):
    """The context of a workflow."""

    def __init__(
        self,
        prompt: Messages,
        config: ConfigT_co | None = None,
        metadata: JsonObject | None = None,
        rollout: RolloutContext | None = None,
    ) -> None:
        self.prompt = prompt
        """The messages to start from."""
        self._config = config
        self.metadata = metadata
        """The data set row's metadata, or None."""
        self.artifacts_dir = ArtifactsDir()
        """The rollout's artifacts, as paths to write to and read from."""
        self._rollout = rollout
        self._sample: Sample | None = None

    @property
    def config(self) -> ConfigT_co:
        """The configuration: the operator's values over the defaults."""
        assert self._config is not None
        return self._config

    @property
    def rollout(self) -> RolloutContext:
        """The rollout."""
        return self._rollout or current_rollout("a context")

    @property
    def rollout_id(self) -> str:
        """The rollout's id, which the caller chose."""
        return self.rollout.rollout_id

    @property
    def attempt(self) -> int:
        """The number of the attempt: 1 at first, one more each time the rollout restarts."""
        return self.rollout.attempt

    @property
    def samples_max(self) -> int:
        """The maximum number of samples that this rollout's caller accepts. Some callers accept one."""
        return self.rollout.samples_max()

    def time_left(self) -> float | None:
        """Returns the seconds until the host ends this run; None if it has no deadline."""
        return self.rollout.time_left()

    @property
    def sample(self) -> Sample:
        """The workflow's main sample, registered on first use."""
        if self._sample is None:
            self._sample = self.rollout.open_sample()
        return self._sample

    @property
    def samples(self) -> list[Sample]:
        """The open samples, in order."""
        return self.rollout.samples

    def open_sample(self, name: str | None = None) -> Sample:
        """Registers a sample. Its id is the name (1 to 128 visible ASCII characters, unique in the rollout), or a
        random one. Raises `OpenError`."""
        return self.rollout.open_sample(name)

    def agent(
        self,
        instructions: str | None = None,
        *,
        tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
        host_tools: bool = False,
        max_turns: int = TURNS_MAX,
        **params: Any,
    ) -> Agent:
        """Creates an agent that starts from the prompt and records in its own sample. The arguments are those of
        `Agent`."""
        return Agent(
            self.open_sample(),
            self.prompt,
            instructions=instructions,
            tools=tools,
            host_tools=host_tools,
            max_turns=max_turns,
            **params,
        )
