"""The base of components (`_take_in.py`), and the files of a project for it. Part of `_build.py`.

The base has the interpreter, the SDK and native modules. Its name in the cache is a digest of these, so all projects with the same
exports and without native modules share one, and neither an edit nor another dependency needs a new one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._build import Project, Tools

FILES_BYTES_MAX = 64 << 20
"""Maximum size of the files of the author that are passed to the base, and of the files that the modules open. Its memory has them
while the modules are imported."""

DATA_BYTES_MAX = 16 << 20
"""Size of the author's files above which further files other than modules are passed only if the modules open them."""

AUTHORS, BUNDLED = "/0/", "/2/"
"""Directories of a component: the project's modules, and the dependencies."""


@dataclass
class _File:
    """A file of the project or of a dependency."""

    at: Path
    size: int
    is_archived: bool
    """Whether it is part of the component, if it is a dependency's."""


def make(of: Any, project: Project, arguments: argparse.Namespace, tools: Tools, exports: list[str], source: Path) -> Path | None:
    """Lists the project's files, and builds the base unless it exists. Returns its path in the cache, or None if the cache
    may not be used. `of` is `_build`."""
    needed: list[str] = json.loads(arguments.also.read_text()) if arguments.also else []
    _list_files(of, project, source, tools, needed, arguments.files)
    native = {AUTHORS: _native(of, source), BUNDLED: _native(of, tools.bundled)}
    kept: Path | None = None
    if arguments.program:
        kept = of._import_sibling("_build_key").base_at(arguments, tools, exports, native)
        if kept is not None and kept.is_file():
            return kept
    of.say("preparing a component of the interpreter and the SDK, for this and later builds")
    code = f"""from rollout_sdk import _take_in

_take_in.prepare(exports={exports!r}, roots={[(AUTHORS, ""), *of.ROOTS]!r})
"""
    # Native modules are linked. A directory without any has its place among the directories of modules nevertheless.
    linked: dict[str, Path] = {}
    for place, files in native.items():
        linked[place] = tools.work / f"native-{place.strip('/')}"
        linked[place].mkdir()
        for path, file in files:
            target = linked[place] / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    only_native = dataclasses.replace(tools, bundled=linked[BUNDLED])
    entry = of.entry_code(list(of.PRELOADED), code, is_base=True)
    of.componentize(project, exports, entry, linked[AUTHORS], only_native, is_base=True)
    return kept


def _native(of: Any, directory: Path | None) -> list[tuple[str, Path]]:
    """Returns the native modules in a directory, by their relative paths."""
    files = [] if directory is None else sorted(directory.rglob(f"*{of.OF_COMPONENT}"))
    return [(file.relative_to(directory).as_posix(), file) for file in files if directory is not None]


def _list_files(of: Any, project: Project, source: Path, tools: Tools, needed: list[str], target: Path) -> None:
    """Writes what the base receives: the facts about the project, and the files whose contents it gets, each with its path in the
    component, its size and its path here. `needed` are files of the component, of the project or of a dependency, that the modules
    open."""
    files = {f"{AUTHORS}{path}": file for path, file in _of_project(source, of.OF_COMPONENT)}
    authors = list(files)
    if unnamed := [path for path in authors if not _is_text(path)]:
        name = os.fsencode(unnamed[0]).decode("utf-8", "backslashreplace").removeprefix(AUTHORS)
        of.at_fault(f"{project.source}: the name of {name} is not UTF-8, which names in a component are; rename or remove the file")
    wanted = {path for path in files if path.endswith(".py")}
    passed = [path for path in files if path in wanted]
    total = sum(files[path].size for path in passed)
    if total > FILES_BYTES_MAX:
        of.at_fault(f"{project.source}: its modules have {total >> 20} MiB, and {FILES_BYTES_MAX >> 20} MiB is the limit")
    large: int = of._import_sibling("_archived").DATA_BYTES_MAX
    data = 0
    for path, file in files.items():
        if path not in wanted and file.size <= large and data + file.size <= DATA_BYTES_MAX:
            passed.append(path)
            data += file.size
    if tools.bundled is not None:
        for path, file in _of_dependencies(of, tools.bundled):
            files[f"{BUNDLED}{path}"] = file
            if file.is_archived:
                passed.append(f"{BUNDLED}{path}")
    passed_paths = set(passed)
    for is_needed, group in ((True, needed), (False, _beside(needed, authors, files))):
        for path in group:
            if path in passed_paths or path not in files:
                continue
            size = files[path].size
            if total + data + size > FILES_BYTES_MAX:
                if not is_needed:
                    continue
                of.at_fault(
                    f"{project.source}: its modules open files of {(total + data + size) >> 20} MiB while they are imported, and "
                    f"{FILES_BYTES_MAX >> 20} MiB is the limit; {path.removeprefix(AUTHORS)} is the first beyond it"
                )
            passed.append(path)
            passed_paths.add(path)
            data += size
    header = {
        "entry": project.entry,
        "imports": project.imports,
        "only_grader": project.only_grader,
        "shown": of.shown_source(project),
        "left_out": [(path, file.size) for path, file in files.items() if path not in passed_paths],
        "borrowed": [path for path in passed if not files[path].is_archived],
    }
    # A path here may have any bytes.
    listed = [(path, os.fsencode(files[path].at).decode("latin-1")) for path in passed]
    target.write_text(json.dumps({"header": header, "files": listed}))


def _is_text(path: str) -> bool:
    """Returns whether the bytes of a path are a text. Others are surrogates in it."""
    return not any("\ud800" <= each <= "\udfff" for each in path)


def _beside(needed: list[str], authors: list[str], files: dict[str, _File]) -> list[str]:
    """Returns the author's files in the directories of needed ones, which are probably opened next; small ones first."""
    places = {path.rpartition("/")[0] for path in needed}
    beside = (path for path in authors if path.rpartition("/")[0] in places)
    return sorted(beside, key=lambda path: (files[path].size, path))


def _of_project(source: Path, native: str) -> list[tuple[str, _File]]:
    """Returns the project's files by their relative paths, except native modules."""
    found: list[tuple[str, _File]] = []
    for directory, inner, names in os.walk(source):
        inner.sort()
        for name in sorted(names):
            file = Path(directory, name)
            if not name.endswith(native):
                found.append((file.relative_to(source).as_posix(), _File(file, file.stat().st_size, is_archived=True)))
    return found


def _of_dependencies(of: Any, directory: Path, place: str = "", *, in_package: bool = False) -> Iterator[tuple[str, _File]]:
    """Yields the files of dependencies by their relative paths, except native modules."""
    found = sorted(directory.iterdir(), key=lambda each: each.name)
    names = {each.name for each in found}
    # A virtual environment is no package.
    if "pyvenv.cfg" in names:
        return
    is_archived = of._import_sibling("_archived").is_archived
    in_package = in_package or "__init__.py" in names
    has_data = in_package or directory.name.endswith(".dist-info")
    for each in found:
        path = f"{place}{each.name}"
        if each.is_dir():
            if each.name != "__pycache__" and not each.name.startswith("."):
                yield from _of_dependencies(of, each, f"{path}/", in_package=in_package)
        elif each.is_file() and not each.name.endswith(of.OF_COMPONENT):
            size = each.stat().st_size
            yield path, _File(each, size, is_archived(each.name, size, in_package=has_data))


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
