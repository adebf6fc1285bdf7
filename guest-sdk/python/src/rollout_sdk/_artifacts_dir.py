"""`artifacts_dir` of the published package: a directory for files that people read after the rollout. A component has
no such directory, so paths in it are names of artifacts here."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from . import artifact


class ArtifactsDir:
    """A name or prefix of the rollout's artifacts: `(ctx.artifacts_dir / "a.json").write_text(…)`."""

    def __init__(self, name: str = "") -> None:
        self._name = name

    def __truediv__(self, other: Any) -> ArtifactsDir:
        parts = [part for part in (self._name, str(other).strip("/")) if part and part != "."]
        return ArtifactsDir("/".join(parts))

    def joinpath(self, *others: Any) -> ArtifactsDir:
        """Returns the path below this one."""
        place = self
        for other in others:
            place = place / other
        return place

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._name.rpartition("/")[2]

    @property
    def parent(self) -> ArtifactsDir:
        """The path without its last part."""
        return ArtifactsDir(self._name.rpartition("/")[0])

    def __str__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"ArtifactsDir({self._name!r})"

    def __fspath__(self) -> str:
        raise TypeError(
            f"`{self._name or 'artifacts_dir'}` is an artifact and no file: a component has none. Use its own methods "
            "(write_text, write_bytes, open), or `rollout_sdk.artifact`"
        )

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Does nothing: names need no directories."""

    def exists(self) -> bool:
        """Returns whether there is an artifact of this name or below it."""
        return not self._name or self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Returns whether there is an artifact of this name."""
        return self._name in artifact.names()

    def is_dir(self) -> bool:
        """Returns whether there are artifacts below this name."""
        return not self._name or any(each.startswith(f"{self._name}/") for each in artifact.names())

    def iterdir(self) -> Iterator[ArtifactsDir]:
        """Yields the paths directly below this one."""
        prefix = f"{self._name}/" if self._name else ""
        inner = (each.removeprefix(prefix).partition("/")[0] for each in artifact.names() if each.startswith(prefix))
        return (self / each for each in dict.fromkeys(inner))

    def write_bytes(self, data: bytes) -> int:
        """Writes an artifact."""
        artifact.write(self._name, data)
        return len(data)

    def write_text(self, data: str, encoding: str | None = None, errors: str | None = None, newline: str | None = None) -> int:
        """Writes an artifact."""
        self.write_bytes(data.encode(encoding or "utf-8", errors or "strict"))
        return len(data)

    def read_bytes(self) -> bytes:
        """Reads an artifact."""
        return artifact.read(self._name)

    def read_text(self, encoding: str | None = None, errors: str | None = None, newline: str | None = None) -> str:
        """Reads an artifact."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def open(self, mode: str = "r", buffering: int = -1, encoding: str | None = None, *_: Any) -> Any:
        """Opens an artifact. A file that was opened for writing is stored when it is closed."""
        if set(mode) - set("rwatb") or not set(mode) & set("rwa"):
            raise ValueError(f"an artifact is opened to be read, written or added to, not by {mode!r}")
        known = self.read_bytes() if "r" in mode or ("a" in mode and self.is_file()) else b""
        file = io.BytesIO(known) if "r" in mode else _Written(self, known)
        return file if "b" in mode else io.TextIOWrapper(file, encoding or "utf-8")


class _Written(io.BytesIO):
    def __init__(self, place: ArtifactsDir, known: bytes) -> None:
        super().__init__()
        self._place = place
        self.write(known)

    def close(self) -> None:
        if not self.closed:
            self._place.write_bytes(self.getvalue())
        super().close()
