"""A list of messages that the author may change, and that is recorded in a sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .context import current_rollout
from .sample import Completion, Sample


class RecordedHistory:
    """Records a list of messages in a sample. Added messages are pushed; if earlier messages changed, all messages of
    the sample are replaced."""

    def __init__(self, messages: list[dict[str, Any]], name: str | None, what: str) -> None:
        rollout = current_rollout(what)
        self.messages = messages
        self.sample: Sample = rollout.open_sample(name)
        self._recorded: list[dict[str, Any]] = []
        # Record once more at the end, for changes after the last call.
        rollout.at_end.append(self.record)

    def record(self) -> None:
        """Updates the sample."""
        known = len(self._recorded)
        same = known <= len(self.messages) and all(
            old is new for old, new in zip(self._recorded, self.messages, strict=False)
        )
        if not same:
            self.sample.replace(self.messages)
        elif fresh := self.messages[known:]:
            self.sample.push(*fresh)
        self._recorded = list(self.messages)

    async def chat(
        self, messages: Iterable[dict[str, Any]], tools: Sequence[dict[str, Any]], params: dict[str, Any]
    ) -> Completion:
        """Records the messages and calls the model."""
        self.record()
        return await self.sample.chat(messages, tools=tools, **params)
