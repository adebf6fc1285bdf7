"""What a workflow is given, and what it gives back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from . import _host
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
