"""Requests and results of rollouts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from .errors import NoReward, ProtocolError, RolloutCancelled, RolloutFailed

__all__ = [
    "Admission",
    "FailedMember",
    "ForkPoint",
    "GroupReport",
    "GroupSeat",
    "Message",
    "RolloutRequest",
    "RolloutResult",
    "RolloutStatus",
    "Sample",
]

Message = Mapping[str, Any]
"""A message of a conversation in the form of OpenAI's chat completions."""

RolloutStatus = Literal["queued", "running", "grading", "success", "failure", "cancelled"]

ENDED: frozenset[str] = frozenset({"success", "failure", "cancelled"})
STATUSES: frozenset[str] = ENDED | {"queued", "running", "grading"}


@dataclass(frozen=True)
class ForkPoint:
    """The point of another rollout from which a fork continues."""

    rollout_id: str
    turn: int
    """Number of shared calls of the model; 0 shares only the input."""


@dataclass(frozen=True)
class GroupSeat:
    """The seat of a rollout in a group, whose members are rated together and finish together."""

    id: str
    """The group's id. Use each id once."""
    size: int
    """Number of members."""
    member: int
    """Number of this member, from 0."""
    join_timeout_sec: int | None = None
    """Seconds for which the group waits for members that were not requested; by default 600."""


@dataclass(frozen=True)
class RolloutRequest:
    """A rollout to start. The fields have the protocol's names."""

    initial_messages: str | Sequence[Message]
    """The conversation so far; a text is one message of the user."""
    chat_completions_url: str
    """Base URL of the model; the host appends `/chat/completions`."""
    label: str | None = None
    """The expected answer. It reaches only the grader."""
    metadata: Mapping[str, Any] | None = None
    llm_api_key: str | None = field(default=None, repr=False)
    """Key of the model's server."""
    grade: bool = True
    """Whether to grade the sample. If False, the result has no reward."""
    agent_timeout_sec: float | None = None
    grader_timeout_sec: float | None = None
    extra_fields: Mapping[str, Any] | None = None
    fork_of: ForkPoint | None = None
    group: GroupSeat | None = None
    rollout_id: str | None = None
    """The client generates an id if this is None. Only then can it repeat a request whose answer was lost."""

    def fork(self, rollout_id: str, turn: int) -> RolloutRequest:
        """Returns a request that continues another rollout after `turn` calls of the model."""
        return dataclasses.replace(self, fork_of=ForkPoint(rollout_id, turn), rollout_id=None)

    def in_group(self, id: str, size: int, member: int) -> RolloutRequest:
        """Returns the same request for a member of a group."""
        return dataclasses.replace(self, group=GroupSeat(id, size, member))

    def body(self, rollout_id: str) -> dict[str, Any]:
        """Returns the request's JSON."""
        messages = self.initial_messages
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body: dict[str, Any] = {
            "rollout_id": rollout_id,
            "initial_messages": [dict(message) for message in messages],
            "chat_completions_url": self.chat_completions_url,
            "grade": self.grade,
        }
        optional = {
            "label": self.label,
            "metadata": None if self.metadata is None else dict(self.metadata),
            "llm_api_key": self.llm_api_key,
            "agent_timeout_sec": self.agent_timeout_sec,
            "grader_timeout_sec": self.grader_timeout_sec,
            "extra_fields": None if self.extra_fields is None else dict(self.extra_fields),
            "fork_of": None if self.fork_of is None else dataclasses.asdict(self.fork_of),
            "group": None if self.group is None else dataclasses.asdict(self.group),
        }
        return body | {name: value for name, value in optional.items() if value is not None}


@dataclass(frozen=True)
class Sample:
    """The conversation of a rollout with its reward."""

    messages: list[dict[str, Any]]
    label: str | None
    reward: float | None
    """None if the sample was withdrawn or not graded."""
    remove_sample: bool
    """Whether the workflow withdrew the sample from training."""
    metrics: dict[str, float]
    extra_fields: dict[str, Any]


@dataclass(frozen=True)
class FailedMember:
    """A member of a group without a sample to rate."""

    member: int
    rollout_id: str | None
    """None if the member was never requested."""
    reason: str


@dataclass(frozen=True)
class GroupReport:
    """The part of a group in the result of a member."""

    id: str
    size: int
    member: int
    graded: bool
    """Whether the plugin's group grader rated the sample."""
    own_reward: float | None
    """The reward before the group was rated."""
    failed: list[FailedMember]


@dataclass(frozen=True)
class RolloutResult:
    """The status of a rollout and, after its end, its result."""

    rollout_id: str
    status: RolloutStatus
    sample: Sample | None = None
    err_message: str | None = None
    err_category: str | None = None
    group: GroupReport | None = None
    """The report of the rollout's group, after the end of a member."""
    fork_of: ForkPoint | None = None
    """The shared prefix, for a member of a group of forks."""

    @property
    def is_ended(self) -> bool:
        return self.status in ENDED

    @property
    def reason(self) -> str:
        """The reason of a failure, in words."""
        if self.err_message is not None:
            return self.err_message
        return "a reward was requested, and there is no grader or nothing to grade with"

    @property
    def reward(self) -> float:
        """The reward. Raises an error if there is none, so that a failure never counts as a reward of 0."""
        self.raise_for_status()
        if self.sample is None or self.sample.reward is None:
            withdrawn = self.sample is not None and self.sample.remove_sample
            why = "the workflow withdrew its sample" if withdrawn else "it was not graded"
            raise NoReward(f"rollout {self.rollout_id} has no reward: {why}")
        return self.sample.reward

    def raise_for_status(self) -> None:
        """Raises unless the rollout succeeded."""
        if self.status == "cancelled":
            raise RolloutCancelled(self)
        if self.status != "success":
            raise RolloutFailed(self)

    @classmethod
    def parse(cls, value: object, rollout_id: str) -> RolloutResult:
        """Reads the answer to a poll."""
        if not isinstance(value, dict) or value.get("status") not in STATUSES:
            raise ProtocolError(f"the answer to a poll has no known status: {str(value)[:200]}")
        if value.get("rollout_id") != rollout_id:
            raise ProtocolError(f"polled for {rollout_id!r}, and the answer is about {value.get('rollout_id')!r}")
        sample = value.get("sample")
        return cls(
            rollout_id=rollout_id,
            status=cast(RolloutStatus, value["status"]),
            sample=None if sample is None else _sample(sample),
            err_message=value.get("err_message"),
            err_category=value.get("err_category"),
            group=None if value.get("group") is None else _group(value["group"]),
            fork_of=None if value.get("fork_of") is None else _fork_point(value["fork_of"]),
        )


def _group(value: Any) -> GroupReport:
    try:
        failed = [FailedMember(one["member"], one["rollout_id"], one["reason"]) for one in value["failed"]]
        own = value["own_reward"]
        return GroupReport(
            value["id"], value["size"], value["member"], value["graded"], None if own is None else float(own), failed
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the report of a group is malformed: {error!r}") from None


def _fork_point(value: Any) -> ForkPoint:
    try:
        return ForkPoint(value["rollout_id"], value["turn"])
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"the origin of a fork is malformed: {error!r}") from None


def _sample(value: object) -> Sample:
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        raise ProtocolError(f"the sample is not an object with messages: {str(value)[:200]}")
    reward = value.get("reward")
    if reward is not None:
        if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
            raise ProtocolError(f"the reward is not a finite number: {reward!r}")
        reward = float(reward)
    return Sample(
        messages=value["messages"],
        label=value.get("label"),
        reward=reward,
        remove_sample=bool(value.get("remove_sample")),
        metrics=value.get("metrics") or {},
        extra_fields=value.get("extra_fields") or {},
    )


@dataclass(frozen=True)
class Admission:
    """The host's answer to an admitted rollout."""

    rollout_id: str
    lease: str = field(repr=False)
    """The token with which the result is read."""
    result_wait_secs: float
    """Maximum time for which the host holds a poll open."""
    lease_secs: float
    """Time without a poll after which the host cancels the rollout."""

    @classmethod
    def parse(cls, value: object, rollout_id: str) -> Admission:
        """Reads the answer to a request for a rollout."""
        try:
            admission = cls(
                rollout_id=value["rollout_id"],  # type: ignore[index]
                lease=value["polling_lease_token"],  # type: ignore[index]
                result_wait_secs=float(value["result_wait_timeout_sec"]),  # type: ignore[index]
                lease_secs=float(value["polling_lease_timeout_sec"]),  # type: ignore[index]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"the answer to a request for a rollout is not one of generation D: {error!r}") from None
        if admission.rollout_id != rollout_id:
            raise ProtocolError(f"requested {rollout_id!r}, and the host admitted {admission.rollout_id!r}")
        return admission
