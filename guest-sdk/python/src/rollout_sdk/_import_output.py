"""Records the output and warnings of the author's modules while they are imported, for `rollout-host build`:
componentize-py shows them only if it fails."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from typing import Any, TextIO

FILE = "import_output.txt"


class _Twice:
    """A stream that also writes to a file while the file is open. Objects that stored it meanwhile, such as handlers of
    `logging`, keep it."""

    def __init__(self, stream: TextIO, file: TextIO) -> None:
        self._stream = stream
        self.file: TextIO | None = file

    def write(self, text: str) -> int:
        if self.file is not None:
            self.file.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def recorded(directory: str) -> Generator[None, None, None]:
    """Records the output of the `with` block in a file in this directory."""
    with open(f"{directory}/{FILE}", "w", encoding="utf-8") as file:
        streams: Any = sys
        before = (sys.stdout, sys.stderr)
        twice = [_Twice(stream, file) for stream in before]
        streams.stdout, streams.stderr = twice
        try:
            yield
        finally:
            streams.stdout, streams.stderr = before
            for each in twice:
                each.file = None
