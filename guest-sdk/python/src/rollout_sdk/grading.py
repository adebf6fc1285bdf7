"""The arguments and results of a grader.

A grader runs after the workflow, in its own instance. Only the grader sees the label.
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
    """One model call, as the host observed it."""

    request: Any
    """The body of the request that was sent."""
    reply: Any
    """The body of the reply; None if there was none."""
    error: str | None = None
    """The reason why there was no reply."""


class RolloutSample:
    """A sample for the grader, with the grader's verdict."""

    # Any other attribute would be lost silently.
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
        """The conversation that the workflow recorded."""
        self._extra: Mapping[str, Any] = MappingProxyType(dict(extra_fields or {}))
        self._metrics = Metrics(metrics or {}, self._record_metric)
        self.verdict_metrics: dict[str, float] = {}
        """The grader's metrics."""
        self._reward: float | None = None
        self.remove_sample = False
        """Whether the sample is excluded from training."""

    def __repr__(self) -> str:
        return f"<sample {self.id}, reward {self._reward}>"

    @property
    def extra_fields(self) -> Mapping[str, Any]:
        """Extra values of a sample from a `SampleSource`. A grader cannot add to them."""
        return self._extra

    @property
    def reward(self) -> float | None:
        """The sample's reward; None leaves it without one."""
        return self._reward

    @reward.setter
    def reward(self, reward: float | None) -> None:
        self._reward = None if reward is None else as_number(reward, f"the reward of sample `{self.id}`")

    @property
    def text(self) -> str:
        """The text of the model's last message; empty if there is none."""
        return last_assistant_text(self.messages)

    def answer_after(self, marker: str) -> str | None:
        """Returns the text after the marker in the model's last message (`answer.answer_after`)."""
        return answer_after(self.text, marker)

    def metric(self, name: str, value: float) -> None:
        """Records a metric of the grader."""
        self._metrics[name] = value

    def _record_metric(self, name: str, value: float) -> None:
        self.verdict_metrics[name] = as_number(value, f"metric `{name}`")

    @property
    def metrics(self) -> dict[str, float]:
        """The workflow's metrics. A write here records a metric of the grader, like `metric`."""
        return self._metrics

    @metrics.setter
    def metrics(self, given: Mapping[str, float]) -> None:
        # `sample.metrics |= …` assigns the same object.
        if given is not self._metrics:
            self._metrics.update(given)

    def withdraw(self) -> None:
        """Excludes this sample from training."""
        self.remove_sample = True

    def observed(self) -> list[Exchange]:
        """Returns every model call that the host observed for this sample, in order, regardless of what the workflow
        recorded."""
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
        """Returns whether the grader has set anything."""
        return self._reward is not None or self.remove_sample or bool(self.verdict_metrics)


class GraderContext:
    """The context of a grader: the rollout to grade."""

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
        """The rollout's artifacts, as paths to read from and write to."""

    @property
    def config(self) -> Any:
        """The configuration: the operator's values over the defaults."""
        return self._config

    @property
    def rollout_id(self) -> str:
        """The rollout's id, which the caller chose."""
        return _host.rollout_id()

    @property
    def attempt(self) -> int:
        """The number of the attempt: 1 at first, one more each time the rollout restarts."""
        return _host.attempt()

    def time_left(self) -> float | None:
        """Returns the seconds until the host ends this run; None if it has no deadline."""
        left = _host.time_left_ms()
        return None if left is None else left / 1000

    def require_label(self) -> str:
        """Returns the data set row's ground truth. Raises `Invalid` if the row has none."""
        if self.label is None:
            raise Invalid("the row has no ground truth")
        return self.label

    @property
    def sample(self) -> RolloutSample:
        """The only sample of the rollout. Raises `Failed` if there is not exactly one."""
        if len(self.samples) != 1:
            raise Failed(f"this grader rates one sample, and there are {len(self.samples)}")
        return next(iter(self.samples.values()))

    def get_samples(self) -> dict[str, RolloutSample]:
        """Returns every sample of the rollout, by id."""
        return self.samples

    @property
    def reward(self) -> float | None:
        """The reward of the only sample. Assigning it calls `set_reward`."""
        return self.sample.reward

    @reward.setter
    def reward(self, reward: float) -> None:
        self.set_reward(reward)

    def set_reward(self, reward: float) -> None:
        """Sets the reward of the only sample: a finite number, True for 1, False for 0."""
        self.sample.reward = reward

    def set_sample_reward(self, sample_id: str, reward: float) -> None:
        """Sets the reward of the sample with this id."""
        if sample_id not in self.samples:
            raise Failed(f"there is no sample `{sample_id}`; there are: {', '.join(self.samples)}")
        self.samples[sample_id].reward = reward


class Grader(ABC):
    """A reward function. The entry module has at most one subclass with `grade`."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    async def grade(self, ctx: GraderContext) -> float | None:
        """Grades the samples of one rollout: by `ctx.set_reward` and similar methods, or by returning the reward of the
        only sample.

        An exception leaves the rollout without a reward. Raise one if the grader cannot decide. A wrong answer should
        get a low reward instead."""
