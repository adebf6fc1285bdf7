"""The cache key of a component: a digest of all inputs. Part of `_build.py`.

Builds are reproducible: the same inputs result in the same bytes. So a component that was built once is reused for
every later build with the same key. The inputs are the program (which rewrites the component that componentize-py
creates), the SDK, the contract, componentize-py, the Python that runs it, the project's settings and files, and the
installed dependencies. The component's Python does not see the environment.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._build import Project, Tools

_OF_PLACES = ("dir", "source")
"""Fields of a project that are only its location."""


def kept_at(of: Any, project: Project, arguments: argparse.Namespace, tools: Tools, source: Path) -> Path:
    """Returns the path in the cache for a component of these inputs. `of` is `_build`, `source` the staged files."""
    return Path(arguments.cache, "python", f"built-{_key(of, project, arguments, tools, source)}.kept")


def base_at(arguments: argparse.Namespace, tools: Tools, exports: list[str], native: dict[str, list[tuple[str, Path]]]) -> Path:
    """Returns the path in the cache for a base with these exports and these native modules, which are listed by directory."""
    modules = {place: [(path, digest(file)) for path, file in files] for place, files in native.items()}
    parts = [sys.version, exports, modules, *_maker(tools)]
    return Path(arguments.cache, "python", f"base-{_digest_of(parts)}.kept")


def _key(of: Any, project: Project, arguments: argparse.Namespace, tools: Tools, source: Path) -> str:
    settings = {each.name: getattr(project, each.name) for each in dataclasses.fields(project)}
    for name in _OF_PLACES:
        del settings[name]
    parts = [
        arguments.program_options,
        digest(arguments.program),
        sys.version,
        settings,
        of.shown_source(project),
        *_environment(of, project, arguments, tools),
        list(_digests(source)),
    ]
    return _digest_of(parts)


def _environment(of: Any, project: Project, arguments: argparse.Namespace, tools: Tools) -> list[Any]:
    """Returns the inputs other than the project's files and settings."""
    return [
        of.tag_of(project, arguments.wheels),
        [] if tools.bundled is None else list(_times(tools.bundled)),
        *_maker(tools),
    ]


def _maker(tools: Tools) -> list[Any]:
    """Returns what makes components: componentize-py, the SDK and the contract."""
    return [_tool(), list(_digests(Path(__file__).resolve().parent)), list(_digests(tools.wit))]


def _digest_of(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _files(directory: Path) -> Iterator[tuple[str, Path | None]]:
    """Yields everything in a directory by its relative name, in a fixed order; directories have no path."""
    for place, inner, names in os.walk(directory):
        inner[:] = sorted(each for each in inner if each != "__pycache__")
        yield os.path.relpath(place, directory), None
        for name in sorted(names):
            yield os.path.relpath(os.path.join(place, name), directory), Path(place, name)


def _digests(directory: Path) -> Iterator[tuple[str, str]]:
    for name, file in _files(directory):
        yield name, "" if file is None else digest(file)


def _times(directory: Path) -> Iterator[tuple[str, int, int]]:
    """Yields sizes and times of installed files, which are too many and too large for digests and change only when
    packages are installed."""
    for name, file in _files(directory):
        if file is not None:
            about = file.stat()
            yield name, about.st_size, about.st_mtime_ns


def _tool() -> list[tuple[str, str]]:
    """Returns the digests of componentize-py's files."""
    release = importlib.metadata.distribution("componentize-py")
    files = sorted(release.files or [], key=str)
    there = [(str(each), Path(str(release.locate_file(each)))) for each in files if "__pycache__" not in each.parts]
    return [("version", release.version), *((name, digest(file)) for name, file in there if file.is_file())]


def digest(file: Path) -> str:
    made_of = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            made_of.update(part)
    return made_of.hexdigest()
