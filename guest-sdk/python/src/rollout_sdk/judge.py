"""The judge, a model for grading. For graders only.

It has its own endpoint, key and budget, independent of the model that is being trained. If the operator provides no
judge, `ask` raises `JudgeError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import _host, _loop
from ._json import dump, dump_messages, load
from .message import Message
from .sample import Usage


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judge's reply."""

    message: Message
    """The assistant's message."""
    text: str
    """Its text; empty if it has none."""
    finish_reason: str | None = None
    """The reason why the judge stopped: `stop`, `length` or another."""
    usage: Usage | None = None
    """The tokens of the call, if the server reports them."""


async def ask(messages: Iterable[Message], **params: Any) -> Judgement:
    """Calls the judge. `params` are sampling parameters and `response_format`, sent unchanged. Use `asyncio.gather` for
    several calls. Raises `JudgeError`."""
    call = _host.start_judge(
        dump_messages(messages), dump(params, "the sampling parameters") if params else None
    )
    raw = await _loop.outcome(call, _host.finish_judge)
    usage = None if raw.usage is None else Usage(*raw.usage)
    return Judgement(load(raw.message, "the judge's reply"), raw.text, raw.finish_reason, usage)
