"""Selects the releases of a project's dependencies. Part of `_build.py`.

A dependency without a version does not mean an old release that happens to have a wheel for components: a registry has
releases of ten years, and some old one is nearly always pure. So the releases are those that a resolution on the author's
own Python takes, no newer than the native packages that were built for components. If a component cannot have one of them,
the error names the dependency and the packages that require it.

The releases are written to a lock file beside the project with the SHA-256 of each file. Later builds take the same
releases, and fail if a file differs.
"""

from __future__ import annotations

import email
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
    """The distributions that it requires, also by extras that are requested."""
    extras: list[str] = field(default_factory=list[str])
    """The distributions that only its other extras require."""
    exact: list[str] = field(default_factory=list[str])
    """The distributions of which it requires exactly one release."""
    is_pinnable: bool = True
    """Whether its version identifies it, and not a URL."""

    @property
    def is_native(self) -> bool:
        """Whether it is a wheel for one platform."""
        return self.file.endswith(".whl") and not self.file.endswith("-none-any.whl")

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def read_report(report: Mapping[str, Any], wanted: Iterable[str]) -> dict[str, Release]:
    """Returns the releases in a report of pip for these requirements, by name."""
    found: dict[str, Release] = {}
    requirements: dict[str, list[str]] = {}
    for each in report["install"]:
        about = each["metadata"]
        release = Release(
            canonical(about["name"]),
            about["version"],
            each["download_info"]["url"].partition("#")[0].rpartition("/")[2],
            is_pinnable=not each.get("is_direct", False),
        )
        found[release.name] = release
        requirements[release.name] = about.get("requires_dist") or []
    _add_requirements(found, requirements, wanted)
    return found


def read_installed(infos: Iterable[Path], wanted: Iterable[str]) -> dict[str, Release]:
    """Returns the releases with these metadata directories, installed for these requirements, by name."""
    found: dict[str, Release] = {}
    requirements: dict[str, list[str]] = {}
    for info in infos:
        about = email.message_from_bytes((info / "METADATA").read_bytes())
        release = Release(canonical(str(about["Name"])), str(about["Version"]), "")
        found[release.name] = release
        requirements[release.name] = [str(each) for each in about.get_all("Requires-Dist") or ()]
    _add_requirements(found, requirements, wanted)
    return found


def _add_requirements(found: Mapping[str, Release], requirements: Mapping[str, list[str]], wanted: Iterable[str]) -> None:
    """Adds the distributions that each release requires. An extra counts if the project or another release requests it."""
    requested: dict[str, set[str]] = {}
    todo = list(wanted)
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement = todo.pop()
        name = required_name(requirement)
        for extra in ("", *_extras_in(requirement)):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            requested.setdefault(name, set()).add(extra)
            todo += [each for each in requirements.get(name, ()) if extra in (_extra_of(each) or [""])]
    for name, release in found.items():
        for requirement in requirements[name]:
            required, extras = required_name(requirement), _extra_of(requirement)
            is_active = not extras or requested.get(name, set()) & {*extras}
            (release.requires if is_active else release.extras).append(required)
            if re.search(r"==\s*\d+(\.\d+)*\s*\)?\s*(;|$)", requirement.strip()):
                release.exact.append(required)


def _extras_in(requirement: str) -> list[str]:
    """Returns the extras that a requirement requests."""
    found = re.match(r"\s*[\w.-]+\s*\[([^\]]*)\]", requirement)
    return [canonical(each.strip()) for each in found[1].split(",")] if found else []


def _extra_of(requirement: str) -> list[str]:
    """Returns the extras of its package that a requirement belongs to."""
    return [canonical(each) for each in re.findall(r"""\bextra\s*==\s*["']([^"']*)["']""", requirement)]


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


def required_name(requirement: str) -> str:
    """Returns the distribution that a requirement names."""
    return canonical(re.split(r"[\s\[<>=!~;@(]", requirement.strip(), maxsplit=1)[0])


def chain_to(name: str, roots: Iterable[str], releases: Mapping[str, Release]) -> list[str]:
    """Returns the shortest chain from a dependency of the project to a release, each of which requires the next.
    Requirements of extras count if there is no chain without them."""
    roots = list(roots)
    for with_extras in (False, True):
        chains = [[root] for root in roots if root in releases]
        seen = set(roots)
        for chain in chains:
            if chain[-1] == name:
                return chain
            last = releases[chain[-1]]
            for following in [*last.requires, *(last.extras if with_extras else [])]:
                if following in releases and following not in seen:
                    seen.add(following)
                    chains.append([*chain, following])
    return [name]


def shown_chain(name: str, roots: Iterable[str], releases: Mapping[str, Release]) -> str:
    """Returns the chain to a release as a text."""
    chain = chain_to(name, roots, releases)
    return " requires ".join(str(releases[one]) for one in chain) if len(chain) > 1 else "the project depends on it"


def chains_to_any(
    names: Iterable[str], roots: Iterable[str], releases: Mapping[str, Release], work_without: Mapping[str, Iterable[str]]
) -> dict[str, str]:
    """Returns the chain to each of these distributions, as a text. A chain ends at a package that works without the next one,
    and goes through an extra only if nothing else requires the distribution."""
    roots = list(roots)
    found: dict[str, str] = {}
    for name in sorted(names):
        reduced = {
            each.name: replace(each, requires=[one for one in each.requires if one not in work_without.get(each.name, ())])
            for each in releases.values()
        }
        if len(chain_to(name, roots, _without_extras(releases))) > 1:
            reduced = _without_extras(reduced)
        if len(chain_to(name, roots, reduced)) > 1:
            found[str(releases[name])] = shown_chain(name, roots, reduced)
    return found


def _without_extras(releases: Mapping[str, Release]) -> dict[str, Release]:
    return {name: replace(each, extras=[]) for name, each in releases.items()}


def why_not_at_all(chains: Mapping[str, str], reasons: Mapping[str, str], table: str) -> str:
    """Returns the error about distributions that cannot be imported in a component. `chains` has the packages that
    require each one."""
    lines = [f"  - {named}: {chain}; {reasons[named.partition(' ')[0]]}" for named, chain in chains.items()]
    return (
        "these dependencies cannot be imported in a component:\n"
        + "\n".join(lines)
        + f"\nIf one that came along is not needed at run time, name it in [{table}] leave-out."
    )


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


def why_not(
    culprits: Iterable[Release],
    roots: Iterable[str],
    releases: Mapping[str, Release],
    table: str,
    in_place_of: Mapping[str, str],
) -> str:
    """Returns the error message. `in_place_of` has replacements for packages."""
    wanted = list(roots)
    lines = [
        f"  - {each}: {shown_chain(each.name, wanted, releases)}"
        + (f"; {in_place_of[each.name]}" if each.name in in_place_of else "")
        for each in culprits
    ]
    return (
        "these dependencies are native code, which a component cannot run, and were not made for components:\n"
        + "\n".join(lines)
        + "\nDepend on a package of pure Python instead, or name an older release of what requires them, if one goes without. "
        f"If a package works without its native part, name it in [{table}] without-native; if it is not needed at run "
        "time, name it in leave-out."
    )


def newer_than_made(releases: Mapping[str, Release], made: Mapping[str, list[str]]) -> dict[str, Release]:
    """Returns the releases that are newer than the newest one that was made for components."""
    return {
        name: each
        for name, each in releases.items()
        if name in made and _in_order(each.version) > _in_order(made[name][-1])
    }


def stepped_back(
    bounded: Mapping[str, Release], newest: Mapping[str, Release], made: Mapping[str, list[str]]
) -> tuple[list[str], list[str]]:
    """Compares a resolution that takes no release newer than those made for components with an unrestricted one.

    Returns the names of packages that are older in the first: those that are made for components, with the packages that
    require exactly one release of one of them (as pydantic does of pydantic-core), and all others."""
    expected: list[str] = []
    others: list[str] = []
    beyond = newer_than_made(newest, made)
    for name, each in newest.items():
        if name in bounded and _in_order(bounded[name].version) >= _in_order(each.version):
            continue
        if name in beyond or (name in bounded and any(one in beyond for one in each.exact)):
            expected.append(name)
        elif name in bounded:
            others.append(name)
    return [name for name in expected if name in bounded], others


def why_older(
    names: Iterable[str],
    bounded: Mapping[str, Release],
    newest: Mapping[str, Release],
    made: Mapping[str, list[str]],
) -> str:
    """Returns the error about packages that would be older than on the author's own Python."""
    beyond = newer_than_made(newest, made)
    lines: list[str] = []
    for name in names:
        # Chains to the releases that are newer than those made for components; the shortest one is shown.
        chains = [chain for one in beyond if len(chain := chain_to(one, [name], newest)) > 1]
        chain = min(chains, key=len, default=[name])
        through = " requires ".join(str(newest[one]) for one in chain)
        made_to = f", which was made for components up to {made[chain[-1]][-1]}" if chain[-1] in beyond else ""
        lines.append(f"  - {bounded[name]} in place of {newest[name].version}: {through}{made_to}")
    return (
        "these dependencies would be older than on your own Python, because of native code that was not made for "
        "components in a newer release:\n"
        + "\n".join(lines)
        + f"\nIf the older release will do, depend on it by its version, such as \"{_first(names, bounded)}\"."
    )


def why_too_new(
    beyond: Iterable[Release], roots: Iterable[str], newest: Mapping[str, Release], made: Mapping[str, list[str]]
) -> str:
    """Returns the error about requirements that no release made for components meets."""
    roots = list(roots)
    lines = [
        f"  - {each}, made for components up to {made[each.name][-1]}: {shown_chain(each.name, roots, newest)}"
        for each in beyond
    ]
    return (
        "these dependencies are native code, and no release that was made for components is new enough:\n"
        + "\n".join(lines)
        + "\nName an older release of what requires them, if one goes with what was made."
    )


def _first(names: Iterable[str], releases: Mapping[str, Release]) -> str:
    """Returns the first of some releases as a requirement."""
    return next((f"{releases[name].name}<={releases[name].version}" for name in names), "")


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
