"""From a project directory to a component. Run by `rollout-host build`, on the author's
machine and never in a component.

Four steps: read `pyproject.toml`, gather the dependencies, ask the entry module what it
has, and have componentize-py make a component of it all. Exit code 1 says that the
project is at fault, 2 that a tool is missing or failed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Never

TABLE = "tool.rollout-host"

ENTRY = "_rollout_entry"

AT_FAULT = 1
NOT_DONE = 2

# The worlds of the contract that go with what an entry module has. The component's own
# world includes them: componentize-py 0.25 cannot join worlds with resources by itself.
WORLDS = {
    "workflow": "workflow-plugin",
    "agent-loop": "agent-loop-plugin",
    "grader": "grader-plugin",
    "settings": "with-settings",
}

# Modules of the standard library that it imports only when they are first needed, which
# a component has no files for. They cost the component nothing until they are used.
PRELOADED = (
    "_strptime",
    "base64",
    "bisect",
    "calendar",
    "collections.abc",
    "contextvars",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "encodings.idna",
    "encodings.latin_1",
    "encodings.utf_16",
    "encodings.utf_32",
    "fractions",
    "hashlib",
    "heapq",
    "hmac",
    "inspect",
    "itertools",
    "json",
    "linecache",
    "locale",
    "logging",
    "math",
    "operator",
    "pathlib",
    "pprint",
    "queue",
    "random",
    "re",
    "secrets",
    "shlex",
    "statistics",
    "string",
    "textwrap",
    "time",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "uuid",
    "weakref",
)


class BuildError(Exception):
    """Why there is no component, and whose move it is."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def at_fault(text: str) -> Never:
    raise BuildError(AT_FAULT, text)


def not_done(text: str) -> Never:
    raise BuildError(NOT_DONE, text)


@dataclass
class Project:
    """What `pyproject.toml` says."""

    dir: Path
    name: str
    entry: str
    source: Path
    """The directory that modules are imported from."""
    dependencies: list[str]
    only_grader: bool = False
    imports: list[str] = field(default_factory=list)
    without_native: list[str] = field(default_factory=list)
    leave_out: list[str] = field(default_factory=list)


def read_project(directory: Path) -> Project:
    """Reads and checks the project's file."""
    file = directory / "pyproject.toml"
    try:
        said = tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        at_fault(f"{file}: {error}")
    project = said.get("project", {})
    table = said.get("tool", {}).get("rollout-host", {})
    if not isinstance(project, dict) or not isinstance(table, dict):
        at_fault(f"{file}: [project] and [{TABLE}] are tables")
    known = {"entry", "only-grader", "imports", "without-native", "leave-out"}
    if unknown := sorted(set(table) - known):
        at_fault(f"{file}: [{TABLE}] has no `{unknown[0]}`; it has {', '.join(sorted(known))}")
    name = _text_of(file, "project", project, "name", directory.resolve().name)
    entry, source = _find_entry(file, directory, name, _text_of(file, TABLE, table, "entry", ""))
    only_grader = table.get("only-grader", False)
    if not isinstance(only_grader, bool):
        at_fault(f"{file}: [{TABLE}] only-grader is true or false")
    return Project(
        directory,
        name,
        entry,
        source,
        _texts(file, "project", project, "dependencies"),
        only_grader,
        _texts(file, TABLE, table, "imports"),
        [canonical(each) for each in _texts(file, TABLE, table, "without-native")],
        [canonical(each) for each in _texts(file, TABLE, table, "leave-out")],
    )


def _text_of(file: Path, table: str, values: dict[str, Any], key: str, default: str) -> str:
    value = values.get(key, default)
    if not isinstance(value, str):
        at_fault(f"{file}: [{table}] {key} is a text")
    return value


def _texts(file: Path, table: str, values: dict[str, Any], key: str) -> list[str]:
    value = values.get(key, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        at_fault(f"{file}: [{table}] {key} is a list of texts")
    return value


def _find_entry(file: Path, directory: Path, name: str, entry: str) -> tuple[str, Path]:
    """The entry module and the directory that it is imported from."""
    named = entry.split(":")[0].removesuffix(".py").replace("/", ".")
    candidates = [named] if named else [re.sub(r"[-.\s]+", "_", name), "workflow", "main"]
    for module in candidates:
        path = Path(*module.split("."))
        for source in (directory, directory / "src"):
            if (source / path).with_suffix(".py").is_file() or (source / path / "__init__.py").is_file():
                return module, source
    looked = ", ".join(f"{module.replace('.', '/')}.py" for module in candidates)
    at_fault(
        f'{file}: there is no entry module; looked for {looked} here and in src. Say which it is: '
        f'[{TABLE}] entry = "MODULE"'
    )


def canonical(name: str) -> str:
    """A distribution's name in the form in which names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _required_name(requirement: str) -> str:
    return canonical(re.split(r"[\s\[<>=!~;@(]", requirement.strip(), maxsplit=1)[0])


# Dependencies.


def gather(project: Project, cache: Path) -> Path | None:
    """Installs what the project depends on into a directory, which is kept for the next
    build. None where it depends on nothing."""
    wanted = [
        requirement
        for requirement in project.dependencies
        if _required_name(requirement) not in {"rollout-sdk", *project.leave_out}
    ]
    if not wanted:
        return None
    tag = json.dumps([wanted, project.without_native, project.leave_out, sys.version_info[:2]])
    kept = cache / "python" / hashlib.sha256(tag.encode()).hexdigest()[:32]
    if not kept.is_dir():
        fresh = kept.with_name(f"{kept.name}.{os.getpid()}")
        try:
            _install(wanted, fresh, project.dir)
            _remove(fresh, project.leave_out)
            _refuse_native(fresh, project.without_native)
            fresh.replace(kept)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return kept


def _install(wanted: list[str], target: Path, directory: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        not_done(f"{sys.executable} has no pip, which installs dependencies; run: {sys.executable} -m ensurepip")
    command = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-compile", "--target", str(target), "--", *wanted]
    done = subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        at_fault(f"the dependencies could not be installed: {', '.join(wanted)}\n{done.stdout.strip()}")


def _distributions(target: Path) -> list[tuple[str, list[str], Path]]:
    """Name, files and directory of information of each installed distribution."""
    found: list[tuple[str, list[str], Path]] = []
    for info in sorted(target.glob("*.dist-info")):
        record = info / "RECORD"
        lines = record.read_text().splitlines() if record.is_file() else []
        files = [line.rsplit(",", 2)[0].strip('"') for line in lines]
        found.append((canonical(info.name.removesuffix(".dist-info").rsplit("-", 1)[0]), files, info))
    return found


def _remove(target: Path, names: list[str]) -> None:
    for name, files, info in _distributions(target):
        if name in names:
            for file in files:
                (target / file).unlink(missing_ok=True)
            shutil.rmtree(info, ignore_errors=True)


_NATIVE = (".so", ".pyd", ".dylib", ".dll")


def _refuse_native(target: Path, allowed: list[str]) -> None:
    """Names what a component cannot run. Packages whose native code only makes them
    quicker may go without it."""
    refused: list[str] = []
    for name, files, _ in _distributions(target):
        native = [file for file in files if file.endswith(_NATIVE) or ".so." in file]
        if not native:
            continue
        if name in allowed:
            for file in native:
                (target / file).unlink(missing_ok=True)
        else:
            refused.append(f"  - {name} ({native[0]})")
    if refused:
        at_fault(
            "these dependencies are native code, which a component cannot run:\n"
            + "\n".join(refused)
            + "\nDepend on a package of pure Python instead. If one works without its native part, name it in "
            f"[{TABLE}] without-native; if one that came along is not needed at run time, name it in leave-out."
        )


# What the entry module has.


def probe(project: Project, sdk: Path, bundled: Path | None) -> list[str]:
    """Imports the entry module in a process of its own and gives the contract's
    interfaces that it fills in."""
    paths = [str(path) for path in (project.source.resolve(), bundled, sdk) if path is not None]
    command = [sys.executable, "-I", "-B", __file__, "--probe", project.entry, json.dumps(paths)]
    if project.only_grader:
        command.append("--only-grader")
    done = subprocess.run(command, cwd=project.dir, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        at_fault(done.stderr.strip() or f"importing {project.entry} ended with exit code {done.returncode}")
    exports = json.loads(done.stdout.splitlines()[-1])
    return [str(export) for export in exports]


def _probe(entry: str, paths: list[str], only_grader: bool) -> int:
    sys.path[:0] = paths
    out = sys.stdout
    # What the author's module prints must not be taken for the answer.
    sys.stdout = sys.stderr
    from rollout_sdk import _discover

    try:
        module = importlib.import_module(entry)
        exports = _discover.discover(module, only_grader=only_grader).exports
    except _discover.NotAPlugin as error:
        print(error, file=sys.stderr)
        return AT_FAULT
    except BaseException as error:
        said = traceback.TracebackException.from_exception(error)
        kept = [frame for frame in said.stack if frame.filename != __file__ and "importlib" not in frame.filename]
        said.stack[:] = kept
        text = "".join(said.format()).strip()
        print(f"importing the entry module `{entry}` failed:\n{text}", file=sys.stderr)
        return AT_FAULT
    print(json.dumps(exports), file=out)
    return 0


# The component.


def entry_code(project: Project) -> str:
    """The module that componentize-py is given: it takes the author's in."""
    source = os.path.relpath(project.source, project.dir)
    shown = "" if source == "." else f"{source}/"
    preloaded = [*PRELOADED, *project.imports]
    return f'''"""Made by `rollout-host build`."""
import importlib

for _name in {preloaded!r}:
    importlib.import_module(_name)
from rollout_sdk import _absent

_absent.stand_in()

_entry = importlib.import_module({project.entry!r})
from rollout_sdk import _export

_export.load(
    _entry,
    only_grader={project.only_grader},
    roots=[("/0/", {shown!r}), ("/python/", "python/"), ("/1/", ""), ("/2/", ""), ("/3/", "")],
)


_EXPORTS = ("AgentLoop", "Grader", "Settings", "Workflow")


def __getattr__(name):
    """Gives componentize-py the contract's exports, for which it asks when everything was
    imported: the time to settle."""
    if name not in _EXPORTS:
        raise AttributeError(name)
    _export.settle()
    globals().update((each, vars(_export)[each]) for each in _EXPORTS)
    return globals()[name]
'''


def world_text(wit: Path, exports: list[str]) -> str:
    """The world of a component with these exports."""
    contract = re.search(r"^package ([\w:-]+)@([\w.]+);", (wit / "plugin.wit").read_text(), re.MULTILINE)
    if contract is None:
        not_done(f"{wit}/plugin.wit names no package")
    name, version = contract.groups()
    included = "".join(f"    include {name}/{WORLDS[export]}@{version};\n" for export in exports)
    return f"package rollout:component;\n\nworld component {{\n{included}}}\n"


def componentize(
    project: Project, exports: list[str], tool: str, wit: Path, sdk: Path, bundled: Path | None, work: Path, output: Path
) -> None:
    """Has componentize-py make the component."""
    work, wit = work.resolve(), wit.resolve()
    entry = work / "entry"
    entry.mkdir()
    (entry / f"{ENTRY}.py").write_text(entry_code(project))
    # Otherwise the packages of whatever environment this runs in would come along.
    nothing = work / "environment"
    (nothing / "lib" / "site-packages").mkdir(parents=True)
    world = work / "world"
    shutil.copytree(wit, world / "deps" / "plugin")
    (world / "component.wit").write_text(world_text(wit, exports))
    command = [tool, "-q", "-d", str(world), "-w", "component", "--world-module", "_rollout_wit"]
    command += ["componentize", ENTRY, "-o", str(output.resolve())]
    for path in (project.source.resolve(), entry, bundled, sdk):
        if path is not None:
            command += ["-p", str(path)]
    environment = {**os.environ, "VIRTUAL_ENV": str(nothing), "RUST_BACKTRACE": "0"}
    try:
        done = subprocess.run(command, cwd=work, env=environment, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except OSError as error:
        not_done(f"cannot run {tool}: {error}")
    if done.returncode != 0:
        at_fault(f"componentize-py could not build {project.dir}\n{_readable(done.stdout, project)}")


# The frames of a traceback: the author's, this module's own, those of dependencies.
_FRAME = re.compile(r'  File "/(\d)/(.*)", line')


def _readable(said: str, project: Project) -> str:
    """What componentize-py says of the author's code, with the author's paths in it; or
    all that it says, where that is something else."""
    begin = said.find("AssertionError: ")
    if begin < 0:
        return said.strip()
    said = said[begin:].removeprefix("AssertionError: ").split("\n\nCaused by:")[0].split("\nStack backtrace:")[0]
    lines: list[str] = []
    skipping = False
    for line in said.splitlines():
        if frame := _FRAME.match(line):
            skipping = frame[2] == ENTRY + ".py"
            if frame[1] == "0":
                line = line.replace('"/0/', f'"{project.source}/')
            else:
                line = re.sub(r'"/\d/', '"', line)
        elif not line.startswith("    "):
            skipping = False
        if not skipping:
            lines.append(line)
    return "\n".join(lines).strip()


def build(arguments: argparse.Namespace) -> None:
    project = read_project(arguments.project)
    sdk = Path(__file__).resolve().parent.parent
    bundled = gather(project, arguments.cache)
    exports = probe(project, sdk, bundled)
    componentize(
        project, exports, arguments.componentize_py, arguments.wit, sdk, bundled, arguments.work, arguments.output
    )
    print(json.dumps({"name": re.sub(r"[-.\s]+", "_", project.name)}))


def main() -> int:
    if sys.argv[1:2] == ["--probe"]:
        return _probe(sys.argv[2], json.loads(sys.argv[3]), "--only-grader" in sys.argv[4:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path)
    parser.add_argument("--componentize-py", required=True)
    for name in ("wit", "work", "cache", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    try:
        build(parser.parse_args())
    except BuildError as error:
        print(error, file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
