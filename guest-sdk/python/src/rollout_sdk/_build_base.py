"""The base of a project's component (`_take_in.py`), and the project's files for it. Part of `_build.py`.

The base has the SDK and the dependencies, none of which is imported. Its name in the cache is a digest of these, so projects with
the same dependencies share it, and an edit needs no new one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._build import Project, Tools

FILES_BYTES_MAX = 64 << 20
"""Maximum size of the files that are passed to the base. Its memory has them while the modules are imported."""

DATA_BYTES_MAX = 16 << 20
"""Size of the files above which further files other than modules are passed only if the modules open them."""

LARGE_BYTES = 1 << 20
"""Size of a file that is passed only if the modules open it. It is not part of the component either (`_archive.py`)."""

AUTHORS, BUNDLED = "/0/", "/2/"
"""Directories of a component: the project's modules, and the dependencies."""


def make(of: Any, project: Project, arguments: argparse.Namespace, tools: Tools, exports: list[str], source: Path) -> Path | None:
    """Writes the project's files, and builds the base unless it exists. Returns its path in the cache, or None if the cache
    may not be used. `of` is `_build`."""
    needed: list[str] = json.loads(arguments.also.read_text()) if arguments.also else []
    _write_files(of, project, source, tools, needed, arguments.files)
    native = sorted(file.relative_to(source) for file in source.rglob(f"*{of.OF_COMPONENT}"))
    kept: Path | None = None
    if arguments.program:
        kept = of._import_sibling("_build_key").base_at(of, project, arguments, tools, exports, source, native)
        if kept is not None and kept.is_file():
            return kept
    of.say("preparing a component of the interpreter, the SDK and the dependencies, for this and later builds")
    code = f"""from rollout_sdk import _take_in

_take_in.prepare(exports={exports!r}, roots={[(AUTHORS, ""), *of.ROOTS]!r})
"""
    # Native modules of the project are linked.
    apart = tools.work / "native"
    apart.mkdir()
    for file in native:
        (apart / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, apart / file)
    of.componentize(project, exports, of.entry_code(list(of.PRELOADED), code, is_base=True), apart, tools, is_base=True)
    return kept


def _write_files(of: Any, project: Project, source: Path, tools: Tools, needed: list[str], target: Path) -> None:
    """Writes a line with a list of the files, followed by their contents. `needed` are files of the component, of the project or
    of a dependency, that the modules open."""
    files = {f"{AUTHORS}{path}": (source / path, size) for path, size in _files(source, of.OF_COMPONENT)}
    wanted = {path for path in files if path.endswith(".py")}
    passed = [(path, files[path][1]) for path in files if path in wanted]
    total = sum(size for _, size in passed)
    if total > FILES_BYTES_MAX:
        of.at_fault(f"{project.source}: its modules have {total >> 20} MiB, and {FILES_BYTES_MAX >> 20} MiB is the limit")
    data = 0
    for path, (_, size) in files.items():
        if path not in wanted and size <= LARGE_BYTES and data + size <= DATA_BYTES_MAX:
            passed.append((path, size))
            data += size
    passed_paths = {path for path, _ in passed}
    if tools.bundled is not None:
        for path in needed:
            if path.startswith(BUNDLED) and (file := tools.bundled / path.removeprefix(BUNDLED)).is_file():
                files[path] = (file, file.stat().st_size)
    for is_needed, group in ((True, needed), (False, _beside(needed, files))):
        for path in group:
            if path in passed_paths or path not in files:
                continue
            size = files[path][1]
            if total + data + size > FILES_BYTES_MAX:
                if not is_needed:
                    continue
                of.at_fault(
                    f"{project.source}: its modules open files of {(total + data + size) >> 20} MiB while they are imported, and "
                    f"{FILES_BYTES_MAX >> 20} MiB is the limit; {path.removeprefix(AUTHORS)} is the first beyond it"
                )
            passed.append((path, size))
            passed_paths.add(path)
            data += size
    header = {
        "entry": project.entry,
        "imports": project.imports,
        "only_grader": project.only_grader,
        "shown": of.shown_source(project),
        "files": [(path, size) for path, size in passed],
        "left_out": [(path, files[path][1]) for path in files if path not in passed_paths],
    }
    with target.open("wb") as written:
        written.write(json.dumps(header).encode() + b"\n")
        for path, _ in passed:
            written.write(files[path][0].read_bytes())


def _beside(needed: list[str], files: dict[str, tuple[Path, int]]) -> list[str]:
    """Returns the files in the directories of needed ones, which are probably opened next; small ones first."""
    places = {path.rpartition("/")[0] for path in needed}
    return sorted((path for path in files if path.rpartition("/")[0] in places), key=lambda path: (files[path][1], path))


def _files(source: Path, native: str) -> list[tuple[str, int]]:
    """Returns the paths and sizes of the project's files, except native modules."""
    found: list[tuple[str, int]] = []
    for directory, inner, names in os.walk(source):
        inner.sort()
        for name in sorted(names):
            file = Path(directory, name)
            if not name.endswith(native):
                found.append((file.relative_to(source).as_posix(), file.stat().st_size))
    return found


def report(of: Any, project: Project, taken: Path) -> str:
    """Reports the author's modules as the base took them in: fails if they could not be imported, and prints and returns
    their output otherwise."""
    told: dict[str, Any] = json.loads(taken.read_text())
    output: str = of.shown(told["said"], project).strip()
    if error := told.get("error"):
        of.at_fault(f"{project.dir} could not be built\n{of.readable(error, project)}" + (f"\n{output}" if output else ""))
    if output:
        print(output, file=sys.stderr)
    return output
