"""Builds packages whose native code is Rust, with pyo3, by maturin and cargo.

rustup's standard library for WebAssembly is position independent, so a crate becomes a shared library of the
component; it is linked against the component's own libpython and libc.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

TARGET = "wasm32-wasip2"

# Only the symbols that cargo requests are exported: those of the standard library would be imported by other libraries,
# together with their imports from the host. An unresolved symbol is an error.
LINKER = ("-shared", "--experimental-pic", "--no-export-dynamic", "--strip-all", "--unresolved-symbols=report-all", "-lpython3.14")


def compiler() -> bytes:
    """Returns the compiler's version. Its standard library becomes part of a wheel."""
    return subprocess.run(["rustc", "--version"], check=True, capture_output=True).stdout


def build(_: dict[str, Any], source: Path, toolchain: Path, environment: dict[str, str]) -> Path:
    """Builds the package in its installed form and returns its directory."""
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    flags = ["-Clink-self-contained=n", f"-Lnative={toolchain / 'lib'}", *(f"-Clink-arg={each}" for each in LINKER)]
    # Panics must not contain paths of this machine.
    flags += [f"--remap-path-prefix={place}=." for place in (source, home)]
    environment = {
        **environment,
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags),
        "CARGO_TARGET_DIR": str(source / "made"),
        "CARGO_TARGET_WASM32_WASIP2_LINKER": "rust-lld",
        # Some crates contain a C library.
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
