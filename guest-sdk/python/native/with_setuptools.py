"""Packages whose native code is C or C++, and setuptools makes it. A library that they are linked with is compiled
from Debian's sources of it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import debian


def build(package: dict[str, Any], source: Path, toolchain: Path, environment: dict[str, str]) -> Path:
    """Makes the package as it is installed, and says where it is."""
    environment = {
        **environment,
        **package.get("environment", {}),
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
