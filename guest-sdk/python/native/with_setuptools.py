"""Packages whose native code is C or C++, and setuptools makes it. A library that they are linked with is compiled
from Debian's sources of it, and files that a package's sources lack come from its crate."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import debian


# Of what CPython's own modules are compiled with. $CFLAGS takes the place of all of it.
OPTIMIZED = "-O2 -DNDEBUG -fno-strict-overflow"


def build(package: dict[str, Any], source: Path, toolchain: Path, environment: dict[str, str]) -> Path:
    """Makes the package as it is installed, and says where it is."""
    environment = {
        **environment,
        **package.get("environment", {}),
        "CFLAGS": f"{environment['CFLAGS']} {OPTIMIZED}",
        "CXXFLAGS": f"{environment['CXXFLAGS']} {OPTIMIZED}",
        "CC": str(toolchain / "bin/wasi-cc"),
        "CXX": str(toolchain / "bin/wasi-c++"),
        "LDSHARED": f"{toolchain / 'bin/wasi-cc'} -shared",
        "LDCXXSHARED": f"{toolchain / 'bin/wasi-c++'} -shared",
        "CPPFLAGS": f"-I{toolchain / 'python'}",
        "PYTHONPATH": str(toolchain / "lib"),
        "_PYTHON_SYSCONFIGDATA_NAME": "_sysconfigdata__wasi_wasm32-wasi",
        "_PYTHON_HOST_PLATFORM": "wasi-wasm32",
    }
    if "library" in package:
        place = _library(package["library"], source.parent, toolchain, environment)
        environment["CPPFLAGS"] += f" -I{place / 'include'}"
        environment["LDFLAGS"] = f"-L{place}"
    if "crate" in package:
        _complete(package["crate"], source)
    tree = source / "tree"
    script = "setup.py" if (source / "setup.py").is_file() else None
    code = ["-c", "from setuptools import setup; setup()"] if script is None else [script]
    command = [sys.executable, *code, "--quiet", "build", "--build-lib", str(tree)]
    done = subprocess.run(command, cwd=source, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{source.name}\n{done.stdout.decode(errors='replace')[-8000:]}")
    return tree


def _library(library: dict[str, Any], work: Path, toolchain: Path, environment: dict[str, str]) -> Path:
    """Compiles a library, for modules to be linked with, and says where it is."""
    name, digest = library["name"], library["sha256"]
    sources = toolchain / "sources"
    if debian.kept(sources, "*.orig.tar.*", digest) is None:
        debian.fetch(toolchain / "apt", "deb-src", ["--download-only", "source"], [library["debian"]], sources)
    archive = debian.kept(sources, "*.orig.tar.*", digest)
    if archive is None:
        sys.exit(f"what was fetched as Debian's sources of {library['debian']} is not what the recipe was tried with")
    with tarfile.open(archive) as files:
        files.extractall(work / "library", filter="data")
    place = next(each for each in (work / "library").iterdir() if each.is_dir())
    flags = [*environment["CFLAGS"].split(), "-O2", f"-I{place / 'include'}", *library["flags"]]
    objects: list[str] = []
    for file in sorted((place / "src").glob("*.c")):
        objects.append(f"{file}.o")
        subprocess.run([environment["CC"], *flags, "-c", file, "-o", objects[-1]], check=True, env=environment)
    subprocess.run([toolchain / "bin/wasi-ar", "rcsD", place / f"lib{name}.a", *objects], check=True, env=environment)
    return place


def _complete(crate: dict[str, Any], source: Path) -> None:
    """Copies files of a crate to the sources."""
    project = source.parent / "crate"
    (project / "src").mkdir(parents=True)
    (project / "src/lib.rs").touch()
    (project / "Cargo.toml").write_text(
        f'[package]\nname = "files"\nedition = "2021"\n[dependencies]\n{crate["name"]} = "={crate["version"]}"\n'
    )
    command = ["cargo", "metadata", "--quiet", "--format-version", "1"]
    done = subprocess.run(command, cwd=project, check=True, stdout=subprocess.PIPE)
    found = next(each for each in json.loads(done.stdout)["packages"] if each["name"] == crate["name"])
    for file, digest in crate["files"].items():
        there = Path(found["manifest_path"]).parent / file
        if hashlib.sha256(there.read_bytes()).hexdigest() != digest:
            sys.exit(f"{file} of the crate {crate['name']} {crate['version']} is not what the recipe was tried with")
        shutil.copy(there, source / file)
