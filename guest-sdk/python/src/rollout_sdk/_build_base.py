"""The base of a project's component (`_take_in.py`), and the project's files for it. Part of `_build.py`.

The base has the SDK, the dependencies, and those of their modules that the project imports. Its name in the cache is a digest
of these, so projects with the same dependencies share it, and an edit needs a new one only if it imports another package.
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


def make(of: Any, project: Project, arguments: argparse.Namespace, tools: Tools, exports: list[str], source: Path) -> Path | None:
    """Writes the project's files, and builds the base unless it exists. Returns its path in the cache, or None if the cache
    may not be used. `of` is `_build`."""
    _write_files(of, project, source, arguments.also, arguments.files)
    native = sorted(source.rglob(f"*{of.OF_COMPONENT}"))
    imports = _imports(of, project, tools, source)
    kept: Path | None = None
    if arguments.program:
        kept = of._import_sibling("_build_key").base_at(of, project, arguments, tools, exports, imports, native)
        if kept is not None and kept.is_file():
            return kept
    of.say("preparing a component of the interpreter, the SDK and the dependencies, for this and later builds")
    code = f"""from rollout_sdk import _take_in

_take_in.prepare(exports={exports!r}, imports={imports!r}, roots={[("/0/", ""), *of.ROOTS]!r})
"""
    # Native modules of the project are linked.
    apart = tools.work / "native"
    apart.mkdir()
    for file in native:
        copied = apart / file.relative_to(source)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copied)
    entry = of.entry_code([*of.PRELOADED, *project.imports], code, is_base=True)
    of.componentize(project, exports, entry, apart, tools, is_base=True)
    return kept


def _imports(of: Any, project: Project, tools: Tools, source: Path) -> list[str]:
    """Returns the modules of dependencies that the base imports."""
    bundled = tools.bundled
    if bundled is None:
        return []
    # A module of the project takes the place of a dependency's, also where dependencies import it.
    own = {each.stem for each in source.iterdir() if each.suffix == ".py" or (each / "__init__.py").is_file()}
    if any(each.name.partition(".")[0] in own for each in bundled.iterdir()):
        return []
    modules = of._import_sibling("_modules")
    quick = of._import_sibling("_build_quick")
    return [name for name in modules.first_imports(source, project.entry) if quick.is_in(bundled, name)]


def _write_files(of: Any, project: Project, source: Path, also: list[str], target: Path) -> None:
    """Writes a line with a list of the files, followed by their contents. `also` are files that the modules need."""
    files = _files(source, of.OF_COMPONENT)
    passed: list[tuple[str, int]] = []
    left_out: list[tuple[str, int]] = []
    total = 0
    # Modules come first, and what they are known to need.
    for path, size in sorted(files, key=lambda each: not (each[0].endswith(".py") or each[0] in also)):
        is_wanted = path.endswith(".py") or path in also
        if not is_wanted and (size > LARGE_BYTES or total + size > DATA_BYTES_MAX):
            left_out.append((path, size))
            continue
        passed.append((path, size))
        total += size
        if total > FILES_BYTES_MAX:
            what = f"its modules open files of {total >> 20} MiB" if path in also else f"its modules have {total >> 20} MiB"
            of.at_fault(
                f"{project.source}: {what} while they are imported, and {FILES_BYTES_MAX >> 20} MiB is the limit; {path} is the "
                "first beyond it"
            )
    header = {
        "entry": project.entry,
        "only_grader": project.only_grader,
        "shown": of.shown_source(project),
        "files": passed,
        "left_out": left_out,
    }
    with target.open("wb") as written:
        written.write(json.dumps(header).encode() + b"\n")
        for path, _ in passed:
            written.write((source / path).read_bytes())


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
