"""What packages with native code are compiled with for the component's Python.

    toolchain.py DIR COMPONENTIZE_PY

Zig is the compiler (of PyPI), Debian has headers and the C library for probes, and componentize-py itself the
libraries that modules are linked against: what is missing is seen now and not when a component is built.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import debian
import zstandard

RECIPES = Path(__file__).resolve().parent

ZSTANDARD = b"\x28\xb5\x2f\xfd"

# A section of a module.
EXPORTS = 7

# By which export each of componentize-py's libraries is known.
LIBRARIES = {
    "libpython3.14.so": b"PyList_New",
    "libc.so": b"malloc_usable_size",
    "libwasi-emulated-mman.so": b"mmap",
    "libwasi-emulated-process-clocks.so": b"clock",
    "libwasi-emulated-signal.so": b"__SIG_IGN",
    "libc++.so": b"_ZNSt3__26__sortI",
    "libc++abi.so": b"__cxa_pure_virtual",
}


def main() -> None:
    target, componentize = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    _debian(target)
    _libraries(target, componentize)
    _headers(target)
    _compilers(target)
    _configuration(target)


def _debian(target: Path) -> None:
    """Fetches and unpacks Debian's packages. They are those of `debian.txt`, by hash: unstable moves."""
    debs = target / "debs"
    lines = [line.split() for line in (RECIPES / "debian.txt").read_text().splitlines() if line and line[0] != "#"]
    wanted = {(name, version): digest for name, version, digest in lines}
    missing = [each for each, digest in wanted.items() if not debian.kept(debs, "*.deb", digest)]
    if missing:
        debian.fetch(target / "apt", "deb", ["download"], [f"{name}={version}" for name, version in missing], debs)
    shutil.rmtree(target / "debian", ignore_errors=True)
    for (name, version), digest in wanted.items():
        package = debian.kept(debs, "*.deb", digest)
        if package is None:
            sys.exit(f"what was fetched as {name} {version} is not the package that recipes were tried with")
        subprocess.run(["dpkg", "-x", package, target / "debian"], check=True)


def _libraries(target: Path, componentize: Path) -> None:
    """Takes the libraries and the standard library out of componentize-py."""
    frames = list(_frames(componentize.read_bytes()))
    (target / "lib").mkdir(exist_ok=True)
    for name, known_by in LIBRARIES.items():
        modules = [frame for frame in frames if frame.startswith(b"\0asm") and _exports(frame, known_by)]
        (target / "lib" / name).write_bytes(min(modules, key=len))
    archive = next(frame for frame in frames if b"_sysconfigdata__wasi_wasm32-wasi.py" in frame)
    (target / "library.tar").write_bytes(archive)
    with tarfile.open(target / "library.tar") as files:
        (target / "lib/_sysconfigdata__wasi_wasm32-wasi.py").write_bytes(
            next(files.extractfile(each) for each in files if "_sysconfigdata_" in each.name).read()  # type: ignore[union-attr]
        )
    (target / "library.tar").unlink()


def _frames(content: bytes) -> Iterator[bytes]:
    """What is compressed in it."""
    at = content.find(ZSTANDARD)
    while at >= 0:
        reader = zstandard.ZstdDecompressor().decompressobj()
        try:
            frame = reader.decompress(content[at:])
        except zstandard.ZstdError:
            frame = b""
        if reader.eof and frame:
            yield frame
            at = len(content) - len(reader.unused_data) - 1
        at = content.find(ZSTANDARD, at + 1)


def _exports(module: bytes, name: bytes) -> bool:
    """Whether a module's section of exports has a name that begins so."""
    at = 8
    while at < len(module):
        kind = module[at]
        size, begin = _number(module, at + 1)
        if kind == EXPORTS:
            return module.find(name, begin, begin + size) >= 0
        at = begin + size
    return False


def _number(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if content[at - 1] < 0x80:
            return value, at


def _headers(target: Path) -> None:
    """Python's headers, with a `pyconfig.h` of the names in Debian's and the component's own values."""
    include = target / "python"
    debian = target / "debian/usr/include"
    shutil.rmtree(include, ignore_errors=True)
    shutil.copytree(debian / "python3.14", include)
    values: dict[str, Any] = runpy.run_path(str(target / "lib/_sysconfigdata__wasi_wasm32-wasi.py"))["build_time_vars"]
    text = (debian / "x86_64-linux-gnu/python3.14/pyconfig.h").read_text()
    names = dict.fromkeys(re.findall(r"^(?:#\s*define|/\* #undef)\s+(\w+)", text, re.MULTILINE))
    lines = ["#ifndef Py_PYCONFIG_H", "#define Py_PYCONFIG_H", "#define _GNU_SOURCE 1"]
    lines += [f"#define _WASI_EMULATED_{name} 1" for name in ("SIGNAL", "GETPID", "PROCESS_CLOCKS")]
    for name in names:
        value = values.get(name)
        is_text = isinstance(value, str) and not re.match(r"[\w\"'(]", value)
        if name != "Py_PYCONFIG_H" and value not in (None, "") and not is_text:
            defined = value != 0 or name.startswith("HAVE_DECL_")
            lines.append(f"#define {name} {value}" if defined else f"/* #undef {name} */")
    (include / "pyconfig.h").write_text("\n".join([*lines, "#endif", ""]))


def _compilers(target: Path) -> None:
    """The compiler by the names that build systems look for, and what C++ needs besides."""
    import ziglang  # type: ignore[import-not-found]

    zig = target / "zig"
    zig.unlink(missing_ok=True)
    zig.symlink_to(Path(ziglang.__file__).with_name("zig"))
    (target / "bin").mkdir(exist_ok=True)
    for name in ("wasi-cc", "wasi-c++", "wasi-ar"):
        program = target / "bin" / name
        program.write_text(
            f"#!{sys.executable} -B\nimport sys\nsys.path.insert(0, {str(RECIPES)!r})\nimport cc\n"
            f"sys.exit(cc.main({name!r}, sys.argv[1:]))\n"
        )
        program.chmod(0o755)
    environment = {**os.environ, "WASI_NATIVE": str(target)}
    for name in ("throw", "float_status"):
        command: list[str | Path] = [target / "bin/wasi-cc", "-Os", "-c", RECIPES / f"{name}.c", "-o", target / f"lib/{name}.o"]
        subprocess.run(command, check=True, env=environment)
    (target / "lib/float_status.txt").write_text("rollout_float_status\n")


def _configuration(target: Path) -> None:
    """What build systems are told of the Python that they build for."""
    (target / "cross.ini").write_text(f"""[binaries]
c = '{target}/bin/wasi-cc'
cpp = '{target}/bin/wasi-c++'
ar = '{target}/bin/wasi-ar'
cython = '{Path(sys.executable).with_name("cython")}'
python = '{sys.executable}'
[host_machine]
system = 'wasi'
cpu_family = 'wasm32'
cpu = 'wasm32'
endian = 'little'
[properties]
longdouble_format = 'IEEE_QUAD_LE'
needs_exe_wrapper = true
skip_sanity_check = true
""")
    version = {"major": 3, "minor": 14, "micro": 0, "releaselevel": "final", "serial": 0}
    suffix = ".cpython-314-wasm32-wasi.so"
    details = {
        "schema_version": "1.0",
        "base_prefix": str(target / "python"),
        "platform": "wasi-wasm32",
        "language": {"version": "3.14", "version_info": version},
        "implementation": {"name": "cpython", "cache_tag": "cpython-314", "version": version, "hexversion": 0x030E00F0},
        "abi": {"flags": [], "extension_suffix": suffix, "stable_abi_suffix": ".abi3.so"},
        "suffixes": {"extensions": [suffix, ".so"]},
        "libpython": {"link_extensions": False, "dynamic": str(target / "lib/libpython3.14.so")},
        "c_api": {"headers": str(target / "python")},
    }
    (target / "build-details.json").write_text(json.dumps(details, indent=1))
    (target / "pyo3.cfg").write_text(
        "implementation=CPython\nversion=3.14\nshared=true\nabi3=false\nlib_name=python3.14\npointer_width=32\n"
        "build_flags=\nsuppress_build_script_link_lines=true\next_suffix=.cpython-314-wasm32-wasi.so\n"
    )


if __name__ == "__main__":
    main()
