"""The arguments of a group grader.

A group grader rates all samples of a group of rollouts at once, for rewards that compare them. It runs once for a group,
in its own instance, after every member has ended and was graded by the `Grader`, if the module has one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _host
from ._json import JsonObject, as_number
from .answer import answer_after
from .config import GraderConfig
from .message import Message, last_assistant_text


class GroupSample:
    """A sample of a group, with the group grader's rating."""

    # Any other attribute would be lost silently.
    __slots__ = ("_rating", "id", "member", "messages", "metrics", "reward", "verdict_metrics")

    def __init__(
        self,
        member: int = 0,
        id: str = "",
        messages: Sequence[Message] = (),
        metrics: Mapping[str, float] | None = None,
        reward: float | None = None,
    ) -> None:
        self.member = member
        """The number of the sample's member."""
        self.id = id
        """The sample's id, which is unique within its member."""
        self.messages = list(messages)
        """The conversation that the workflow recorded."""
        self.metrics: Mapping[str, float] = dict(metrics or {})
        """The measurements of workflow and grader."""
        self.reward = reward
        """The reward by the grader or the agent loop, or None."""
        self.verdict_metrics: dict[str, float] = {}
        """The group grader's metrics."""
        self._rating: float | None = None

    def __repr__(self) -> str:
        return f"<sample {self.id} of member {self.member}, rating {self._rating}>"

    @property
    def text(self) -> str:
        """The text of the model's last message; empty if there is none."""
        return last_assistant_text(self.messages)

    def answer_after(self, marker: str) -> str | None:
        """Returns the text after the marker in the model's last message (`answer.answer_after`)."""
        return answer_after(self.text, marker)

    @property
    def rating(self) -> float | None:
        """The reward by the group grader; None if it was not set."""
        return self._rating

    def rate(self, reward: float) -> None:
        """Sets the sample's reward: a finite number, True for 1, False for 0."""
        self._rating = as_number(reward, f"the reward of sample `{self.id}` of member {self.member}")

    def metric(self, name: str, value: float) -> None:
        """Records a metric of the group grader."""
        self.verdict_metrics[name] = as_number(value, f"metric `{name}`")


@dataclass
class GroupMember:
    """A member of a group with its samples."""

    number: int
    """The member's number in the group, from 0."""
    rollout_id: str = ""
    """The id of the member's rollout."""
    label: str | None = None
    """The ground truth in the data set's row, or None."""
    samples: list[GroupSample] = field(default_factory=list[GroupSample])
    """The member's samples."""


@dataclass(frozen=True)
class FailedMember:
    """A member without samples to rate."""

    number: int
    """The member's number in the group, from 0."""
    reason: str
    """The reason why it failed or never began."""


class GroupContext:
    """The context of a group grader: the group to grade."""

    def __init__(
        self,
        id: str = "",
        size: int = 0,
        members: Sequence[GroupMember] = (),
        failed: Sequence[FailedMember] = (),
        config: GraderConfig | None = None,
        metadata: JsonObject | None = None,
    ) -> None:
        self.id = id
        """The group's id, which the caller chose."""
        self.size = size
        """The number of members, including those that failed."""
        self.members = list(members)
        """The members with samples, by number."""
        self.failed = list(failed)
        """The other members, by number."""
        self._config = config
        self.metadata = metadata
        """The metadata of the first member's row, or None."""

    @property
    def config(self) -> Any:
        """The configuration: the operator's values over the defaults."""
        return self._config

    @property
    def samples(self) -> Iterator[GroupSample]:
        """The samples of all members."""
        return (sample for member in self.members for sample in member.samples)

    def time_left(self) -> float | None:
        """Returns the seconds until the host ends this run; None if it has no deadline."""
        left = _host.time_left_ms()
        return None if left is None else left / 1000


class GroupGrader(ABC):
    """A reward function of groups. The entry module has at most one subclass with `grade_group`."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    async def grade_group(self, ctx: GroupContext) -> Sequence[float] | None:
        """Grades a group: by `sample.rate(reward)` for each of `ctx.samples`, or by returning their rewards in the same
        order.

        An exception leaves every member of the group without a reward."""
