"""A simulated host for tests outside of a component. Its model calls a tool first and answers then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rollout_sdk import _host, _rehearse, context

class _Played:
    """An interface of the host with these functions."""

    def __init__(self, **answers: Any) -> None:
        self.__dict__.update(answers)


class _Record:
    def __init__(self, *values: Any, **fields: Any) -> None:
        self.values = values
        self.__dict__.update(fields)


class _Sample:
    @classmethod
    def open(cls, name: str | None) -> _Sample:
        return cls()

    def id(self) -> str:
        return "rehearsed"

    def push(self, messages: list[str]) -> None:
        """Does nothing."""

    replace = push

    def set_metric(self, name: str, value: float) -> None:
        """Does nothing."""

    set_field = set_metric


class _Call:
    def __exit__(self, *_: object) -> None:
        """Does nothing: no call is in progress."""


class _Model:
    """A model that calls a tool first and answers then."""

    Request = Conversation_History = Conversation_Messages = _Record
    Role = _Record(POLICY="policy", JUDGE="judge")

    def __init__(self) -> None:
        self._chat_calls = 0

    def start(self, role: str, sample: _Sample, request: Any) -> _Call:
        return _Call()

    def finish(self, call: _Call) -> Any:
        self._chat_calls += 1
        usage = _Record(prompt_tokens=1, completion_tokens=1)
        if self._chat_calls % 2:
            wanted = [_Record(id="1", name="double", arguments='{"number": 2}')]
            return _Record(message=_rehearse.CALL, text="", tool_calls=wanted, finish_reason="tool_calls", usage=usage)
        return _Record(message=_rehearse.ANSWER, text="#### 4", tool_calls=[], finish_reason="stop", usage=usage)


@contextlib.contextmanager
def played_host() -> Iterator[None]:
    """Simulates the host in a `with` block."""
    played: dict[str, Any] = {
        "calls": _Played(wait=lambda under_way, timeout: list(range(len(under_way)))),
        "models": _Model(),
        "context": _Played(
            rollout_id=lambda: "rehearsal",
            attempt=lambda: 1,
            config=lambda: None,
            metadata=lambda: '{"id": 1}',
            time_left_ms=lambda: None,
        ),
        "samples": _Played(limit=lambda: 1, Sample=_Sample),
    }
    kept = {name: vars(_host)[name] for name in played}
    try:
        vars(_host).update(played)
        yield
    finally:
        vars(_host).update(kept)
        context.leave_rollout()
