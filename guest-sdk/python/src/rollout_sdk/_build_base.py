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

FILES_BYTES_MAX = 256 << 20
"""Maximum size of a project's files. The component has them in its memory while its modules are imported."""


def make(of: Any, project: Project, arguments: argparse.Namespace, tools: Tools, exports: list[str], source: Path) -> Path | None:
    """Writes the project's files, and builds the base unless it exists. Returns its path in the cache, or None if the cache
    may not be used. `of` is `_build`."""
    arguments.files.write_bytes(_packed(of, project, source))
    quick = of._import_sibling("_build_quick")
    bundled = [name for name in of.read_modules(project).imports if quick.is_in(tools.bundled, name)]
    # Native modules of the project's own are linked.
    native = [file.relative_to(source) for file in sorted(source.rglob(f"*{of.OF_COMPONENT}"))]
    digests = [of._import_sibling("_build_key").digest(source / file) for file in native]
    linked = [f"{file}={digest}" for file, digest in zip(native, digests, strict=True)]
    key = quick.key(of, project, exports, bundled + linked, tools, arguments.wheels)
    kept = Path(arguments.cache, "python", f"base-{key}.kept") if arguments.program else None
    if kept is None or not kept.is_file():
        of.say("preparing a component of the interpreter, the SDK and the dependencies, for this and later builds")
        code = f"""from rollout_sdk import _take_in

_take_in.prepare(exports={exports!r}, imports={bundled!r}, roots={[("/0/", ""), *of.ROOTS]!r})
"""
        apart = tools.work / "native"
        apart.mkdir()
        for file in native:
            (apart / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file, apart / file)
        entry = of.entry_code([*of.PRELOADED, *project.imports], code, is_base=True)
        of.componentize(project, exports, entry, apart, tools, is_base=True)
    return kept


def _packed(of: Any, project: Project, source: Path) -> bytes:
    """Returns a line with a list of the files, followed by their contents."""
    listed: list[tuple[str, int]] = []
    contents: list[bytes] = []
    total = 0
    for directory, inner, names in os.walk(source):
        inner.sort()
        for name in sorted(names):
            file = Path(directory, name)
            total += file.stat().st_size
            if total > FILES_BYTES_MAX:
                of.at_fault(
                    f"{project.source} has more than {FILES_BYTES_MAX >> 20} MiB of files, all of which its modules could read "
                    "while they are imported; move those that they do not need out of it"
                )
            content = file.read_bytes()
            listed.append((file.relative_to(source).as_posix(), len(content)))
            contents.append(content)
    header = {"entry": project.entry, "only_grader": project.only_grader, "shown": of.shown_source(project), "files": listed}
    return b"\n".join([json.dumps(header).encode(), b"".join(contents)])


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
