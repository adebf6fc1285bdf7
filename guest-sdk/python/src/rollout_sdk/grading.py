"""What a grader is given, and what it says.

A grader runs after the workflow, in an instance of its own, and is the only place that
sees the label.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from . import _host
from ._artifacts_dir import ArtifactsDir
from ._json import JsonObject, as_number, load
from ._metrics import Metrics
from .answer import answer_after
from .config import GraderConfig
from .errors import Failed, Invalid
from .message import Message, last_assistant_text


@dataclass(frozen=True)
class Exchange:
    """One call of the model, as the host saw it."""

    request: Any
    """The request's body as it was sent."""
    reply: Any
    """The body of the reply; None where there was none."""
    error: str | None = None
    """Why there was no reply."""


class RolloutSample:
    """A sample as it comes to the grader, and what the grader says of it."""

    # Anything else that is set would be lost without a word.
    __slots__ = ("_extra", "_metrics", "_reward", "id", "messages", "remove_sample", "verdict_metrics")

    def __init__(
        self,
        id: str = "",
        messages: Sequence[Message] = (),
        metrics: dict[str, float] | None = None,
        extra_fields: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = id
        """The sample's id."""
        self.messages = list(messages)
        """What the workflow says the conversation was."""
        self._extra: Mapping[str, Any] = MappingProxyType(dict(extra_fields or {}))
        self._metrics = Metrics(metrics or {}, self._record_metric)
        self.verdict_metrics: dict[str, float] = {}
        """What the grader measured."""
        self._reward: float | None = None
        self.remove_sample = False
        """Whether the sample is not to be trained on."""

    def __repr__(self) -> str:
        return f"<sample {self.id}, reward {self._reward}>"

    @property
    def extra_fields(self) -> Mapping[str, Any]:
        """Values beside the messages, of a sample that a `SampleSource` gives. A grader cannot add to them."""
        return self._extra

    @property
    def reward(self) -> float | None:
        """What the sample earns; None leaves it without a reward."""
        return self._reward

    @reward.setter
    def reward(self, reward: float | None) -> None:
        self._reward = None if reward is None else as_number(reward, f"the reward of sample `{self.id}`")

    @property
    def text(self) -> str:
        """The text of the model's last message, empty where there is none."""
        return last_assistant_text(self.messages)

    def answer_after(self, marker: str) -> str | None:
        """What follows the marker in the model's last message."""
        return answer_after(self.text, marker)

    def metric(self, name: str, value: float) -> None:
        """Adds a measurement to those of the workflow."""
        self._metrics[name] = value

    def _record_metric(self, name: str, value: float) -> None:
        self.verdict_metrics[name] = as_number(value, f"metric `{name}`")

    @property
    def metrics(self) -> dict[str, float]:
        """What the workflow measured. What is written here is the grader's, as by `metric`."""
        return self._metrics

    @metrics.setter
    def metrics(self, given: Mapping[str, float]) -> None:
        # `sample.metrics |= …` gives the same object back.
        if given is not self._metrics:
            self._metrics.update(given)

    def withdraw(self) -> None:
        """Asks that this sample not be trained on."""
        self.remove_sample = True

    def observed(self) -> list[Exchange]:
        """Every call of the model that the host saw for this sample, in order, whatever
        the workflow says of it."""
        return [
            Exchange(
                load(request, "an observed request"),
                None if reply is None else load(reply, "an observed reply"),
                error,
            )
            for request, reply, error in _host.exchanges(self.id)
        ]

    @property
    def is_rated(self) -> bool:
        """Whether the grader has said anything of it."""
        return self._reward is not None or self.remove_sample or bool(self.verdict_metrics)


class GraderContext:
    """The rollout that a grader rates."""

    def __init__(
        self,
        label: str | None = None,
        samples: list[RolloutSample] | None = None,
        config: GraderConfig | None = None,
        metadata: JsonObject | None = None,
    ) -> None:
        self.label = label
        """The data set row's ground truth, or None."""
        self.samples: dict[str, RolloutSample] = {sample.id: sample for sample in samples or []}
        """Every sample of the rollout, by id."""
        self._config = config
        self.metadata = metadata
        """The data set row's metadata, or None."""
        self.artifacts_dir = ArtifactsDir()
        """The rollout's artifacts, as places to read from and write to."""

    @property
    def config(self) -> Any:
        """The operator's configuration over the defaults."""
        return self._config

    @property
    def rollout_id(self) -> str:
        """The rollout's id, as the caller chose it."""
        return _host.rollout_id()

    @property
    def attempt(self) -> int:
        """1 for the first try, one more each time the rollout is started over."""
        return _host.attempt()

    def time_left(self) -> float | None:
        """Seconds until the host ends this run; None where it has no deadline."""
        left = _host.time_left_ms()
        return None if left is None else left / 1000

    def require_label(self) -> str:
        """The data set row's ground truth. Raises `Invalid` where the row has none."""
        if self.label is None:
            raise Invalid("the row has no ground truth")
        return self.label

    @property
    def sample(self) -> RolloutSample:
        """The only sample of the rollout. Raises `Failed` where there is none or more
        than one."""
        if len(self.samples) != 1:
            raise Failed(f"this grader rates one sample, and there are {len(self.samples)}")
        return next(iter(self.samples.values()))

    def get_samples(self) -> dict[str, RolloutSample]:
        """Every sample of the rollout, by id."""
        return self.samples

    @property
    def reward(self) -> float | None:
        """What the only sample earns; setting it is `set_reward`."""
        return self.sample.reward

    @reward.setter
    def reward(self, reward: float) -> None:
        self.set_reward(reward)

    def set_reward(self, reward: float) -> None:
        """The only sample earns this reward: a finite number, True for 1, False for 0."""
        self.sample.reward = reward

    def set_sample_reward(self, sample_id: str, reward: float) -> None:
        """The sample of this id earns this reward."""
        if sample_id not in self.samples:
            raise Failed(f"there is no sample `{sample_id}`; there are: {', '.join(self.samples)}")
        self.samples[sample_id].reward = reward


class Grader(ABC):
    """A reward function. The entry module has at most one class that fills in `grade`."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> float | None:
        """Rates the samples of one rollout: by `ctx.set_reward` and its like, or by
        giving back the reward of the only sample.

        An exception leaves the rollout without a reward. It is for a grader that cannot
        tell, not for a wrong answer, which has a reward of its own."""
