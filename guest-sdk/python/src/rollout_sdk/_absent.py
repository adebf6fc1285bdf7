"""Stand-ins for modules of the standard library that a component does not have.

Only what well-known packages import without needing it: the sizes of C's types, which
SymPy asks `ctypes` for, and `bz2`, which NetworkX imports for files. Anything else that is
asked of a stand-in says that it is one.
"""

from __future__ import annotations

import importlib
import struct
import sys
from types import ModuleType
from typing import Any

from ._older import Never

_SIZES = {
    "c_byte": "b",
    "c_char": "c",
    "c_double": "d",
    "c_float": "f",
    "c_int": "i",
    "c_long": "l",
    "c_longlong": "q",
    "c_short": "h",
    "c_size_t": "N",
    "c_ubyte": "B",
    "c_uint": "I",
    "c_ulong": "L",
    "c_ulonglong": "Q",
    "c_ushort": "H",
    "c_void_p": "P",
}


def stand_in() -> None:
    """Puts the stand-ins where the modules cannot be imported."""
    try:
        importlib.import_module("ctypes")
    except ImportError:
        sys.modules["ctypes"] = _ctypes()
    try:
        importlib.import_module("_bz2")
    except ImportError:
        sys.modules["_bz2"] = _bz2()
    sys.breakpointhook = _no_debugger


def _no_debugger(*_: Any, **__: Any) -> Never:
    raise RuntimeError(
        "breakpoint(): a component has no terminal; run the same code in a debugger by rollout_sdk.testing, "
        "or look at what print, log and logging leave in the rollout's log"
    )


class _NoBz2:
    def __init__(self, *_: Any) -> None:
        raise NotImplementedError("a component has no bz2: nothing native can be loaded in it; zlib and gzip are there")


def _bz2() -> ModuleType:
    module: Any = ModuleType("_bz2", "Compression by bzip2, which a component does not have.")
    module.BZ2Compressor = module.BZ2Decompressor = _NoBz2
    return module  # type: ignore[no-any-return]


def _ctypes() -> ModuleType:
    module: Any = ModuleType("ctypes", "The sizes of C's types. There is no more of ctypes in a component.")
    for name, code in _SIZES.items():
        setattr(module, name, type(name, (), {"_size": struct.calcsize(code)}))

    def sizeof(kind: Any) -> int:
        return int(kind._size)

    def absent(name: str) -> Never:
        # Packages ask whether there is such a thing, and go without it where not.
        raise AttributeError(f"a component has no ctypes.{name}: nothing native can be loaded in it")

    module.sizeof = sizeof
    module.__getattr__ = absent
    return module  # type: ignore[no-any-return]
