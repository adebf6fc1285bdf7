"""Names a component by all that it is made of. Part of `_build.py`.

Builds are reproducible: the same inputs make the same bytes. So a component that was built once serves every later
build with the same name. The inputs are the program (which rewrites the component that componentize-py makes), the
SDK, the contract, componentize-py, the Python that runs it, the project's settings and files, and the installed
dependencies. Nothing of the environment reaches the component's Python.
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
"""Members of a project that only say where it is."""


def kept_at(of: Any, project: Project, arguments: argparse.Namespace, tools: Tools, source: Path) -> Path:
    """Returns the path at which a component of these inputs is kept. `of` is `_build`, `source` the staged files."""
    return Path(arguments.cache, "python", f"built-{_key(of, project, arguments, tools, source)}.kept")


def _key(of: Any, project: Project, arguments: argparse.Namespace, tools: Tools, source: Path) -> str:
    settings = {each.name: getattr(project, each.name) for each in dataclasses.fields(project)}
    for name in _OF_PLACES:
        del settings[name]
    parts = [
        arguments.program_options,
        _digest(arguments.program),
        sys.version,
        settings,
        of.shown_source(project),
        of.tag_of(project, arguments.wheels),
        _tool(),
        [] if tools.bundled is None else list(_times(tools.bundled)),
        list(_digests(Path(__file__).resolve().parent)),
        list(_digests(tools.wit)),
        list(_digests(source)),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _files(directory: Path) -> Iterator[tuple[str, Path | None]]:
    """Everything in a directory by its name there, in one order; directories without a path."""
    for place, inner, names in os.walk(directory):
        inner[:] = sorted(each for each in inner if each != "__pycache__")
        yield os.path.relpath(place, directory), None
        for name in sorted(names):
            yield os.path.relpath(os.path.join(place, name), directory), Path(place, name)


def _digests(directory: Path) -> Iterator[tuple[str, str]]:
    for name, file in _files(directory):
        yield name, "" if file is None else _digest(file)


def _times(directory: Path) -> Iterator[tuple[str, int, int]]:
    """Sizes and times of installed files, which are many and large, and which only an installation writes."""
    for name, file in _files(directory):
        if file is not None:
            about = file.stat()
            yield name, about.st_size, about.st_mtime_ns


def _tool() -> list[tuple[str, str]]:
    """The digests of componentize-py's files."""
    release = importlib.metadata.distribution("componentize-py")
    files = sorted(release.files or [], key=str)
    there = [(str(each), Path(str(release.locate_file(each)))) for each in files if "__pycache__" not in each.parts]
    return [("version", release.version), *((name, _digest(file)) for name, file in there if file.is_file())]


def _digest(file: Path) -> str:
    made_of = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            made_of.update(part)
    return made_of.hexdigest()
