"""An archive, in the component's memory, of the modules that were not imported while the component was built.

A finished component has no files. So the last step of building packs the sources of every pure module of the project,
its dependencies and the standard library, and the data files of packages. Importing one of them then unpacks and
compiles it, which costs that rollout some milliseconds; list a module that every rollout imports in `imports` of the
build's settings instead. `importlib.resources`, `pkgutil.get_data` and `open` (by the path beside the module) read the
data, and `os.stat`, `os.listdir` and their users (`os.path`, `pathlib`, `glob`) find it.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.metadata
import importlib.resources
import io
import os
import re
import stat
import sys
import tokenize
import zlib
from bisect import insort
from collections.abc import Generator, Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.resources.abc import Traversable, TraversableResources
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import IO, Any

from . import _after, _refused
from ._archived import is_archived
from ._json import is_a

LIBRARY = "/python"

# Parts of the standard library that are left out: the modules for screens, for installation, and for tests of the
# library.
_NOT_OF_LIBRARY = frozenset(
    "ensurepip idlelib lib2to3 pydoc_data site-packages test tests tkinter turtle.py turtledemo".split()
)

LEVEL = 6
"""The level of compression in a finished component."""

_files: dict[str, bytes] = {}
"""Compressed contents, by path."""

_sizes: dict[str, int] = {}
"""Unpacked sizes, by path."""

_left_out: dict[str, bool] = {}
"""Files of the project and of dependencies that a build has not passed, with whether the author's modules need them."""

_borrowed: list[str] = []
"""Files of dependencies that are there while the author's modules are imported, and not part of the component."""

_dirs: dict[str, list[str]] = {}
"""Sorted names in each directory, by its path."""

_roots: list[str] = []
"""The directories that modules are imported from. They contain the metadata of distributions."""

_native: set[str] = set()
"""Native modules, which are part of the component and are loaded by their path."""

_real_open = builtins.open
_real_stat = os.stat
_real_list = os.listdir
_real_scan = os.scandir
_real_access = os.access
_real_data = SourceFileLoader.get_data


def pack(roots: Iterable[str]) -> None:
    """Packs these directories and the standard library, and makes modules load from the archive from now on."""
    _roots[:] = (LIBRARY, *roots)
    for root in _roots:
        _pack_directory(root, of_library=root == LIBRARY, in_package=False)
    sys.path_hooks.insert(0, _ArchiveFinder)
    sys.path_importer_cache.clear()
    sys.meta_path.append(_Distributions())
    sys.meta_path.append(_refused.Missing())
    for module in list(sys.modules.values()):
        _read_data_from_archive(module)
    for module, name in ((builtins, "open"), (io, "open"), (tokenize, "_builtin_open")):
        vars(module)[name] = _open
    streams: Any = io
    streams.open_code = _open_code
    _after.change({"_pyio": _open_from_archive, "tarfile": _open_tar_from_archive})
    if "tarfile" in sys.modules:
        _open_tar_from_archive(sys.modules["tarfile"])
    as_file: Any = importlib.resources.as_file
    as_file.register(_ArchivePath, _as_path)
    system: Any = os
    system.stat, system.lstat, system.access = _stat, _stat, _access
    system.listdir, system.scandir = _list, _scan
    for name in ("link", "mkdir", "open", "rename", "replace", "symlink", "truncate"):
        if hasattr(system, name):
            setattr(system, name, _reported(getattr(system, name), f"os.{name}"))
    # A module that a program loads by path uses the interpreter's own loader.
    loader: Any = SourceFileLoader
    loader.get_data = _data


def compressor(level: int) -> Any:
    """Returns an object that compresses a file for `add`."""
    return zlib.compressobj(level)


def add(path: str, packed: bytes, size: int) -> None:
    """Adds a compressed file that comes after the others were packed; `added` ends this."""
    if path not in _native:
        _files[path], _sizes[path] = packed, size
    _list_in_directories(path)


def leave_out(path: str, size: int) -> None:
    """Adds a file without its content. `needed` returns those that were opened."""
    _left_out[path] = False
    _sizes[path] = size
    _list_in_directories(path)


def borrow(path: str) -> None:
    """Makes an added file no part of the component."""
    _borrowed.append(path)


def needed() -> list[str]:
    """Returns the files that were left out and are needed."""
    return [path for path, is_needed in _left_out.items() if is_needed]


def added() -> None:
    """Makes importers find the files that were added."""
    sys.path_importer_cache.clear()
    # A package in several directories may have been imported from some of them.
    importlib.invalidate_caches()


def _list_in_directories(path: str) -> None:
    while path.count("/") > 1:
        path, _, name = path.rpartition("/")
        inside = _dirs.setdefault(path, [])
        if name in inside:
            # So are the directories around it.
            return
        insort(inside, name)


def keep_what_is_built(root: str) -> None:
    """Removes files that exist during the build but are not part of the component. They are in the directory of the project,
    or were left out."""
    for path in [known for known in _files if known.startswith(f"{root}/")]:
        directory, _, name = path.rpartition("/")
        if not is_archived(name, _sizes[path], in_package=_in_package(root, directory)):
            del _files[path]
    places = {path.rpartition("/")[0] for path in _left_out}
    for path in _borrowed:
        del _files[path]
        places.add(path.rpartition("/")[0])
    _left_out.clear()
    _borrowed.clear()
    places.update(known for known in _dirs if known == root or known.startswith(f"{root}/"))
    for place in list(places):
        while place.count("/") > 1:
            place = place.rpartition("/")[0]
            places.add(place)
    # Directories come after those that are in them.
    for directory in sorted(places, reverse=True):
        paths = [(name, f"{directory}/{name}") for name in _dirs.get(directory, ())]
        if left := [name for name, path in paths if path in _files or path in _dirs or path in _native]:
            _dirs[directory] = left
        else:
            _dirs.pop(directory, None)


def _in_package(root: str, directory: str) -> bool:
    """Returns whether a directory of the project, or one around it, is a package."""
    if "__init__.py" in _dirs.get(directory, ()):
        return True
    return directory != root and _in_package(root, directory.rpartition("/")[0])


def _read_data_from_archive(module: Any) -> None:
    """Makes a module that is already loaded find its data in the archive."""
    spec = getattr(module, "__spec__", None)
    if spec is not None and type(spec.loader) is SourceFileLoader:
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
        module.__loader__ = spec.loader


def _pack_directory(directory: str, *, of_library: bool, in_package: bool) -> None:
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return
    # A virtual environment is not part of a project.
    if "pyvenv.cfg" in names:
        return
    of_distribution = directory.endswith(".dist-info")
    in_package = in_package or "__init__.py" in names
    kept: list[str] = []
    for name in names:
        path = f"{directory}/{name}"
        if name == "__pycache__" or (of_library and name in _NOT_OF_LIBRARY):
            continue
        if os.path.isdir(path):
            if not name.startswith("."):
                _pack_directory(path, of_library=of_library, in_package=in_package)
            if path not in _dirs:
                continue
        elif not os.path.isfile(path):
            continue
        elif name.endswith(tuple(EXTENSION_SUFFIXES)):
            _native.add(path)
        elif is_archived(name, os.stat(path).st_size, in_package=(in_package or of_distribution) and not of_library):
            content = _content(path)
            _files[path], _sizes[path] = zlib.compress(content, LEVEL), len(content)
        else:
            continue
        kept.append(name)
    if kept:
        _dirs[directory] = kept


def _content(path: str) -> bytes:
    with _real_open(path, "rb") as file:
        return file.read()


def _read(path: str) -> bytes | None:
    packed = _files.get(_plain(path))
    if packed is None and _left_out and (place := _plain(path)) in _left_out:
        _left_out[place] = True
        raise FileNotFoundError(f"{path} is passed to the next try of this build")
    return None if packed is None else zlib.decompress(packed)


def _plain(path: str) -> str:
    return os.path.normpath(path) if "/." in path or "//" in path else path


def _data(self: SourceFileLoader, path: str) -> bytes:
    """Implements `SourceFileLoader.get_data`."""
    content = _read(str(path))
    return _real_data(self, path) if content is None else content


def _open_code(path: str) -> IO[bytes]:
    """Implements `io.open_code`."""
    return _open(path, "rb")


class _Loader(SourceFileLoader):
    """Loads a module of the archive."""

    def path_stats(self, path: str) -> Any:
        # There is no compiled file to compare the source with.
        raise OSError(f"no compiled form of {path}")

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Does nothing: a compiled file cannot be stored."""

    def get_resource_reader(self, name: str | None = None) -> Any:
        return _Reader(os.path.dirname(self.path)) if self.is_package(name or self.name) else None


class _ArchiveFinder:
    """Finds modules in one directory of the archive."""

    def __init__(self, path: str) -> None:
        self._path = os.path.normpath(path)
        if self._path not in _dirs:
            raise ImportError(f"{path} is not in the archive", path=path)

    def find_spec(self, name: str, target: Any = None) -> ModuleSpec | None:
        tail = name.rpartition(".")[2]
        base = f"{self._path}/{tail}"
        inner = _dirs.get(base)
        if inner is not None and "__init__.py" in inner:
            path = f"{base}/__init__.py"
            return spec_from_file_location(name, path, loader=_Loader(name, path), submodule_search_locations=[base])
        # As elsewhere, a native module has precedence over the source that it was made from.
        for suffix in EXTENSION_SUFFIXES:
            if (path := base + suffix) in _native:
                return spec_from_file_location(name, path, loader=ExtensionFileLoader(name, path))
        if f"{base}.py" in _files:
            return spec_from_file_location(name, f"{base}.py", loader=_Loader(name, f"{base}.py"))
        if inner is not None:
            # The directory is a part of a namespace package.
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [base]
            return spec
        return None

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """Lists modules for `pkgutil.iter_modules`."""
        for name in _dirs[self._path]:
            if name.endswith(".py") and name != "__init__.py":
                yield prefix + name[:-3], False
            elif "__init__.py" in _dirs.get(f"{self._path}/{name}", ()):
                yield prefix + name, True


# Data of packages.


class _Reader(TraversableResources):
    def __init__(self, directory: str) -> None:
        self._directory = directory

    def files(self) -> Traversable:
        return _ArchivePath(self._directory)


class _ArchivePath(Traversable):
    """A file or a directory of the archive."""

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return os.path.basename(self._path)

    def __str__(self) -> str:
        return self._path

    def iterdir(self) -> Iterator[Traversable]:
        return (_ArchivePath(f"{self._path}/{name}") for name in _dirs.get(self._path, ()))

    def is_dir(self) -> bool:
        return self._path in _dirs

    def is_file(self) -> bool:
        return self._path in _files

    def joinpath(self, *parts: Any) -> Traversable:
        return _ArchivePath(_plain("/".join((self._path, *map(str, parts)))))

    __truediv__ = joinpath

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return _open(self._path, mode, *args, **kwargs)

    def read_bytes(self) -> bytes:
        with self.open("rb") as file:
            content: bytes = file.read()
            return content

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        with self.open("r", encoding=encoding, errors=errors) as file:
            content: str = file.read()
            return content


@contextlib.contextmanager
def _as_path(place: _ArchivePath) -> Generator[Path, None, None]:
    """Implements `importlib.resources.as_file`: `open` and `os` accept the path as it is."""
    yield Path(str(place))


class _Sink(io.RawIOBase):
    """Implements `os.devnull`, which is empty and discards all writes."""

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return 0

    def write(self, data: Any) -> int:
        return len(data)


class _Opened(io.BytesIO):
    """A file of the archive that a program has opened, with the name that it was opened by."""

    def __init__(self, content: bytes, name: os.PathLike[str] | str | bytes) -> None:
        super().__init__(content)
        self.name = name


def _open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
    """Implements `open`, for files of the archive too."""
    content = None
    if is_a(file, str, bytes, os.PathLike):
        place: os.PathLike[str] | str | bytes = file
        path = os.fsdecode(place)
        if path == os.devnull:
            return _opened(_Sink(), mode, *args, **kwargs)
        if not set(mode) & set("wax+"):
            content = _read(path)
    if content is None:
        opener: Any = _real_open
        try:
            opened: IO[Any] = opener(file, mode, *args, **kwargs)
        except OSError:
            if set(mode) & set("wax+") or _refused.is_of_the_caller():
                _refused.note("file", "open")
            raise
        return opened
    return _opened(_Opened(content, file), mode, *args, **kwargs)


def _reported(real: Any, what: str) -> Any:
    """Wraps a function that creates or changes files, so that a refusal is reported to the host."""

    def reported(*args: Any, **kwargs: Any) -> Any:
        try:
            return real(*args, **kwargs)
        except OSError:
            _refused.note("file", what)
            raise

    return reported


def _open_from_archive(module: Any) -> None:
    module.open = _open


def _open_tar_from_archive(module: Any) -> None:
    module.bltn_open = _open


def _opened(file: Any, mode: str, *args: Any, **kwargs: Any) -> IO[Any]:
    """Returns a file in the form that `open` returns: binary or text."""
    if "b" in mode:
        of_bytes: IO[Any] = file
        return of_bytes
    named: dict[str, Any] = dict(zip(("buffering", "encoding", "errors", "newline"), args, strict=False))
    named.update(kwargs)
    encoding = named.get("encoding")
    return io.TextIOWrapper(
        file,
        "utf-8" if encoding in (None, "locale") else encoding,
        named.get("errors"),
        named.get("newline"),
        # The null device needs no buffer.
        write_through=isinstance(file, _Sink),
    )


# Status and contents of files and directories, because programs check a file before they open it.


def _place(path: Any) -> str | None:
    """Returns the path of a file or directory of the archive."""
    if not is_a(path, str, os.PathLike):
        return None
    given: os.PathLike[str] | str = path
    place = os.path.normpath(os.path.join("/", str(os.fspath(given))))
    return place if place in _files or place in _dirs or place in _left_out else None


def _stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
    """Implements `os.stat` and `os.lstat`."""
    place = _place(path)
    if place is None:
        kwargs.pop("follow_symlinks", None)
        found: os.stat_result = _real_stat(path, *args, **kwargs)
        return found
    mode = stat.S_IFDIR | 0o555 if place in _dirs else stat.S_IFREG | 0o444
    size = _sizes.get(place, 0)
    return os.stat_result((mode, 0, 0, 1, 0, 0, size, 0, 0, 0))


def _access(path: Any, mode: int, *args: Any, **kwargs: Any) -> bool:
    """Implements `os.access`."""
    return not mode & os.W_OK if _place(path) is not None else _real_access(path, mode, *args, **kwargs)


def _list(path: Any = None) -> list[Any]:
    """Implements `os.listdir`."""
    place = _place(path)
    if place is None or place not in _dirs:
        real: Any = _real_list
        listed: list[str] = real(path)
        return listed
    return list(_dirs[place])


class _Entries:
    """The iterator of `os.scandir`."""

    def __init__(self, place: str, names: list[str]) -> None:
        self._left = iter([_DirEntry(place, name) for name in names])

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> _DirEntry:
        return next(self._left)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the iteration."""
        self._left = iter(())


class _DirEntry:
    def __init__(self, place: str, name: str) -> None:
        self.name = name
        self.path = f"{place}/{name}"

    def __fspath__(self) -> str:
        return self.path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.normpath(self.path) in _dirs

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return not self.is_dir()

    def is_symlink(self) -> bool:
        return False

    def is_junction(self) -> bool:
        return False

    def inode(self) -> int:
        return 0

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return _stat(self.path)


def _scan(path: Any = None) -> Any:
    """Implements `os.scandir`."""
    place = _place(path)
    if place is None or place not in _dirs:
        return _real_scan(path)
    given: os.PathLike[str] | str = path
    return _Entries(str(os.fspath(given)).rstrip("/"), _dirs[place])


# Metadata of distributions.


class _Distribution(importlib.metadata.Distribution):
    def __init__(self, directory: str) -> None:
        self._directory = directory

    def read_text(self, filename: Any) -> str | None:
        content = _read(f"{self._directory}/{filename}")
        return None if content is None else content.decode()

    def locate_file(self, path: Any) -> Any:
        return _ArchivePath(f"{os.path.dirname(self._directory)}/{path}")


class _Distributions(importlib.metadata.DistributionFinder):
    """Finds distributions by name, for `importlib.metadata`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Finds no modules."""

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context = importlib.metadata.DistributionFinder.Context()  # noqa: B008
    ) -> Iterator[importlib.metadata.Distribution]:
        for path in (f"{root}/{name}" for root in _roots for name in _dirs.get(root, ())):
            # A package may contain the metadata of another one, which is not installed.
            if path.endswith(".dist-info"):
                name = os.path.basename(path).removesuffix(".dist-info").rsplit("-", 1)[0]
                if context.name is None or _same(name, context.name):
                    yield _Distribution(path)


def _same(a: str, b: str) -> bool:
    return re.sub(r"[-_.]+", "-", a).lower() == re.sub(r"[-_.]+", "-", b).lower()
