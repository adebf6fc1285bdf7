"""The compiler of packages with native code: clang and wasm-ld of Zig, for the component's Python.

Called as `wasi-cc`, `wasi-c++` or `wasi-ar` by build systems that think of a compiler for Linux: what they say
that makes no sense here is left out. `toolchain.py` makes the directory that $WASI_NATIVE names.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

RECIPES = Path(__file__).resolve().parent
HERE = Path(os.environ["WASI_NATIVE"])
ZIG = HERE / "zig"
INCLUDES = HERE / "debian/usr/include"
BUILTINS = next((HERE / "debian/usr/lib").glob("llvm-*/lib/clang/*/lib/wasi/libclang_rt.builtins-wasm32.a"))
CXX = next((HERE / "debian/usr/lib").glob("llvm-*/include/wasm32-wasi/c++/v1"))

# Paths of the machine that builds are in no wheel.
TARGET = ["--target=wasm32-wasip2", "-fPIC", "-nostdlibinc", "-g0", "-mllvm", "-wasm-enable-sjlj"]
EMULATED = ["-D_WASI_EMULATED_SIGNAL", "-D_WASI_EMULATED_PROCESS_CLOCKS", "-D_WASI_EMULATED_GETPID", "-D_WASI_EMULATED_MMAN"]

# What compiles, and does not link.
ONLY_COMPILES = {"-c", "-E", "-S", "-M", "-MM", "-fsyntax-only", "--version", "-v", "-dumpversion", "-dM"}
ONLY_COMPILES |= {"--print-search-dirs", "-print-search-dirs"}

# Crates ask so whether this is the compiler of Windows, which would answer.
ONLY_COMPILES |= {"-?"}

# Libraries that are part of libc here, or of nothing.
LEFT_OUT = {"-lm", "-ldl", "-lpthread", "-lrt", "-lutil", "-lgcc", "-lgcc_s", "-lstdc++", "-latomic"}


def compiler(cxx: bool) -> list[str]:
    flags = [str(ZIG), "clang", *TARGET, "-resource-dir", str(ZIG.resolve().parent)]
    if cxx:
        flags += ["--driver-mode=g++", "-nostdinc++", "-isystem", str(CXX)]
    flags += ["-isystem", str(ZIG.resolve().parent / "lib/include"), "-isystem", str(INCLUDES / "wasm32-wasip2")]
    if os.environ.get("WASI_FLOAT_STATUS"):
        flags = [*flags[:2], "-isystem", str(RECIPES / "include"), *flags[2:]]
    return [*flags, *EMULATED]


def main(name: str, arguments: list[str]) -> int:
    """Does what the program of this name is to do."""
    if name.endswith("-ar"):
        os.execv(ZIG, [str(ZIG), "ar", *arguments])
    cxx = name.endswith("++")
    given = [each for argument in arguments for each in _expanded(argument)]
    if not given or set(given) & ONLY_COMPILES:
        os.execv(ZIG, [*compiler(cxx), *given])
    if "-Wl,--version" in given:
        os.execv(ZIG, [str(ZIG), "wasm-ld", "--version"])
    return link(given, cxx)


def _expanded(argument: str) -> list[str]:
    file = Path(argument[1:])
    return shlex.split(file.read_text()) if argument.startswith("@") and file.is_file() else [argument]


def link(given: list[str], cxx: bool) -> int:
    """Compiles the sources among these and links all of it."""
    sources: list[str] = []
    linked: list[str] = []
    flags: list[str] = []
    output, shared = "a.out", False
    rest = iter(given)
    for each in rest:
        if each == "-o":
            output = next(rest)
        elif each in ("-shared", "--shared"):
            shared = True
        elif each in ("-D", "-I", "-isystem", "-include", "-x"):
            flags += [each, next(rest)]
        elif each.endswith((".c", ".cpp", ".cc", ".cxx")):
            sources.append(each)
        elif each.endswith((".o", ".a", ".so", ".obj")) or each.startswith(("-L", "-l")):
            linked += [] if each in LEFT_OUT else [each]
        elif each.startswith("-Wl,"):
            linked += [part for part in each[4:].split(",") if part.startswith(("--whole", "--no-whole"))]
        else:
            flags.append(each)
    with tempfile.TemporaryDirectory() as made:
        objects: list[str] = []
        for number, source in enumerate(sources):
            objects.append(f"{made}/{number}.o")
            failed = subprocess.call([*compiler(cxx), *flags, "-c", source, "-o", objects[-1]])
            if failed:
                return failed
        linker = [str(ZIG), "wasm-ld", "-m", "wasm32", *objects, *linked]
        return subprocess.call([*linker, *(_module(output, cxx) if shared else _program(cxx)), "-o", output])


def _module(output: str, cxx: bool) -> list[str]:
    """What makes a module of Python of it. It is linked against the component's own libraries, so that what
    they do not have is seen now."""
    name = Path(output).name.split(".")[0]
    flags = ["--experimental-pic", "-shared", "--no-entry", "--no-export-dynamic", "--strip-all"]
    flags += [f"--export-if-defined=PyInit_{name}", f"-L{HERE}/lib", "-lpython3.14"]
    flags += ["-lwasi-emulated-process-clocks", "-lwasi-emulated-signal", "-lwasi-emulated-mman"]
    if status := os.environ.get("WASI_FLOAT_STATUS"):
        # In one module, for all of the package's.
        symbol = "rollout_float_status"
        flags += [str(HERE / "lib/float_status.o"), f"--export={symbol}"] if name == status else [
            f"--allow-undefined-file={HERE}/lib/float_status.txt"
        ]
    return [*flags, *(_cxx() if cxx else []), "-lc", str(BUILTINS)]


def _program(cxx: bool) -> list[str]:
    """What links a probe of a build system, which asks what libc has."""
    libraries = HERE / "debian/usr/lib/wasm32-wasip2"
    flags = [str(libraries / "crt1-command.o"), f"-L{libraries}"]
    flags += [f"-l{name}" for name in ("wasi-emulated-signal", "wasi-emulated-process-clocks", "wasi-emulated-mman")]
    return [*flags, "-lwasi-emulated-getpid", *(_cxx() if cxx else []), "-lm", "-lc", str(BUILTINS)]


def _cxx() -> list[str]:
    return [str(HERE / "lib/throw.o"), f"-L{HERE}/lib", "-lc++", "-lc++abi"]
