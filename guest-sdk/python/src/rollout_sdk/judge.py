"""A model that judges. For graders only.

It has an endpoint, a key and a budget of its own, and nothing to do with the model that
is being trained. Where the operator provides none, asking raises `JudgeError`.
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
    """Its text, empty where it has none."""
    finish_reason: str | None = None
    """Why the judge stopped: `stop`, `length` or other words."""
    usage: Usage | None = None
    """What the call cost, where the server said."""


async def ask(messages: Iterable[Message], **params: Any) -> Judgement:
    """Asks the judge. `params` are sampling parameters and `response_format`, sent as
    they are. Several at once by `asyncio.gather`. Raises `JudgeError`."""
    call = _host.start_judge(
        dump_messages(messages), dump(params, "the sampling parameters") if params else None
    )
    raw = await _loop.outcome(call, _host.finish_judge)
    usage = None if raw.usage is None else Usage(*raw.usage)
    return Judgement(load(raw.message, "the judge's reply"), raw.text, raw.finish_reason, usage)
