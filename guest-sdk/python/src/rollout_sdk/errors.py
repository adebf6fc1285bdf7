"""What can go wrong, with a type for each different reaction.

`Failed`, `Invalid` and `TimedOut` are raised by a workflow or a grader to give up; the
others come from the host. An exception that nobody catches leaves the rollout without a
reward and is reported to whoever asked for it, with the file and line it came from. Python's
own exceptions are reported as what they say: `TimeoutError` as a timeout, `ValueError`,
`TypeError` and `AssertionError` as invalid, every other one as a failure.
"""

from __future__ import annotations


class RolloutError(Exception):
    """The base of all exceptions that this package raises on purpose."""


class Failed(RolloutError):
    """The work could not be done."""


class Invalid(RolloutError):
    """What the plugin was given is wrong: prompt, configuration, metadata or label."""


class TimedOut(RolloutError, TimeoutError):
    """A time limit that the plugin set itself passed."""


class OutsideOfHost(RolloutError):
    """Something was asked of the host, and there is none."""

    def __init__(self, asked: str) -> None:
        super().__init__(
            f"`{asked}` is the host's: it works only in a component that the host runs, and in the part "
            "(workflow or grader) that may use it"
        )


class _Refusal(RolloutError):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        """Which of the reasons it is, as the contract names them."""


class OpenError(_Refusal):
    """A sample was not opened: `too-many`, `taken` or `invalid`."""


class RecordError(_Refusal):
    """Something was not recorded in a sample: `invalid` or `over-limit`."""


class ArtifactError(_Refusal):
    """A file was not written or read: `invalid-name`, `not-found` or `over-limit`."""


class ChatError(_Refusal):
    """There is no reply: `invalid-request`, `budget-spent`, `refused` or `unavailable`."""

    def __init__(self, kind: str, message: str, status: int | None = None, answer: str = "") -> None:
        super().__init__(kind, message)
        self.status = status
        """The HTTP status code of a server that refused."""
        self.answer = answer
        """The beginning of what a server that refused answered."""


class JudgeError(_Refusal):
    """There is no judgement: `not-provided`, `invalid-request`, `budget-spent`, `refused` or
    `unavailable`."""


class ToolError(RolloutError):
    """Raised by a tool to tell the model what is wrong with its call."""
