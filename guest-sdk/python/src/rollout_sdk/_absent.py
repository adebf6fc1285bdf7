"""Stand-ins for modules that a component does not have.

Only what well-known packages import without needing it: C's numbers, whose sizes SymPy
asks `ctypes` for, `bz2`, which NetworkX imports for files, `ssl`, which every client of
HTTP imports, and what clients of agents' protocols import for servers. Anything else that
is asked of a stand-in says that it is one.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import struct
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import _after
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

# Names that are imported and not used, by module: of a package that is not there, for one that is, and of a module that
# cannot be imported. What is not among them is no part of the stand-in: an import of it fails as it would without.
_FOR_MCP = {
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
    """Puts the stand-ins where the modules cannot be imported."""
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
    if importlib.util.find_spec("mcp") is not None:
        sys.meta_path.append(_Finder(_FOR_MCP))
        try:
            importlib.import_module("fcntl")
        except ImportError:
            sys.modules["fcntl"] = _fcntl()
    if importlib.util.find_spec("agents") is not None:
        # The module is there, and cannot be imported.
        sys.meta_path.insert(0, _Finder(_OF_AGENTS))
    sys.breakpointhook = _no_debugger
    _after.change({"dotenv.main": _find_no_dotenv})


def _find_no_dotenv(module: Any) -> None:
    """Has `load_dotenv()` find no file where there is no directory to begin at."""
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
    """Finds modules of which there are only names."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in self.names else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name, "Names of what a component does not have.")

    def exec_module(self, module: ModuleType) -> None:
        for name in self.names[module.__name__].split():
            setattr(module, name, _refusing(module.__name__, name))


def _refusing(module: str, name: str) -> type:
    def refuse(_: type, *__: Any, **___: Any) -> Never:
        raise NotImplementedError(f"a component has no {module}.{name}: there is nothing native in it that could do this")

    # A name may stand for an exception.
    return type(name, (Exception,), {"__module__": module, "__new__": refuse})


class _NoBz2:
    def __init__(self, *_: Any) -> None:
        raise NotImplementedError("a component has no bz2: nothing native can be loaded in it; zlib and gzip are there")


def _bz2() -> ModuleType:
    module: Any = ModuleType("_bz2", "Compression by bzip2, which a component does not have.")
    module.BZ2Compressor = module.BZ2Decompressor = _NoBz2
    return module  # type: ignore[no-any-return]


def _fcntl() -> ModuleType:
    """What is locked and set on files, of which there are none but the component's own."""
    module: Any = ModuleType("fcntl", "Locks and settings of files, which a component does not have.")
    values = {"LOCK_SH": 1, "LOCK_EX": 2, "LOCK_NB": 4, "LOCK_UN": 8, "FD_CLOEXEC": 1}
    values |= {"F_DUPFD": 0, "F_GETFD": 1, "F_SETFD": 2, "F_GETFL": 3, "F_SETFL": 4, "F_DUPFD_CLOEXEC": 1030}
    module.__dict__.update(values)

    def refuse(*_: Any) -> Never:
        raise OSError(errno.ENOTSUP, "a component has no fcntl")

    module.fcntl = module.flock = module.ioctl = module.lockf = refuse
    return module  # type: ignore[no-any-return]


class _Number:
    """A number as C keeps it."""

    # By this numpy knows what is a type of C.
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
            # Too large a number is cut, as in C.
            bits = 8 * len(zero)
            self._bytes = (int(value) % (1 << bits)).to_bytes(len(zero), sys.byteorder)

    @classmethod
    def from_buffer(cls, source: Any, offset: int = 0) -> Any:
        """The number that these bytes are: a copy, unlike that of `ctypes`."""
        made = cls()
        held = source._bytes if isinstance(source, _Number) else bytes(source)
        made._bytes = held[offset : offset + struct.calcsize(cls._type_)]
        return made

    from_buffer_copy = from_buffer


def _no_such_library(name: str) -> None:
    """`ctypes.util.find_library`."""


def _no_library(name: Any = None, *_: Any, **__: Any) -> Never:
    raise OSError(errno.ENOTSUP, f"{name}: a component loads no library: nothing native can be loaded in it")


class _Libraries:
    """`ctypes.cdll`: none can be loaded."""

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
        # Packages ask whether there is such a thing, and go without it where not.
        raise AttributeError(f"a component has no ctypes.{name}: nothing native can be loaded in it")

    module.sizeof = sizeof
    module.__getattr__ = absent
    kinds: Any = ModuleType("_ctypes", "Kinds of C's types, of which there are none but numbers.")
    for name in ("Array", "Structure", "Union", "_Pointer"):
        setattr(kinds, name, type(name, (), {"__module__": "_ctypes"}))
    sys.modules["_ctypes"] = kinds
    return module  # type: ignore[no-any-return]
