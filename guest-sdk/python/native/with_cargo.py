"""Packages whose native code is Rust, with pyo3: maturin and cargo make them.

rustup's standard library for WebAssembly is position independent, so a crate becomes a shared library of the
component's; it is linked against the component's own libpython and libc.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

TARGET = "wasm32-wasip2"

# No symbol is exported but those that cargo asks for: the standard library's would be imported by others, and what
# they need of the host with them. What nobody has is an error here.
LINKER = ("-shared", "--experimental-pic", "--no-export-dynamic", "--strip-all", "--unresolved-symbols=report-all", "-lpython3.14")


def compiler() -> bytes:
    """Which compiler there is, whose standard library becomes part of a wheel."""
    return subprocess.run(["rustc", "--version"], check=True, capture_output=True).stdout


def build(_: dict[str, Any], source: Path, toolchain: Path, environment: dict[str, str]) -> Path:
    """Makes the package as it is installed, and says where it is."""
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    flags = ["-Clink-self-contained=n", f"-Lnative={toolchain / 'lib'}", *(f"-Clink-arg={each}" for each in LINKER)]
    # What panics name is no path of this machine.
    flags += [f"--remap-path-prefix={place}=." for place in (source, home)]
    environment = {
        **environment,
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags),
        "CARGO_TARGET_DIR": str(source / "made"),
        "CARGO_TARGET_WASM32_WASIP2_LINKER": "rust-lld",
        # Some crates have a library in C within.
        "CC_wasm32_wasip2": str(toolchain / "bin/wasi-cc"),
        "AR_wasm32_wasip2": str(toolchain / "bin/wasi-ar"),
        "CFLAGS_wasm32_wasip2": f"{environment['CFLAGS']} -Os",
        "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "1",
        "CARGO_PROFILE_RELEASE_LTO": "fat",
        "CARGO_PROFILE_RELEASE_OPT_LEVEL": "s",
        "PYO3_CONFIG_FILE": str(toolchain / "pyo3.cfg"),
        "CARGO_BUILD_JOBS": os.environ.get("NATIVE_JOBS", ""),
    }
    if not environment["CARGO_BUILD_JOBS"]:
        del environment["CARGO_BUILD_JOBS"]
    wheels = source / "wheels"
    command = [Path(sys.executable).with_name("maturin"), "build", "--release", "--locked", "--target", TARGET]
    command += ["--interpreter", "python3.14", "--skip-auditwheel", "--out", wheels]
    done = subprocess.run(command, cwd=source, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{source.name}\n{done.stdout.decode(errors='replace')[-8000:]}")
    tree = source / "tree"
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as archive:
        archive.extractall(tree)
    return tree
