"""Named files that are stored with the rollout.

A workflow writes them, and its grader can read them. A name is one or more path segments
of letters, digits, `.`, `_` and `-`, joined by `/`.
"""

from __future__ import annotations

from . import _host


def write(name: str, content: bytes | bytearray | str) -> None:
    """Writes a file, or replaces one of the same name. Text is stored as UTF-8. Raises `ArtifactError`."""
    _host.write_artifact(name, _host.text(content).encode() if isinstance(content, str) else bytes(content))


def read(name: str) -> bytes:
    """Reads a file of this rollout. Raises `ArtifactError`."""
    return _host.read_artifact(name)


def read_text(name: str) -> str:
    """Reads a file of this rollout as UTF-8 text."""
    return read(name).decode()


def names() -> list[str]:
    """Returns the sorted names of this rollout's files."""
    return _host.artifact_names()
