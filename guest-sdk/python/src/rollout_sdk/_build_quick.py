"""The component of quick builds (`_quick.py`), and the project's files for it. Part of `_build.py`.

The component contains the SDK, the dependencies, and their modules that the project imports. Its name in the cache is a
digest of these, so an edit needs a new one only if it imports another package."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._build import Project, Tools
    from ._modules import Text

FILES_BYTES_MAX = 32 << 20
"""Maximum size of all files together. Each instance reads all of them."""


def build(of: Any, arguments: argparse.Namespace, tools: Tools) -> None:
    """Writes the project's files, and builds the component unless it exists. `of` is `_build`."""
    project: Project = of.project_of(arguments.project)
    if project.only_grader:
        of.at_fault(
            f"{arguments.project} only grades, and the quick way runs an agent: `rollout-host build` it, and give the "
            "component by --grader to a test of an agent"
        )
    tools.bundled = of.gather(project, arguments.cache, arguments.wheels)
    text: Text = of.read_modules(project)
    if not {"workflow", "agent-loop", "environment"} & set(text.exports):
        nearly = f": `{text.with_run[0]}` has `run` and is no subclass of `AgentWorkflow`" if text.with_run else (
            ": write one class that derives from `AgentWorkflow` and has `async def run(self, ctx)`"
        )
        of.at_fault(f"module `{project.entry}` has no workflow{nearly}; for a component that only grades, set `only-grader = true`")
    files = text.files if arguments.project.is_file() and not of.has_file(project) else _files(of, project)
    arguments.quick.write_bytes(_packed(of, project, files))
    exports = [export for export in of.WORLDS if export in {*text.exports, "settings"}]
    bundled = [name for name in text.imports if _is_in(tools.bundled, name)]
    kept = arguments.cache / "python" / f"quick-{_key(of, project, exports, bundled, tools, arguments.wheels)}.wasm"
    is_there = kept.is_file()
    if not is_there:
        of.say("preparing a component of the SDK and the dependencies, for this and later edits")
        imports = [*project.imports, *(name for name in text.imports if not name.startswith("rollout_sdk"))]
        code = f"""from rollout_sdk import _export, _quick

_quick.prepare(exports={exports!r}, imports={imports!r}, roots={[("/0/", ""), *of.ROOTS]!r})
"""
        nothing = tools.work / "nothing"
        nothing.mkdir()
        of.componentize(project, exports, of.entry_code(list(of.PRELOADED), code), nothing, tools)
    name = re.sub(r"[-.\s]+", "_", project.name)
    print(json.dumps({"name": name, "kept": str(kept), "made": not is_there}))


def _key(of: Any, project: Project, exports: list[str], imports: list[str], tools: Tools, wheels: Path | None) -> str:
    """Returns a key of all inputs of the component."""
    made_of = hashlib.sha256()
    parts = [exports, imports, project.imports, of.tag_of(project, wheels), importlib.metadata.version("componentize-py")]
    made_of.update(json.dumps(parts).encode())
    sdk = Path(__file__).resolve().parent
    for file in sorted([*sdk.glob("*.py"), *tools.wit.glob("*.wit")]):
        made_of.update(hashlib.sha256(file.read_bytes()).digest())
    return made_of.hexdigest()[:32]


def _is_in(bundled: Path | None, name: str) -> bool:
    if bundled is None:
        return False
    path = bundled / Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _files(of: Any, project: Project) -> Iterator[Path]:
    """Yields the files that a build of the project would include."""
    bytes_max: int = of._import_sibling("_archived").DATA_BYTES_MAX
    for place, directories, names in os.walk(project.source):
        if "pyvenv.cfg" in names:
            directories.clear()
            continue
        directories[:] = sorted(each for each in directories if each[0] != "." and each not in _NOT_OF_PROJECT)
        for name in sorted(names):
            file = Path(place, name)
            if name[0] != "." and file.suffix != ".wasm" and file.is_file():
                if name.endswith(".py") or file.stat().st_size <= bytes_max:
                    yield file


_NOT_OF_PROJECT = ("__pycache__", "node_modules", "target")


def _packed(of: Any, project: Project, files: Any) -> bytes:
    """Returns a line with a list of the files, followed by their contents."""
    listed: list[tuple[str, int]] = []
    contents: list[bytes] = []
    total = 0
    for file in files:
        content = file.read_bytes()
        total += len(content)
        if total > FILES_BYTES_MAX:
            of.at_fault(
                f"{project.source} has more than {FILES_BYTES_MAX >> 20} MiB of files, which is too much to give to each "
                "rollout; give the component that `rollout-host build` makes, or a directory with the project alone"
            )
        listed.append((file.relative_to(project.source).as_posix(), len(content)))
        contents.append(content)
    header = {
        "entry": project.entry,
        "only_grader": project.only_grader,
        "shown": of.shown_source(project),
        "files": listed,
    }
    return b"\n".join([json.dumps(header).encode(), b"".join(contents)])
