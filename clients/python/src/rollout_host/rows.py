"""Reads data sets in the host's row format.

A row has `user_prompt` (a text) or `prompt` (a text or a list of messages), and may have `system_prompt`, `ground_truth` or
`label`, and `metadata`. A file has one row per line, as for `rollout-host eval`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Row", "read_rows"]


@dataclass(frozen=True)
class Row:
    """A row of a data set."""

    prompt: str | list[dict[str, Any]]
    system_prompt: str | None
    label: str | None
    metadata: dict[str, Any] | None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation to start with."""
        prompt = [{"role": "user", "content": self.prompt}] if isinstance(self.prompt, str) else self.prompt
        return [{"role": "system", "content": self.system_prompt}, *prompt] if self.system_prompt else list(prompt)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Row:
        """Reads a row, or raises a ValueError that names the wrong column."""
        prompt = value.get("user_prompt")
        if prompt is None:
            prompt = value.get("prompt")
        if prompt is None:
            raise ValueError(f"no `user_prompt` and no `prompt` (columns found: {', '.join(value)})")
        if not isinstance(prompt, str) and not (
            isinstance(prompt, list) and all(isinstance(message, dict) and "role" in message for message in prompt)
        ):
            raise ValueError("`prompt` is neither a text nor a list of messages")
        system = value.get("system_prompt")
        if system is not None and not isinstance(system, str):
            raise ValueError("`system_prompt` is not a text")
        metadata = value.get("metadata")
        if isinstance(metadata, str):
            metadata = json.loads(metadata)
        if metadata is not None and not isinstance(metadata, dict):
            raise ValueError("`metadata` is not an object")
        label = value.get("ground_truth")
        return cls(prompt, system, _text(value.get("label") if label is None else label), metadata)


def read_rows(path: str | Path) -> Iterator[Row]:
    """Reads a file in JSON Lines. A mistake raises a ValueError with its line."""
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line, parse_float=_Written)
                if not isinstance(value, dict):
                    raise ValueError('not an object; write a row as {"user_prompt": …}')
                row = Row.of(value)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            yield row


class _Written(float):
    """A number with its spelling, so that the label 1.50 stays `1.50`."""

    written: str

    def __new__(cls, written: str) -> _Written:
        number = super().__new__(cls, written)
        number.written = written
        return number


def _text(label: Any) -> str | None:
    """Returns a label as text, a number as it was written."""
    if label is None or isinstance(label, str):
        return label
    return label.written if isinstance(label, _Written) else json.dumps(label, ensure_ascii=False)
