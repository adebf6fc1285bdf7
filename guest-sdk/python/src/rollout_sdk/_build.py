"""Builds a component from a project directory. `rollout-host build` runs it on the author's machine; it is never part of
a component.

There are three steps: read `pyproject.toml`, install the dependencies for the component's Python, and have
componentize-py make a component. The author's modules are imported only in the component's Python. Exit code 1 means
that the project is at fault, 2 that a tool is missing or failed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from ._older import Never

TABLE = "tool.rollout-host"

ENTRY = "_rollout_entry"

SAID = "» "

AT_FAULT = 1
NOT_DONE = 2

# The version of Python in a component.
PYTHON = "3.14"

# Distributions that are not installed, because the SDK provides the part of them that is used.
OWN = ("rollout-host", "rollout-sdk", "osmosis-ai", "strands-agents", "openai-agents")

# Dependencies of other packages that a component does not need: they cannot be built for it, and `_absent.py` has
# stand-ins for the names that are imported from them.
DONE_WITHOUT = ("cryptography",)

# Distributions that are published only with native code and are installed without it.
GO_WITHOUT_NATIVE = ("litellm",)

# Distributions that can be installed and not imported, each with the reason and a replacement. The build fails before
# it installs one, and names the packages that require it.
CANNOT_WORK = {
    "litellm": "its import needs its native part, litellm.rust_bridge._native, which was not made for components, and older "
    "releases download a list of prices. A component asks one model, the host's: by `ctx.agent()` and `ctx.sample`, or by "
    "`rollout_sdk.openai_client.HostClient` where a library takes a client of `openai`",
}

# Distributions with native code that was not made for components, each with a replacement.
IN_PLACE_OF = {
    "pandas": "it was not made for components; numpy was, and `csv`, `json` and `statistics` read and sum up tables",
    "scikit-learn": "it was not made for components; numpy was",
    "scipy": "it was not made for components; numpy was, with `numpy.linalg`, `numpy.fft` and `numpy.random`",
}

# Distributions that work in a component only in part, each with a note for the author who depends on it.
WORK_IN_PART = {
    "anthropic": "its types work, and its clients find no network; ask the host's model by "
    "`rollout_sdk.anthropic_client.HostClient` in place of its client, by `ctx.agent()` or by `ctx.sample`",
}

# Distributions that require a package in CANNOT_WORK and work without it: they import it in functions that a component
# does not need.
WORK_WITHOUT = {"dspy": ("litellm",)}

# The world of the contract for each export. The component's own world includes them, because componentize-py 0.25
# cannot join worlds with resources.
WORLDS = {
    "workflow": "workflow-plugin",
    "agent-loop": "agent-loop-plugin",
    "environment": "environment-plugin",
    "grader": "grader-plugin",
    "group-grader": "group-grader-plugin",
    "settings": "with-settings",
}

# Modules that the standard library imports lazily. In the component they cost nothing; a late import would cost each
# rollout.
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
    """A build that failed, with the exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def say(text: str) -> None:
    """Prints the current step. `rollout-host build` shows lines with this mark immediately."""
    print(f"{SAID}{text}", file=sys.stderr, flush=True)


def at_fault(text: str) -> Never:
    raise BuildError(AT_FAULT, text)


def not_done(text: str) -> Never:
    raise BuildError(NOT_DONE, text)


@dataclass
class Project:
    """The contents of `pyproject.toml`."""

    dir: Path
    name: str
    entry: str
    source: Path
    """The directory that modules are imported from."""
    dependencies: list[str]
    only_grader: bool = False
    imports: list[str] = field(default_factory=list[str])
    without_native: list[str] = field(default_factory=lambda: list(GO_WITHOUT_NATIVE))
    leave_out: list[str] = field(default_factory=list[str])
    published: list[str] = field(default_factory=list[str])


def project_of(path: Path) -> Project:
    """Returns the project in a directory, or that of an entry module, which may have no project file."""
    if path.is_dir():
        return read_project(path)
    if (path.parent / "pyproject.toml").is_file():
        return read_project(path.parent, path.stem)
    return Project(path.parent, path.stem, path.stem, path.parent, [])


def has_file(project: Project) -> bool:
    """Returns whether the project has a `pyproject.toml`."""
    return (project.dir / "pyproject.toml").is_file()


def read_project(directory: Path, module: str = "") -> Project:
    """Reads and checks the project's file. `module` overrides its entry."""
    file = directory / "pyproject.toml"
    try:
        contents = tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        at_fault(f"{file}: {error}")
    tools: Any = contents.get("tool", {})
    project, table = contents.get("project", {}), tools.get("rollout-host", {})
    if not _is_table(project) or not _is_table(table):
        at_fault(f"{file}: [project] and [{TABLE}] are tables")
    known = {"entry", "only-grader", "imports", "without-native", "leave-out", "published"}
    if unknown := sorted(set(table) - known):
        at_fault(f"{file}: [{TABLE}] has no `{unknown[0]}`; it has {', '.join(sorted(known))}")
    name = _text_of(file, "project", project, "name", directory.resolve().name)
    entry, source = _find_entry(file, directory, name, module or _text_of(file, TABLE, table, "entry", ""))
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
        [*GO_WITHOUT_NATIVE, *(canonical(each) for each in _texts(file, TABLE, table, "without-native"))],
        [canonical(each) for each in _texts(file, TABLE, table, "leave-out")],
        [canonical(each) for each in _texts(file, TABLE, table, "published")],
    )


def _is_table(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list_of_texts(value: Any) -> TypeGuard[list[str]]:
    items: list[Any] = list(value) if type(value).__name__ == 'list' else [None]
    return all(map(_is_text, items))


def _text_of(file: Path, table: str, values: dict[str, Any], key: str, default: str) -> str:
    value = values.get(key, default)
    if not isinstance(value, str):
        at_fault(f"{file}: [{table}] {key} is a text")
    return value


def _texts(file: Path, table: str, values: dict[str, Any], key: str) -> list[str]:
    value = values.get(key, [])
    if not _is_list_of_texts(value):
        at_fault(f"{file}: [{table}] {key} is a list of texts")
    return value


def _find_entry(file: Path, directory: Path, name: str, entry: str) -> tuple[str, Path]:
    """Returns the entry module and the directory that it is imported from."""
    named = entry.split(":")[0].removesuffix(".py").replace("/", ".")
    candidates = [named] if named else [re.sub(r"[-.\s]+", "_", name), "workflow", "main"]
    for module in candidates:
        path = Path(*module.split("."))
        for source in (directory, directory / "src"):
            if (source / path).with_suffix(".py").is_file() or (source / path / "__init__.py").is_file():
                return module, source
    looked = ", ".join(f"{module.replace('.', '/')}.py" for module in candidates)
    at_fault(
        f'{file}: there is no entry module; looked for {looked} here and in src. Set it: '
        f'[{TABLE}] entry = "MODULE"'
    )


def canonical(name: str) -> str:
    """Returns a distribution's name in the normalized form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _required_name(requirement: str) -> str:
    name: str = _import_sibling("_resolve").required_name(requirement)
    return name


# Dependencies.


def wanted_of(project: Project) -> list[str]:
    """Returns the requirements to install."""
    return [
        requirement
        for requirement in project.dependencies
        if _required_name(requirement) not in {*OWN, *project.leave_out} - {*project.published}
    ]


def tag_of(project: Project, wheels: Path | None) -> str:
    """Returns a text that changes if other dependencies would be installed."""
    native = [] if wheels is None else sorted((each.name, each.stat().st_mtime) for each in wheels.glob("*.whl"))
    inputs = [wanted_of(project), project.without_native, project.leave_out]
    locked = _import_sibling("_resolve").locked(project.dir, wanted_of(project))
    given = [*inputs, DONE_WITHOUT, sorted(CANNOT_WORK), PYTHON, sys.version_info[:2], native, _PIP, locked]
    return json.dumps(given)


def gather(project: Project, cache: Path, wheels: Path | None) -> Path | None:
    """Installs the project's dependencies into a directory, which is stored for the next build. Returns None if the
    project has none."""
    wanted = wanted_of(project)
    if not wanted:
        return None
    if named := [name for each in wanted if (name := _required_name(each)) in CANNOT_WORK]:
        at_fault(_import_sibling("_resolve").why_not_at_all({name: "the project depends on it" for name in named}, CANNOT_WORK, TABLE))
    kept = cache / "python" / hashlib.sha256(tag_of(project, wheels).encode()).hexdigest()[:32]
    if not kept.is_dir():
        if importlib.util.find_spec("pip") is None:
            not_done(f"{sys.executable} has no pip, which installs dependencies; run: {sys.executable} -m ensurepip")
        fresh = kept.with_name(f"{kept.name}.{os.getpid()}")
        try:
            fresh.parent.mkdir(parents=True, exist_ok=True)
            resolve = _import_sibling("_resolve")
            lines: list[str] = resolve.locked(project.dir, wanted) or []
            pins, releases = _pins(wanted, fresh, project, wheels)
            say(f"installing {', '.join(wanted)} for the component's Python {PYTHON}")
            digests = _install(wanted, fresh, project, wheels, pins, releases)
            if others := resolve.other_files(lines, digests):
                at_fault(
                    f"files of dependencies are not those that {resolve.LOCK} was written with:\n" + "\n".join(others)
                    + f"\nIf a new file is meant, remove its line from {resolve.LOCK}."
                )
            _remove(fresh, project.leave_out)
            if releases is None:
                _refuse_what_cannot_work(fresh, project, wanted)
            _refuse_native(fresh, project.without_native, wheels)
            _report_installed(fresh, project, wanted, releases, digests)
            if any(resolve.pin_of(line) == line for line in lines):
                # A release of this program that stored no digests wrote it, or a person removed some.
                resolve.lock(project.dir, wanted, pins, digests)
            # The key of the lock file as it is now.
            kept = cache / "python" / hashlib.sha256(tag_of(project, wheels).encode()).hexdigest()[:32]
            shutil.rmtree(kept, ignore_errors=True)
            fresh.replace(kept)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return kept


def _pins(wanted: list[str], target: Path, project: Project, wheels: Path | None) -> tuple[list[str], Any]:
    """Returns the releases to install, as requirements: those of the lock file, or those that the author's own Python
    would take; with their metadata if they were resolved now."""
    resolve = _import_sibling("_resolve")
    lines = resolve.locked(project.dir, wanted)
    if lines is not None:
        say(f"taking the releases of {resolve.LOCK}")
        return [resolve.pin_of(line) for line in lines], None
    made: dict[str, list[str]] = resolve.made_for_components(wheels)
    say(f"looking for the releases of {', '.join(wanted)}")
    report, most = target.with_name(f"{target.name}.json"), target.with_name(f"{target.name}.most.txt")
    roots = [_required_name(each) for each in wanted]

    def resolved(*options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        done = _pip(project, "install", "--dry-run", "--ignore-installed", "--report", str(report), *options, "--", *wanted)
        return done, resolve.read_report(json.loads(report.read_text()), wanted) if done.returncode == 0 else {}

    try:
        done, releases = resolved()
        named = [canonical(each.strip()) for each in wanted]
        if done.returncode != 0 and all(name in made for name in named):
            # If no index has them, there is no newer release.
            say(f"pip finds no release for {sys.executable}; taking those that were made for components")
            return [f"{name}=={made[name][-1]}" for name in named], None
        if done.returncode != 0:
            at_fault(f"the dependencies could not be resolved: {', '.join(wanted)}\n{done.stdout.strip()}")
        if resolve.newer_than_made(releases, made):
            newest = releases
            # No newer than the packages that were made for components.
            most.write_text("".join(f"{name}<={versions[-1]}\n" for name, versions in made.items()))
            done, releases = resolved("--constraint", str(most))
            if done.returncode != 0:
                beyond = resolve.newer_than_made(newest, made)
                at_fault(resolve.why_too_new(beyond.values(), roots, newest, made))
            expected, others = resolve.stepped_back(releases, newest, made)
            if others:
                at_fault(resolve.why_older(others, releases, newest, made))
            for name in expected:
                print(f"{releases[name]} in place of {newest[name].version}: it is the newest with native code for components",
                      file=sys.stderr)
    finally:
        report.unlink(missing_ok=True)
        most.unlink(missing_ok=True)
    goes_without = {*project.without_native, *project.leave_out}
    if chains := resolve.chains_to_any(CANNOT_WORK.keys() - {*project.leave_out}, roots, releases, WORK_WITHOUT):
        at_fault(resolve.why_not_at_all(chains, CANNOT_WORK, TABLE))

    def has_pure(release: Any) -> bool:
        return _has_pure(release, project, target)

    culprits = resolve.in_the_way(
        {name: each for name, each in releases.items() if name not in goes_without}, made, has_pure
    )
    if culprits:
        at_fault(resolve.why_not(culprits, roots, releases, TABLE, IN_PLACE_OF))
    pins = [f"{each.name}=={each.version}" for each in releases.values() if each.is_pinnable]
    return pins, releases


def _has_pure(release: Any, project: Project, target: Path) -> bool:
    """Returns whether the same release has a pure wheel."""
    place = target.with_name(f"{target.name}.pure")
    try:
        done = _pip(project, "download", "--no-deps", "--dest", str(place), *_FOR_COMPONENTS, "--",
                    f"{release.name}=={release.version}")
        return done.returncode == 0
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _report_installed(target: Path, project: Project, wanted: list[str], releases: Any, digests: dict[str, tuple[str, str]]) -> None:
    """Prints the installed releases and writes them to the lock file."""
    there = [info.name.removesuffix(".dist-info").rsplit("-", 1) for _, _, info in _distributions(target)]
    print(f"resolved: {', '.join(' '.join(each) for each in there)}", file=sys.stderr)
    for name in (_required_name(each) for each in wanted):
        if name in WORK_IN_PART:
            print(f"note: {name}: {WORK_IN_PART[name]}", file=sys.stderr)
    if releases is None:
        return
    resolve = _import_sibling("_resolve")
    installed = {canonical(name) for name, _ in there}
    pins = [f"{each.name}=={each.version}" for name, each in releases.items() if name in installed and each.is_pinnable]
    if not resolve.lock(project.dir, wanted, pins, digests):
        print(f"{project.dir / resolve.LOCK} cannot be written: a later build may take other releases", file=sys.stderr)


# pip has an option for the Python version of wheels, and none for the markers in requirements (`; python_version <
# "3.13"`), which it evaluates for the Python that runs it. Nor can it leave out a dependency of another package.
_PIP = f"""
import sys
from pip._vendor.packaging import markers
real = markers.default_environment
there = {{
    "implementation_name": "cpython", "implementation_version": "{PYTHON}.0", "os_name": "posix",
    "platform_machine": "wasm32", "platform_python_implementation": "CPython", "platform_release": "0.0.0",
    "platform_system": "wasi", "platform_version": "0.0.0", "python_full_version": "{PYTHON}.0",
    "python_version": "{PYTHON}", "sys_platform": "wasi",
}}
markers.default_environment = lambda: {{**real(), **there}}
from pip._internal.metadata.importlib import Distribution
from pip._vendor.packaging.utils import canonicalize_name
left_out = set(sys.argv.pop(1).split())
required = Distribution.iter_dependencies
Distribution.iter_dependencies = lambda self, extras=(): [
    each for each in required(self, extras) if canonicalize_name(each.name) not in left_out
]
from pip._internal.cli.main import main
sys.exit(main())
"""

_FOR_COMPONENTS = (
    *("--platform", "wasi_wasm32", "--implementation", "cp", "--python-version", PYTHON),
    *("--abi", f"cp{PYTHON.replace('.', '')}", "--abi", "none", "--only-binary", ":all:"),
)


# Largest number of packages without a wheel for which one is built.
_SOURCES_MAX = 50

_HAS_NO_WHEEL = re.compile(r"^ERROR: No matching distribution found for (.+)$", re.MULTILINE)


def _install(
    wanted: list[str], target: Path, project: Project, wheels: Path | None, pins: list[str], releases: Any
) -> dict[str, tuple[str, str]]:
    """Installs wheels for the component's Python, including the host's own builds of native packages. For a package
    without a wheel it builds one with the local Python, which must be pure. Returns the files with their digests."""
    made, report = target.with_name(f"{target.name}.wheels"), target.with_name(f"{target.name}.json")
    found: tuple[str, ...] = () if wheels is None else ("--find-links", str(wheels))
    # All releases are pinned except those without a version: a directory, a repository, a file.
    of_registry = {_required_name(pin) for pin in pins}
    exactly = [*pins, *(each for each in wanted if _required_name(each) not in of_registry)]
    into = ("--no-compile", "--target", str(target))
    try:
        for _ in range(_SOURCES_MAX):
            shutil.rmtree(target, ignore_errors=True)
            options = (*into, *_FOR_COMPONENTS, *found, "--find-links", str(made))
            made.mkdir(parents=True, exist_ok=True)
            done = _pip(project, "install", "--no-deps", "--report", str(report), *options, "--", *exactly)
            if done.returncode == 0:
                digests: dict[str, tuple[str, str]] = _import_sibling("_resolve").read_digests(json.loads(report.read_text()), made)
                return digests
            without = _HAS_NO_WHEEL.search(done.stdout)
            if without is None or not _make_wheel(without[1], project, made, wheels, releases):
                break
        # For a package outside a registry (a directory, a repository), pip prints a different error.
        shutil.rmtree(target, ignore_errors=True)
        done = _pip(project, "install", *into, "--", *wanted)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        report.unlink(missing_ok=True)
    if done.returncode != 0:
        at_fault(f"the dependencies could not be installed: {', '.join(wanted)}\n{done.stdout.strip()}")
    return {}


def _pip(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    left_out = " ".join([*DONE_WITHOUT, *project.leave_out])
    command = [sys.executable, "-I", "-c", _PIP, left_out, *arguments[:1], "--quiet", "--disable-pip-version-check"]
    return subprocess.run([*command, *arguments[1:]], cwd=project.dir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)


def _make_wheel(requirement: str, project: Project, made: Path, wheels: Path | None, releases: Any) -> bool:
    """Builds a wheel of a package that has none for components. Returns whether it succeeded."""
    before = set(made.iterdir())
    done = _pip(project, "wheel", "--no-deps", "--wheel-dir", str(made), "--", requirement)
    fresh = set(made.iterdir()) - before
    for wheel in fresh:
        if wheel.name.endswith("-none-any.whl"):
            continue
        name = canonical(wheel.name.split("-")[0])
        if name not in {*project.without_native, *project.leave_out}:
            if releases is None or name not in releases:
                at_fault(_native_text([f"  - {requirement.partition('==')[0]}"], wheels))
            roots = [_required_name(each) for each in wanted_of(project)]
            at_fault(_import_sibling("_resolve").why_not([releases[name]], roots, releases, TABLE, IN_PLACE_OF))
        _without_native(wheel)
    return done.returncode == 0 and bool(fresh)


def _without_native(wheel: Path) -> None:
    """Makes a pure wheel from one with native code, for a package that works without it."""
    name, version, *_ = wheel.name.split("-")
    pure = wheel.with_name(f"{name}-{version}-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(pure, "w") as new:
        for each in old.infolist():
            content = old.read(each)
            if _is_native(each.filename):
                continue
            if each.filename.endswith(".dist-info/WHEEL"):
                content = b"Wheel-Version: 1.0\nGenerator: rollout-host\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            if each.filename.endswith(".dist-info/RECORD"):
                # Without checksums: those of changed files would be wrong.
                kept = [line.rsplit(",", 2)[0] for line in content.decode().splitlines()]
                content = "".join(f"{line},,\n" for line in kept if not _is_native(line.strip('"'))).encode()
            new.writestr(each.filename, content)
    wheel.unlink()


def _distributions(target: Path) -> list[tuple[str, list[str], Path]]:
    """Returns the name, files and metadata directory of each installed distribution."""
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


def _is_native(file: str) -> bool:
    return (file.endswith(_NATIVE) or ".so." in file) and not file.endswith(OF_COMPONENT)


# The suffix of a native module that was built for the component's Python.
OF_COMPONENT = f".cpython-{PYTHON.replace('.', '')}-wasm32-wasi.so"


def _refuse_native(target: Path, allowed: list[str], wheels: Path | None) -> None:
    """Fails with the names of the packages that a component cannot run. Packages that are only faster with native code
    may go without it."""
    refused: dict[str, str] = {}
    for name, files, _ in _distributions(target):
        native = [file for file in files if _is_native(file)]
        if not native:
            continue
        if name in allowed:
            for file in native:
                (target / file).unlink(missing_ok=True)
        else:
            refused[name] = f"  - {name} ({native[0]})"
    if refused:
        # Packages that were built for components were installed in another form only because of the other packages.
        made = _import_sibling("_resolve").made_for_components(wheels)
        culprits = [line for name, line in refused.items() if name not in made] or list(refused.values())
        at_fault(_native_text(culprits, wheels))


def _refuse_what_cannot_work(target: Path, project: Project, wanted: list[str]) -> None:
    """Fails if a lock file of an earlier release of this program names a package that cannot be imported in a component."""
    resolve = _import_sibling("_resolve")
    releases = resolve.read_installed((info for _, _, info in _distributions(target)), wanted)
    roots = [_required_name(each) for each in wanted]
    names = CANNOT_WORK.keys() - {*project.leave_out}
    if chains := resolve.chains_to_any(names, roots, releases, WORK_WITHOUT):
        at_fault(
            resolve.why_not_at_all(chains, CANNOT_WORK, TABLE)
            + f"\nTheir releases are those of {resolve.LOCK}; remove it to have newer ones looked for."
        )


def _native_text(refused: list[str], wheels: Path | None) -> str:
    return (
        "these dependencies are native code, which a component cannot run:\n"
        + "\n".join(refused)
        + f"\n{_available_native(wheels)}\nDepend on a package of pure Python instead. If one works without its native part, name it in "
        f"[{TABLE}] without-native; if one that came along is not needed at run time, name it in leave-out."
    )


def _available_native(wheels: Path | None) -> str:
    """Returns a sentence about the native packages that are available for components."""
    names = [] if wheels is None else sorted(" ".join(each.name.split("-")[:2]) for each in wheels.glob("*.whl"))
    if not names:
        return "`scripts/native-wheels` of the host builds some for components, such as numpy; --wheels names their directory."
    return f"Made for components, in {wheels}: {', '.join(names)}."


# The component.


def _import_sibling(name: str) -> Any:
    """Imports a module from this directory. This script does not run as part of the package."""
    file = Path(__file__).with_name(f"{name}.py")
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(file):
        return loaded
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def read_modules(project: Project) -> Any:
    """Reads the project's modules (`_modules.Text`)."""
    left_out = ("workflow", "agent-loop", "environment") if project.only_grader else ()
    return _import_sibling("_modules").read(project.source, project.entry, [each for each in WORLDS if each not in left_out])


def shown_source(project: Project) -> str:
    """Returns the name of the module directory in messages."""
    source = os.path.relpath(project.source, project.dir)
    return "" if source == "." else f"{source}/"


def entry_code(preloaded: list[str], preparing: str, *, is_base: bool = False) -> str:
    """Returns the source of the entry module for componentize-py; `preparing` prepares the component for the author's
    modules. A base takes them in later, and is finished then."""
    finish = "_export.pack_base()" if is_base else "_export.pack()\n    _export.settle()"
    world = "\nfrom rollout_sdk._take_in import RolloutWit\n" if is_base else ""
    return f'''"""Made by `rollout-host build`."""
import importlib
import sys


sys.dont_write_bytecode = True
from rollout_sdk import _chance

_chance.install()
for _name in {preloaded!r}:
    importlib.import_module(_name)
from rollout_sdk import _absent, _export, _loop, _names, _one_thread, _processes, _refused, _system, _unawaited

_absent.stand_in()
_system.install()
_names.install()
_one_thread.install()
_processes.install()
_loop.install()
_refused.refuse_network()
_unawaited.install()

{preparing}
{world}
_EXPORTS = ("AgentLoop", "Environment", "Grader", "GroupGrader", "Settings", "Workflow")


def __getattr__(name):
    """Returns the contract's exports. componentize-py asks for them once everything is imported, which is the time to
    pack the files, and to finish the memory image."""
    if name not in _EXPORTS:
        raise AttributeError(name)
    {finish}
    globals().update((each, vars(_export)[each]) for each in _EXPORTS)
    return globals()[name]
'''


# Directories of a component other than the project's, with their names in messages.
ROOTS = (("/python/", "python/"), ("/1/", ""), ("/2/", ""), ("/3/", ""))


# The function of a base that takes in the author's modules.
TAKE_IN = "    export take-in: func(part: list<u8>) -> result<string, string>;\n"


def world_text(wit: Path, exports: list[str], *, is_base: bool = False) -> str:
    """Returns the world of a component with these exports."""
    contract = re.search(r"^package ([\w:-]+)@([\w.]+);", (wit / "plugin.wit").read_text(), re.MULTILINE)
    if contract is None:
        not_done(f"{wit}/plugin.wit names no package")
    name, version = contract.groups()
    included = "".join(f"    include {name}/{WORLDS[export]}@{version};\n" for export in exports)
    taking_in = TAKE_IN if is_base else ""
    return f"package rollout:component;\n\nworld component {{\n{included}{taking_in}}}\n"


@dataclass
class Tools:
    """The tools and directories of a build."""

    tool: str
    wit: Path
    work: Path
    output: Path
    bundled: Path | None = None


def componentize(
    project: Project, exports: list[str], code: str, source: Path, tools: Tools, *, is_base: bool = False
) -> None:
    """Has componentize-py make a component from this code and the modules in this directory."""
    work, wit, tool = tools.work.resolve(), tools.wit.resolve(), tools.tool
    work = work / "-".join(exports)
    entry = work / "entry"
    entry.mkdir(parents=True)
    (entry / f"{ENTRY}.py").write_text(code)
    environment = _import_sibling("_environment")
    (entry / environment.FILE).write_bytes(environment.library())
    # A clean environment, so that the packages of the current one are not included.
    nothing = work / "environment"
    (nothing / "lib" / "site-packages").mkdir(parents=True)
    world = work / "world"
    shutil.copytree(wit, world / "deps" / "plugin")
    (world / "component.wit").write_text(world_text(wit, exports, is_base=is_base))
    command = [tool, "-q", "-d", str(world), "-w", "component", "--world-module", "_rollout_wit"]
    command += ["componentize", ENTRY, "-o", str(tools.output.resolve())]
    sdk = Path(__file__).resolve().parent.parent
    for path in (source.resolve(), entry, tools.bundled, sdk):
        if path is not None:
            command += ["-p", str(path)]
    variables = {**os.environ, "VIRTUAL_ENV": str(nothing), "RUST_BACKTRACE": "0"}
    try:
        done = subprocess.run(command, cwd=work, env=variables, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    except OSError as error:
        not_done(f"cannot run {tool}: {error}")
    if done.returncode != 0:
        at_fault(f"{project.dir} could not be built\n{_readable(done.stdout, project)}")


# Frames of a traceback: of imports, and of the component's directories.
_IMPORTING = re.compile(r'  File "(<frozen importlib|/python/importlib/)')
_FRAME = re.compile(r'  File "/(\d)/(.*)", line')
# Files of a component that import the author's modules.
_FRAMES_OF_BUILDS = (f"{ENTRY}.py", "rollout_sdk/_take_in.py", "rollout_sdk/_archive.py")
# The location of a warning in the format of `warnings`.
_WARNED = re.compile(r"/(\d)/\S+:\d+: \w+: ")


def _readable(output: str, project: Project) -> str:
    """Returns componentize-py's message about code that it ran, or the whole output, if it is about something else."""
    begin = output.find("AssertionError: ")
    if begin < 0:
        return output.strip()
    output = output[begin:].removeprefix("AssertionError: ").split("\n\nCaused by:")[0].split("\nStack backtrace:")[0]
    return readable(output, project)


def readable(error: str, project: Project) -> str:
    """Returns the text of an exception with the author's paths in it, without the frames of other code."""
    if (refusal := error.rfind("NotAPlugin: ")) >= 0:
        return error[refusal:].removeprefix("NotAPlugin: ").strip()
    return shown(error, project).strip()


def shown(output: str, project: Project) -> str:
    """Returns the lines with the author's paths, without the frames of other code."""
    lines: list[str] = []
    skipping = False
    for line in output.splitlines():
        if _IMPORTING.match(line):
            skipping = True
        elif frame := _FRAME.match(line):
            skipping = frame[2] in _FRAMES_OF_BUILDS
            if frame[1] == "0":
                line = line.replace('"/0/', f'"{project.source}/')
            else:
                line = re.sub(r'"/\d/', '"', line)
        elif warned := _WARNED.match(line):
            skipping = False
            line = line.replace("/0/", f"{project.source}/", 1) if warned[1] == "0" else line[3:]
        elif not line.startswith("    "):
            skipping = False
        if not skipping:
            lines.append(line)
    return "\n".join(lines)


def staged(project: Project, work: Path) -> Path:
    """Returns a directory with only the project's files, in a fixed order: each file in a directory of modules leaves
    traces in the component."""
    place = work / "source"
    for directory, inner, names in os.walk(project.source):
        if "pyvenv.cfg" in names:
            inner.clear()
            continue
        inner[:] = sorted(each for each in inner if each[0] != "." and each != "__pycache__")
        target = place / os.path.relpath(directory, project.source)
        target.mkdir(parents=True, exist_ok=True)
        for name in sorted(names):
            file = Path(directory, name)
            if file.is_file() and not name.endswith((".wasm", ".pyc")):
                shutil.copyfile(file, target / name)
    return place


def build(arguments: argparse.Namespace, tools: Tools) -> None:
    project = project_of(arguments.project)
    tools.bundled = gather(project, arguments.cache, arguments.wheels)
    source = staged(project, tools.work)
    of = sys.modules[__name__]
    exports: list[str] = arguments.exports.split(",") if arguments.exports else read_modules(project).exports
    base = _import_sibling("_build_base")
    if arguments.taken is not None:
        output = base.report(of, project, arguments.taken)
        _import_sibling("_build_late").offer(of, project, arguments, tools, exports, source)
        print(json.dumps({"said": output}))
        return
    kept = _import_sibling("_build_key").kept_at(of, project, arguments, tools, source) if arguments.program else None
    is_there = kept is not None and kept.is_file()
    kept_base = None if is_there else base.make(of, project, arguments, tools, exports, source)
    if not is_there:
        say(f"importing {project.entry} in the component's Python {PYTHON}")
    print(json.dumps({
        "name": re.sub(r"[-.\s]+", "_", project.name),
        "source": str(project.source),
        "kept": None if kept is None else str(kept),
        "made": not is_there,
        "base": None if kept_base is None else str(kept_base),
        "has_late": bool(_import_sibling("_build_late").found(of, project, tools)),
    }))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path)
    parser.add_argument("--componentize-py", required=True)
    for name in ("wit", "work", "cache", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    # Wheels of native packages that were built for the component's Python.
    parser.add_argument("--wheels", type=Path)
    # Directory for the project's files, for a component that loads them later.
    parser.add_argument("--quick", type=Path)
    # The program that runs this script and its options, if an earlier component of the same inputs may be reused.
    parser.add_argument("--program", type=Path)
    parser.add_argument("--program-options", default="")
    # File for the project's files, which the base of its component takes in.
    parser.add_argument("--files", type=Path)
    # File with a list of the files that the author's modules open while they are imported.
    parser.add_argument("--also", type=Path)
    # The component's exports, if they are not those that its text has.
    parser.add_argument("--exports", default="")
    # The report of a base that has taken in the project's files.
    parser.add_argument("--taken", type=Path)
    arguments = parser.parse_args()
    tools = Tools(arguments.componentize_py, arguments.wit, arguments.work, arguments.output)
    try:
        if arguments.quick is None:
            build(arguments, tools)
        else:
            _import_sibling("_build_quick").build(sys.modules[__name__], arguments, tools)
    except BuildError as error:
        print(error, file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
