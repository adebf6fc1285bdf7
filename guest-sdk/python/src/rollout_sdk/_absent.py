"""Stand-ins for modules that a component does not have.

They cover only the modules that well-known packages import without needing them: `ctypes`, because SymPy asks it for
the sizes of C's numbers; `bz2`, which NetworkX imports for files; `ssl`, which every HTTP client imports; and the
modules that clients of agent protocols import for servers. Any other use of a stand-in raises an error that explains
this.
"""

from __future__ import annotations

import errno
import importlib
import os
import struct
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from . import _after
from ._archived import BUNDLED
from ._older import Never

_SIZES = {
    "c_bool": "?",
    "c_byte": "b",
    "c_char": "c",
    "c_double": "d",
    "c_float": "f",
    "c_int": "i",
    "c_int8": "b",
    "c_int16": "h",
    "c_int32": "i",
    "c_int64": "q",
    "c_long": "l",
    "c_longlong": "q",
    "c_short": "h",
    "c_size_t": "N",
    "c_ubyte": "B",
    "c_uint": "I",
    "c_uint8": "B",
    "c_uint16": "H",
    "c_uint32": "I",
    "c_uint64": "Q",
    "c_ulong": "L",
    "c_ulonglong": "Q",
    "c_ushort": "H",
    "c_void_p": "P",
}

# Names that packages import and do not use, by module. `_FOR_MCP` is for modules that are absent, `_OF_AGENTS` for a
# module that exists and cannot be imported. Importing any other name fails as it would without the stand-in.
_FOR_MCP = {
    "fcntl": "",
    "cryptography": "",
    "cryptography.exceptions": "InvalidTag",
    "cryptography.hazmat": "",
    "cryptography.hazmat.primitives": "",
    "cryptography.hazmat.primitives.ciphers": "",
    "cryptography.hazmat.primitives.ciphers.aead": "AESGCM",
    "cryptography.hazmat.primitives.hashes": "SHA256",
    "cryptography.hazmat.primitives.kdf": "",
    "cryptography.hazmat.primitives.kdf.hkdf": "HKDF",
}
_OF_AGENTS = {
    "agents.sandbox.sandboxes.unix_local": (
        "UnixLocalSandboxClient UnixLocalSandboxClientOptions UnixLocalSandboxSession UnixLocalSandboxSessionState"
    ),
}


def stand_in() -> None:
    """Installs a stand-in for each module that cannot be imported."""
    try:
        importlib.import_module("ctypes")
    except ImportError:
        sys.modules["ctypes"] = _ctypes()
    try:
        importlib.import_module("_bz2")
    except ImportError:
        sys.modules["_bz2"] = _bz2()
    try:
        importlib.import_module("_ssl")
    except ImportError:
        sys.modules["_ssl"] = importlib.import_module("._no_tls", __package__)
    # The dependencies are not there yet.
    sys.meta_path.append(_ForMcp(_FOR_MCP))
    sys.meta_path.insert(0, _Finder(_OF_AGENTS))
    sys.breakpointhook = _no_debugger
    _after.change({"dotenv.main": _find_no_dotenv})


def _find_no_dotenv(module: Any) -> None:
    """Makes `load_dotenv()` find no file if its start directory does not exist."""
    walk = module._walk_to_root

    def walk_from(path: str) -> Any:
        return walk(path) if os.path.exists(path) else iter(())

    module._walk_to_root = walk_from


def _no_debugger(*_: Any, **__: Any) -> Never:
    raise RuntimeError(
        "breakpoint(): a component has no terminal; run the same code in a debugger by rollout_sdk.testing, "
        "or look at what print, log and logging leave in the rollout's log"
    )


class _Finder:
    """Finds stand-in modules, which contain only names."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in self.names else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name, "Names of what a component does not have.")

    def exec_module(self, module: ModuleType) -> None:
        for name in self.names[module.__name__].split():
            setattr(module, name, _refusing(module.__name__, name))


class _ForMcp(_Finder):
    """Finds stand-in modules only if the package `mcp` is a dependency. Other packages do without what it needs."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self.names:
            return None
        # Not by `importlib.util`, which fails if the author's code has put a module of this name in place.
        found = PathFinder.find_spec("mcp")
        is_dependency = found is not None and (found.origin or "").startswith(f"{BUNDLED}/")
        return super().find_spec(name, path, target) if is_dependency else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _fcntl() if spec.name == "fcntl" else super().create_module(spec)


def _refusing(module: str, name: str) -> type:
    def refuse(_: type, *__: Any, **___: Any) -> Never:
        raise NotImplementedError(f"a component has no {module}.{name}: there is nothing native in it that could do this")

    # The name may be used as an exception class.
    return type(name, (Exception,), {"__module__": module, "__new__": refuse})


class _NoBz2:
    def __init__(self, *_: Any) -> None:
        raise NotImplementedError("a component has no bz2: nothing native can be loaded in it; zlib and gzip are there")


def _bz2() -> ModuleType:
    module: Any = ModuleType("_bz2", "Compression by bzip2, which a component does not have.")
    module.BZ2Compressor = module.BZ2Decompressor = _NoBz2
    return module  # type: ignore[no-any-return]


def _fcntl() -> ModuleType:
    """Returns a stand-in for `fcntl`, whose functions are refused: a component has no files but its own."""
    module: Any = ModuleType("fcntl", "Locks and settings of files, which a component does not have.")
    values = {"LOCK_SH": 1, "LOCK_EX": 2, "LOCK_NB": 4, "LOCK_UN": 8, "FD_CLOEXEC": 1}
    values |= {"F_DUPFD": 0, "F_GETFD": 1, "F_SETFD": 2, "F_GETFL": 3, "F_SETFL": 4, "F_DUPFD_CLOEXEC": 1030}
    module.__dict__.update(values)

    def refuse(*_: Any) -> Never:
        raise OSError(errno.ENOTSUP, "a component has no fcntl")

    module.fcntl = module.flock = module.ioctl = module.lockf = refuse
    return module  # type: ignore[no-any-return]


class _Number:
    """A number in C's representation."""

    # numpy recognizes C types by this module name.
    __module__ = "_ctypes"
    _type_: str

    def __init__(self, value: Any = None) -> None:
        self.value = value

    @property
    def value(self) -> Any:
        return struct.unpack(self._type_, self._bytes)[0]

    @value.setter
    def value(self, value: Any) -> None:
        zero = b"\0" * struct.calcsize(self._type_)
        if value is None:
            self._bytes = zero
        elif self._type_ in "?cdf":
            self._bytes = struct.pack(self._type_, value)
        else:
            # A number that is too large is truncated, as in C.
            bits = 8 * len(zero)
            self._bytes = (int(value) % (1 << bits)).to_bytes(len(zero), sys.byteorder)

    @classmethod
    def from_buffer(cls, source: Any, offset: int = 0) -> Any:
        """Creates a number from a copy of the bytes; `ctypes` would share them."""
        made = cls()
        held = source._bytes if isinstance(source, _Number) else bytes(source)
        made._bytes = held[offset : offset + struct.calcsize(cls._type_)]
        return made

    from_buffer_copy = from_buffer


def _no_such_library(name: str) -> None:
    """Implements `ctypes.util.find_library`: finds no library."""


def _no_library(name: Any = None, *_: Any, **__: Any) -> Never:
    raise OSError(errno.ENOTSUP, f"{name}: a component loads no library: nothing native can be loaded in it")


class _Libraries:
    """Implements `ctypes.cdll`: no library can be loaded."""

    LoadLibrary = staticmethod(_no_library)

    def __getattr__(self, name: str) -> Never:
        _no_library(name)


def _ctypes() -> ModuleType:
    module: Any = ModuleType("ctypes", "C's numbers. There is no more of ctypes in a component.")
    module.__path__ = []
    util: Any = ModuleType("ctypes.util", "Finds no library.")
    util.find_library = _no_such_library
    module.util = sys.modules["ctypes.util"] = util
    module.CDLL = module.PyDLL = _no_library
    module.cdll = module.pydll = _Libraries()
    for name, code in _SIZES.items():
        setattr(module, name, type(name, (_Number,), {"_type_": code}))

    def sizeof(kind: Any) -> int:
        return struct.calcsize(kind._type_)

    def absent(name: str) -> Never:
        # Packages test for the name and work without it.
        raise AttributeError(f"a component has no ctypes.{name}: nothing native can be loaded in it")

    module.sizeof = sizeof
    module.__getattr__ = absent
    kinds: Any = ModuleType("_ctypes", "Kinds of C's types, of which there are none but numbers.")
    for name in ("Array", "Structure", "Union", "_Pointer"):
        setattr(kinds, name, type(name, (), {"__module__": "_ctypes"}))
    sys.modules["_ctypes"] = kinds
    return module  # type: ignore[no-any-return]
