"""What a workflow is given, and what it gives back."""

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
# Of what only gives a configuration away.
ConfigT_co = TypeVar("ConfigT_co", bound=AgentWorkflowConfig, covariant=True)

Messages: TypeAlias = list[Message]


@dataclass
class AgentWorkflowOutput:
    """What a workflow may give back: the messages of its only sample, with measurements
    and other values beside them."""

    messages: Messages | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    info: JsonObject = field(default_factory=dict[str, Any])


class AgentWorkflow(ABC, Generic[ConfigT]):
    """An agent loop. The entry module has exactly one class that fills in `run`."""

    def __init__(self, config: ConfigT | None = None) -> None:
        self.config = config

    @abstractmethod
    async def run(self, ctx: AgentWorkflowContext[ConfigT]) -> AgentWorkflowOutput | Messages | None:
        """Runs one rollout.

        Gives back the messages of its only sample, or None where it registered its
        samples, as agents do. An exception leaves the rollout without a reward."""


class SampleSource(ABC):
    """What a sample is taken from when the workflow has ended: `get_rollout_context().set_sample_source(…)`."""

    @abstractmethod
    async def get_sample(self, *name: Any) -> Any:
        """A `RolloutSample` with the messages. Given the name of a source that was registered under one."""


class RolloutContext:
    """The rollout that this instance was made for."""

    def __init__(self) -> None:
        self.rollout_id: str = _host.rollout_id()
        """The rollout's id, as the caller chose it."""
        self.attempt: int = _host.attempt()
        """1 for the first try, one more each time the rollout is started over."""
        self.samples: list[Sample] = []
        """The samples that were opened, in order."""
        self.at_end: list[Callable[[], None]] = []
        """What is done when the workflow has ended well."""

    def time_left(self) -> float | None:
        """Seconds until the host ends this run; None where it has no deadline."""
        left = _host.time_left_ms()
        return None if left is None else left / 1000

    def samples_max(self) -> int:
        """The most samples that this rollout's caller takes. Some callers take one."""
        return _host.samples_max()

    def open_sample(self, name: str | None = None) -> Sample:
        """Registers a sample. Its id is the name, 1 to 128 visible ASCII characters used
        once in a rollout, or a random one. Raises `OpenError`."""
        sample = Sample(name)
        self.samples.append(sample)
        return sample

    def set_sample_source(self, source: SampleSource) -> None:
        """Registers a sample that is taken from this when the workflow has ended."""
        self._collect(self.open_sample(), source)

    def register_sample_source(self, name: str, source: SampleSource) -> None:
        """Registers a sample of this name that is taken from this when the workflow has ended."""
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
    """The rollout that is being run; None at build time and in native tests."""
    return _current


def enter_rollout() -> RolloutContext:
    """Makes this instance's rollout the current one."""
    global _current
    _current = RolloutContext()
    return _current


def leave_rollout() -> None:
    """Forgets the current rollout."""
    global _current
    _current = None


def current_rollout(what: str) -> RolloutContext:
    """The rollout that is being run, for what makes no sense without one."""
    if _current is None:
        raise RuntimeError(f"{what} belongs to a rollout: make it within the workflow's `run`")
    return _current


class AgentWorkflowContext(Generic[ConfigT_co]):
    """What a workflow knows of its rollout."""

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
        """The rollout's artifacts, as places to write to and read from."""
        self._rollout = rollout
        self._sample: Sample | None = None

    @property
    def config(self) -> ConfigT_co:
        """The operator's configuration over the defaults."""
        assert self._config is not None
        return self._config

    @property
    def rollout(self) -> RolloutContext:
        """The rollout."""
        return self._rollout or current_rollout("a context")

    @property
    def rollout_id(self) -> str:
        """The rollout's id, as the caller chose it."""
        return self.rollout.rollout_id

    @property
    def attempt(self) -> int:
        """1 for the first try, one more each time the rollout is started over."""
        return self.rollout.attempt

    @property
    def samples_max(self) -> int:
        """The most samples that this rollout's caller takes. Some callers take one."""
        return self.rollout.samples_max()

    def time_left(self) -> float | None:
        """Seconds until the host ends this run; None where it has no deadline."""
        return self.rollout.time_left()

    @property
    def sample(self) -> Sample:
        """The workflow's main sample, registered when it is first asked for."""
        if self._sample is None:
            self._sample = self.rollout.open_sample()
        return self._sample

    @property
    def samples(self) -> list[Sample]:
        """The samples that were opened, in order."""
        return self.rollout.samples

    def open_sample(self, name: str | None = None) -> Sample:
        """Registers a sample. Its id is the name, 1 to 128 visible ASCII characters used
        once in a rollout, or a random one. Raises `OpenError`."""
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
        """An agent that starts from the prompt and records in a sample of its own. The
        arguments are those of `Agent`."""
        return Agent(
            self.open_sample(),
            self.prompt,
            instructions=instructions,
            tools=tools,
            host_tools=host_tools,
            max_turns=max_turns,
            **params,
        )
