"""Packages that are made by a meson of their own, numpy among them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import arity


def build(package: dict[str, Any], source: Path, toolchain: Path, environment: dict[str, str]) -> Path:
    """Makes the package as it is installed, and says where it is."""
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
    # WebAssembly does not forgive what other machines do.
    if found := arity.wrong(source / "made", environment):
        sys.exit("functions are called with others than their parameters; change them by a patch:\n" + "\n".join(found))
    # Of C++'s variables that are made before anything runs: nobody runs what makes them.
    made = [file for file in (source / "made").rglob("*.o") if b"_GLOBAL__sub_I" in file.read_bytes()]
    if made:
        sys.exit("variables are made by constructors, which do not run in a component; change it by a patch:\n"
                 + "\n".join(file.name for file in made))
    name: str = package["name"]
    return next(tree.rglob(f"{name}/__init__.py")).parent.parent


def _jobs() -> int:
    return int(os.environ.get("NATIVE_JOBS", os.cpu_count() or 1))
