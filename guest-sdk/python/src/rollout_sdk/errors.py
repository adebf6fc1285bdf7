"""Exceptions, with a type for each different reaction.

`Failed`, `Invalid` and `TimedOut` are raised by a workflow or a grader to end a run; the others come from the host. An
uncaught exception leaves the rollout without a reward and is reported to the rollout's caller, with its file and line.
Python's own exceptions are reported by kind: `TimeoutError` as a timeout, `ValueError`, `TypeError` and `AssertionError` as
invalid, every other one as a failure.
"""

from __future__ import annotations


class RolloutError(Exception):
    """The base of all exceptions that this package raises on purpose."""


class Failed(RolloutError):
    """The work could not be done."""


class Invalid(RolloutError):
    """An input of the plugin is invalid: prompt, configuration, metadata or label."""


class TimedOut(RolloutError, TimeoutError):
    """A time limit that the plugin set itself expired."""


class NotAPlugin(RolloutError):
    """The entry module lacks a class that a component needs, or one of its classes has a mistake."""


class OutsideOfHost(RolloutError):
    """A function of the host was called in a program that runs without a host."""

    def __init__(self, function: str) -> None:
        super().__init__(
            f"`{function}` is the host's: it works only in a component that the host runs, and in the part "
            "(workflow or grader) that may use it"
        )


class _Refusal(RolloutError):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        """The reason, by its name in the contract."""


class OpenError(_Refusal):
    """A sample could not be opened: `too-many`, `taken` or `invalid`."""


class RecordError(_Refusal):
    """A message, metric or field could not be recorded: `invalid` or `over-limit`."""


class ArtifactError(_Refusal):
    """A file could not be written or read: `invalid-name`, `not-found` or `over-limit`."""


class ChatError(_Refusal):
    """A model call failed: `invalid-request`, `budget-spent`, `refused` or `unavailable`."""

    def __init__(self, kind: str, message: str, status: int | None = None, answer: str = "") -> None:
        super().__init__(kind, message)
        self.status = status
        """The HTTP status code of a server that refused."""
        self.answer = answer
        """The beginning of the answer of a server that refused."""


class JudgeError(_Refusal):
    """A call of the judge failed: `not-provided`, `invalid-request`, `budget-spent`, `refused` or
    `unavailable`."""


class ToolError(RolloutError):
    """Raised by a tool to report an error to the model."""
