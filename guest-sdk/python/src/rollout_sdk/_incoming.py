"""Receives files from the builder: a line in JSON with a list of the files, followed by their contents.

The line has the path and the size of each file, and the number of bytes that follow if these are compressed already (`files`);
the paths and sizes of files whose contents are not passed (`left_out`); and the paths of files that are no part of the component
(`borrowed`). Other files are compressed as their parts arrive, because the memory of a component never becomes smaller.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from . import _archive


class Incoming:
    """A project that arrives in parts, with the directory that it gets in the archive and the level of its compression."""

    def __init__(self, root: str, level: int = _archive.LEVEL) -> None:
        self._root = root
        self._level = level
        self._head = bytearray()
        self._header: dict[str, Any] | None = None
        self._files: Iterator[list[Any]] = iter(())
        self._path = ""
        self._size = self._left = 0
        self._packing: Any = None
        self._packed: list[bytes] = []

    def add(self, part: bytes) -> None:
        """Takes the next part."""
        if self._header is None:
            end = part.find(b"\n")
            self._head += part if end < 0 else part[:end]
            if end < 0:
                return
            part = part[end + 1 :]
            header: dict[str, Any] = json.loads(self._head)
            self._header = header
            self._files = iter(header["files"])
            self._next_file()
        while part and self._left:
            taken = part[: self._left]
            part = part[self._left :]
            self._left -= len(taken)
            self._packed.append(taken if self._packing is None else self._packing.compress(taken))
            if not self._left:
                self._finish_file()
                self._next_file()

    def header(self) -> dict[str, Any]:
        """Returns the first line when all parts were added, and makes importers find the files."""
        if self._header is None or self._left:
            raise ValueError("a part of the project is missing")
        for path, size in self._header.get("left_out", ()):
            _archive.leave_out(self._absolute(path), size)
        for path in self._header.get("borrowed", ()):
            _archive.borrow(self._absolute(path))
        _archive.added()
        return self._header

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self._root}/{path}"

    def _next_file(self) -> None:
        for self._path, self._size, *packed in self._files:
            self._left = packed[0] if packed else self._size
            self._packing = None if packed else _archive.compressor(self._level)
            if self._left:
                return
            self._finish_file()

    def _finish_file(self) -> None:
        if self._packing is not None:
            self._packed.append(self._packing.flush())
        packed = b"".join(self._packed)
        self._packed.clear()
        _archive.add(self._absolute(self._path), packed, self._size)
