"""Builds packages with their own copy of meson, such as numpy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import arity


def build(package: dict[str, Any], source: Path, toolchain: Path, environment: dict[str, str]) -> Path:
    """Builds the package in its installed form and returns its directory."""
    environment = {**environment, "WASI_FLOAT_STATUS": package.get("float-status", "")}
    meson = [sys.executable, str(source / package["meson"])]
    options = [f"--cross-file={toolchain / 'cross.ini'}", f"-Dpython.build_config={toolchain / 'build-details.json'}"]
    options += ["--prefix=/usr", "-Dbuildtype=release", "-Doptimization=2", *package["options"]]
    tree = source / "tree"
    for command in (
        [*meson, "setup", "made", *options],
        ["ninja", "-C", "made", f"-j{_jobs()}"],
        [*meson, "install", "-C", "made", "--no-rebuild", "--destdir", str(tree), "--tags", "runtime,python-runtime"],
    ):
        done = subprocess.run(command, cwd=source, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stdout.decode(errors='replace')[-8000:]}")
    # WebAssembly traps on mismatched calls that other machines tolerate.
    if found := arity.wrong(source / "made", environment):
        sys.exit("functions are called with another number of arguments than they have parameters; fix them with a patch:\n" + "\n".join(found))
    # C++ variables with constructors: a component does not run the constructors.
    made = [file for file in (source / "made").rglob("*.o") if b"_GLOBAL__sub_I" in file.read_bytes()]
    if made:
        sys.exit("variables have constructors, which do not run in a component; fix it with a patch:\n"
                 + "\n".join(file.name for file in made))
    name: str = package["name"]
    return next(tree.rglob(f"{name}/__init__.py")).parent.parent


def _jobs() -> int:
    return int(os.environ.get("NATIVE_JOBS", os.cpu_count() or 1))
