"""Finds the imports that each rollout would pay for, and reports their cost. Part of `_build.py`.

A module that is imported at the top of the author's module is imported while the component is built and costs a rollout
nothing. A module that a function imports is compiled and run in each rollout that calls the function, which takes seconds
for a large package. The seconds are measured in the component's Python, once for the same modules and dependencies.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._build import Project, Tools

SLOW_SECS = 0.3
"""Imports that take less are not reported."""

KEPT_MAX = 64
"""Measurements in the cache: the oldest are removed first. Each has about a hundred bytes."""

_FILE = "late.json"


def found(of: Any, project: Project, tools: Tools) -> dict[str, str]:
    """Returns the modules of dependencies that only functions import, with the first location. `of` is `_build`."""
    bundled = tools.bundled
    if bundled is None:
        return {}
    named = {name.partition(".")[0] for name in project.imports}
    late: dict[str, str] = of.read_modules(project).late
    return {name: place for name, place in late.items() if _root(name) not in named and _is_in(bundled, _root(name))}


def offer(of: Any, project: Project, arguments: argparse.Namespace, tools: Tools, exports: list[str], source: Path) -> None:
    """Prints a line for each slow import, with the setting that moves it to the build. `of` is `_build`."""
    places = found(of, project, tools)
    if not places:
        return
    names = sorted(places)
    kept = arguments.cache / "python" / f"late-{_key(of, project, arguments, names)}.json"
    taken = _read(kept, names)
    if taken is None:
        of.say(f"measuring the imports of {', '.join(names)} in a rollout")
        taken = _measured(of, project, tools, exports, source, names)
        _keep(kept, taken)
    slow = [name for name in names if taken.get(name, 0.0) >= SLOW_SECS]
    lines = [
        f"{of.shown_source(project)}{places[name]} imports `{name}` in a function: each rollout that calls it spends some "
        f"{taken[name]:.1f} s on it"
        for name in slow
    ]
    if slow:
        imports = json.dumps([*project.imports, *slow])
        lines.append(f"to have that done at the build, write in pyproject.toml: [{of.TABLE}] imports = {imports}")
        print("\n".join(lines), file=sys.stderr)


def _root(name: str) -> str:
    return name.partition(".")[0]


def _is_in(bundled: Path, root: str) -> bool:
    return (bundled / root).is_dir() or (bundled / f"{root}.py").is_file()


def _key(of: Any, project: Project, arguments: argparse.Namespace, names: list[str]) -> str:
    """Returns a key of all that the seconds depend on except the machine."""
    at_once: list[str] = [name for name in of.read_modules(project).imports if name not in names]
    tool = importlib.metadata.version("componentize-py")
    made_of = hashlib.sha256(json.dumps([names, at_once, project.imports, of.tag_of(project, arguments.wheels), tool]).encode())
    for file in sorted(Path(__file__).resolve().parent.glob("*.py")):
        made_of.update(hashlib.sha256(file.read_bytes()).digest())
    return made_of.hexdigest()[:32]


def _measured(of: Any, project: Project, tools: Tools, exports: list[str], source: Path, names: list[str]) -> dict[str, float]:
    """Imports the author's module and then these, and returns the seconds of each. Builds no component."""
    measuring = f"""import contextlib, json, time

with contextlib.suppress(Exception):
    importlib.import_module({project.entry!r})
_taken = {{}}
for _name in {names!r}:
    _begun = time.perf_counter()
    with contextlib.suppress(Exception):
        importlib.import_module(_name)
        _taken[_name] = time.perf_counter() - _begun
with open("/1/{_FILE}", "w") as _file:
    json.dump(_taken, _file)
raise SystemExit("measured")
"""
    apart = dataclasses.replace(tools, work=tools.work / "late", output=tools.work / "late.wasm")
    code = of.entry_code([*of.PRELOADED, *project.imports], measuring)
    with contextlib.suppress(of.BuildError):
        of.componentize(project, exports, code, source, apart)
    # Without a measurement, the import of the author's module failed, and the build has reported it.
    return _read(apart.work / "-".join(exports) / "entry" / _FILE, names) or {}


def _read(file: Path, names: list[str]) -> dict[str, float] | None:
    """Returns the seconds in a file, or None if it is missing or incomplete."""
    try:
        seconds: Any = json.loads(file.read_text())
        return {name: float(seconds[name]) for name in names if name in seconds}
    except (OSError, ValueError, TypeError):
        return None


def _keep(file: Path, taken: dict[str, float]) -> None:
    """Writes the file atomically. Without it, the next build measures again."""
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(taken))
        fresh.replace(file)
        kept = sorted(file.parent.glob("late-*.json"), key=lambda each: each.stat().st_mtime, reverse=True)
        for old in kept[KEPT_MAX:]:
            old.unlink(missing_ok=True)
