"""Selects the releases of a project's dependencies. Part of `_build.py`.

A dependency without a version does not mean an old release that happens to have a wheel for components: a registry has
releases of ten years, and some old one is nearly always pure. So the releases are those that a resolution on the author's
own Python takes, no newer than the native packages that were built for components. If a component cannot have one of them,
the error names the dependency and the packages that require it.

The releases are written to a lock file beside the project with the SHA-256 of each file. Later builds take the same
releases, and fail if a file differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOCK = "rollout-host.lock"

_HEAD = "# Releases that `rollout-host build` takes. Remove the file, or a line, to have newer ones looked for.\n"
_FOR = "# for: "


def canonical(name: str) -> str:
    """Returns a distribution's name in the normalized form."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass
class Release:
    """A release in a resolution."""

    name: str
    version: str
    file: str
    """The name of its file."""
    requires: list[str] = field(default_factory=list[str])
    """The distributions that it requires."""
    is_pinnable: bool = True
    """Whether its version identifies it, and not a URL."""

    @property
    def is_native(self) -> bool:
        """Whether it is a wheel for one platform."""
        return self.file.endswith(".whl") and not self.file.endswith("-none-any.whl")

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def read_report(report: Mapping[str, Any]) -> dict[str, Release]:
    """Returns the releases in a report of pip, by name."""
    found: dict[str, Release] = {}
    for each in report["install"]:
        about = each["metadata"]
        info = each["download_info"]
        named: list[str] = about.get("requires_dist") or []
        requires = [one for one in named if "extra ==" not in one and "extra==" not in one]
        release = Release(
            canonical(about["name"]),
            about["version"],
            info["url"].partition("#")[0].rpartition("/")[2],
            [canonical(re.split(r"[\s\[<>=!~;@(]", one.strip(), maxsplit=1)[0]) for one in requires],
            not each.get("is_direct", False),
        )
        found[release.name] = release
    return found


def read_digests(report: Mapping[str, Any], made_here: Path) -> dict[str, tuple[str, str]]:
    """Returns the file of each installed release, with its SHA-256, by the releases' names. A wheel that was built on
    this machine from source has no digest: it differs each time."""
    found: dict[str, tuple[str, str]] = {}
    for each in report["install"]:
        info = each["download_info"]
        digest = info.get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest and not info["url"].startswith(f"{made_here.resolve().as_uri()}/"):
            found[canonical(each["metadata"]["name"])] = (info["url"].partition("#")[0].rpartition("/")[2], digest)
    return found


def chain_to(name: str, roots: Iterable[str], releases: Mapping[str, Release]) -> list[str]:
    """Returns the shortest chain of requirements from the project to a release."""
    ways = [[root] for root in roots if root in releases]
    seen = set(roots)
    for way in ways:
        if way[-1] == name:
            return way
        for following in releases[way[-1]].requires:
            if following in releases and following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return [name]


def made_for_components(wheels: Path | None) -> dict[str, list[str]]:
    """Returns the versions of native packages for components, the newest last."""
    found: dict[str, list[str]] = {}
    files: list[Path] = [] if wheels is None else list(wheels.glob("*.whl"))
    for each in files:
        name, version, *_ = each.name.split("-")
        found.setdefault(canonical(name), []).append(version)
    return {name: sorted(versions, key=_in_order) for name, versions in sorted(found.items())}


def _in_order(version: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", version)]


def in_the_way(
    releases: Mapping[str, Release], made: Mapping[str, list[str]], has_pure: Callable[[Release], bool]
) -> list[Release]:
    """Returns the releases that a component cannot have."""
    return [
        each
        for each in releases.values()
        if each.is_native and each.version not in made.get(each.name, []) and not has_pure(each)
    ]


def why_not(culprits: Iterable[Release], roots: Iterable[str], releases: Mapping[str, Release], table: str) -> str:
    """Returns the error message."""
    wanted = list(roots)
    lines: list[str] = []
    for each in culprits:
        way = chain_to(each.name, wanted, releases)
        through = " requires ".join(str(releases[one]) for one in way)
        lines.append(f"  - {each}: {through}" if len(way) > 1 else f"  - {each}: the project depends on it")
    return (
        "these dependencies are native code, which a component cannot run, and were not made for components:\n"
        + "\n".join(lines)
        + "\nDepend on a package of pure Python instead, or name an older release of what requires them, if one goes without. "
        f"If a package works without its native part, name it in [{table}] without-native; if it is not needed at run "
        "time, name it in leave-out."
    )


# The lock file.


_DIGEST = " --hash=sha256:"


def locked(directory: Path, wanted: list[str]) -> list[str] | None:
    """Returns the lines of the lock file; None if it is missing or was written for other dependencies."""
    try:
        lines = (directory / LOCK).read_text().splitlines()
    except OSError:
        return None
    if f"{_FOR}{json.dumps(wanted)}" not in lines:
        return None
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def pin_of(line: str) -> str:
    """Returns the requirement in a line of the lock file, without the digest."""
    return line.partition(_DIGEST)[0]


def other_files(lines: Iterable[str], digests: Mapping[str, tuple[str, str]]) -> list[str]:
    """Returns a message for each installed file that differs from the lock file."""
    wrong: list[str] = []
    for line in lines:
        pin, _, locked_digest = line.partition(_DIGEST)
        file, digest = digests.get(canonical(pin.partition("==")[0]), ("", ""))
        if locked_digest and digest != locked_digest:
            now = f"{file} has {digest}" if file else "there is none of a registry now"
            wrong.append(f"  - {pin}: the lock file has SHA-256 {locked_digest}, {now}")
    return wrong


def lock(directory: Path, wanted: list[str], pins: Iterable[str], digests: Mapping[str, tuple[str, str]]) -> bool:
    """Writes the lock file. Returns whether that succeeded."""
    lines: list[str] = []
    for pin in sorted(pins):
        _, digest = digests.get(canonical(pin.partition("==")[0]), ("", ""))
        lines.append(f"{pin}{_DIGEST}{digest}\n" if digest else f"{pin}\n")
    try:
        (directory / LOCK).write_text(f"{_HEAD}{_FOR}{json.dumps(wanted)}\n{''.join(lines)}")
    except OSError:
        return False
    return True
