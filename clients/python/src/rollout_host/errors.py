"""Errors of the client. None of them stands for a reward: a rollout that failed has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .types import RolloutResult

__all__ = [
    "AdmissionLost",
    "HostBusy",
    "HostRefused",
    "HostUnreachable",
    "LeaseLost",
    "NoReward",
    "ProtocolError",
    "RolloutCancelled",
    "RolloutExists",
    "RolloutFailed",
    "RolloutHostError",
    "RolloutTimeout",
]


class RolloutHostError(Exception):
    """Base class of all errors of this package."""


class HostUnreachable(RolloutHostError):
    """The host could not be reached, or was not available, for as long as the client tries."""


class AdmissionLost(RolloutHostError):
    """The answer to the admission of a group's member was lost. It was cancelled, and the others are rated,
    without it unless it had ended already.
    """


class HostRefused(RolloutHostError):
    """The host refused a request, and a repetition would not help.

    `status` is the HTTP status: 401 for a wrong key, 404 for an unknown address, 422 for an invalid request.
    """

    def __init__(self, message: str, status: int, detail: object = None) -> None:
        super().__init__(message)
        self.status = status
        self.detail = detail


class HostBusy(RolloutHostError):
    """The host answered 429 until the client's `admission_timeout` expired."""


class RolloutExists(HostRefused):
    """The host has a rollout with the requested id. Ids that the client generates never collide."""


class LeaseLost(RolloutHostError):
    """The host no longer knows the rollout or its lease, so its result cannot be read.

    A host without a journal was restarted, or the result was not read in time.
    """


class ProtocolError(RolloutHostError):
    """The server's answer does not follow the protocol. The address may belong to another server."""


class RolloutTimeout(RolloutHostError, TimeoutError):
    """The caller's `timeout` expired. `run` cancels the rollout; `result` of a handle leaves it running."""


class RolloutFailed(RolloutHostError):
    """The rollout ended without success. It has no reward."""

    def __init__(self, result: RolloutResult) -> None:
        category = result.err_category or "no category"
        super().__init__(f"rollout {result.rollout_id}: {result.status}: {category}: {result.reason}")
        self.result = result

    @property
    def category(self) -> str | None:
        """The reason's name in the protocol, such as `timeout`, `http_error` (of the model) or `agent_error`."""
        return self.result.err_category


class RolloutCancelled(RolloutFailed):
    """The rollout was cancelled."""


class NoReward(RolloutHostError):
    """The rollout succeeded without a reward: grading was not requested, or the workflow withdrew its sample."""
