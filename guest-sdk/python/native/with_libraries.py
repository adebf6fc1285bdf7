"""Packages whose native code setuptools makes, linked with C libraries of their own. Each library is compiled from
Debian's sources of it, by the sources, templates and flags that `packages.toml` lists: none of its configure scripts
runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import debian
import with_setuptools


RECIPES = Path(__file__).resolve().parent


def build(package: dict[str, Any], source: Path, toolchain: Path, environment: dict[str, str]) -> Path:
    """Makes the package as it is installed, and returns its folder."""
    archives = source.parent / "archives"
    archives.mkdir()
    flags: list[str] = []
    for library in package["libraries"]:
        # `make.py` takes the licences from the folders in `library`.
        place = _unpack(library, source.parent / "library", toolchain)
        objects = _compile(library, place, toolchain, environment, flags)
        _archive(archives / f"lib{library['name']}.a", objects, toolchain, environment)
        flags += [f"-I{place / each}" for each in library["include"]]
        _config(archives / f"{library['name']}-config", library["version"], archives, flags)
    for name in package["empty-libraries"]:
        _archive(archives / f"lib{name}.a", [], toolchain, environment)
    environment = {**environment, "LDFLAGS": f"-L{archives}"}
    for variable, library in package["config-programs"].items():
        environment[variable] = str(archives / f"{library}-config")
    return with_setuptools.build(package, source, toolchain, environment)


def _compile(
    library: dict[str, Any], place: Path, toolchain: Path, environment: dict[str, str], others: list[str]
) -> list[str]:
    """Compiles a library's sources and returns the objects."""
    for template in library["templates"]:
        _fill(place / template, library["values"])
    (place / "config.h").touch()
    flags = [*environment["CFLAGS"].split(), *with_setuptools.OPTIMIZED.split(), "-w", *library["flags"]]
    flags += [f"-I{place / each}" for each in ("", *library["include"])] + others
    flags += [part for header in library.get("headers", []) for part in ("-include", str(RECIPES / header))]
    files = sorted(file for pattern in library["sources"] for file in place.glob(pattern))
    files = [file for file in files if not any(file.match(pattern) for pattern in library["left-out"])]

    def compile_file(file: Path) -> str:
        command = [toolchain / "bin/wasi-cc", *flags, "-c", file, "-o", f"{file}.o"]
        subprocess.run(command, check=True, env=environment)
        return f"{file}.o"

    with ThreadPoolExecutor(int(os.environ.get("NATIVE_JOBS", os.cpu_count() or 1))) as jobs:
        return list(jobs.map(compile_file, files))


def _unpack(library: dict[str, Any], work: Path, toolchain: Path) -> Path:
    """Fetches a library's sources, checks their hash, and returns their folder."""
    sources, digest = toolchain / "sources", library["sha256"]
    if debian.kept(sources, "*.orig.tar.*", digest) is None:
        version = f"{library['debian']}={library['debian-version']}"
        try:
            debian.fetch(toolchain / "apt", "deb-src", ["--download-only", "source"], [version], sources)
        except subprocess.CalledProcessError:
            sys.exit(
                f"apt-get cannot fetch the sources {version}. Debian unstable keeps only its newest release: take that one in "
                f"packages.toml, or put an older one's archive with the SHA-256 {digest} into {sources}"
            )
    archive = debian.kept(sources, "*.orig.tar.*", digest)
    if archive is None:
        sys.exit(f"the download of Debian's sources of {library['debian']} does not have the hash in packages.toml")
    with tarfile.open(archive) as files:
        files.extractall(work, filter="data")
    place = work / library["folder"]
    shutil.copy(place / library["licence"], place / "LICENSE")
    return place


def _fill(template: Path, values: dict[str, str]) -> None:
    """Writes a header from its template. A value that is not listed is an error."""
    text = re.sub(r"@([A-Z0-9_]+)@", lambda found: values[found[1]], template.read_text())
    template.with_suffix("").write_text(text)


def _config(program: Path, version: str, libraries: Path, flags: list[str]) -> None:
    """Writes the program that build systems ask for a library's version and flags."""
    program.write_text(
        f'#!/bin/sh\ncase "$1" in\n--version) echo {version} ;;\n--libs) echo -L{libraries} ;;\n'
        f"--cflags) echo {' '.join(flags)} ;;\nesac\n"
    )
    program.chmod(0o755)


def _archive(archive: Path, objects: list[str], toolchain: Path, environment: dict[str, str]) -> None:
    subprocess.run([toolchain / "bin/wasi-ar", "rcsD", archive, *objects], check=True, env=environment)
