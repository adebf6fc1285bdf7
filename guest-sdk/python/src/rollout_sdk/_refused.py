"""Operations that a component refuses: to start processes, to reach files of the machine or the network, to wait for other
threads, to interrupt a computation.

Programs swallow the exceptions (`try: … except Exception: return False`), and a reward of 0 looks like a result. So each
refusal is reported to the host, by kind, with the location of the first one in the author's code; an outcome,
`rollout-host test`, `validate` and `eval` show them beside the reward.
"""

from __future__ import annotations

import errno
import sys
from types import FrameType
from typing import Any

from . import _failure, _host

NO_NETWORK = "there is no network in a component; ask the model, the judge or a tool of the host"

# Modules of the standard library that open files which their callers name. Other modules look for files of their own,
# and work without them.
_OPENERS = (
    *("_pyio", "bz2", "codecs", "configparser", "csv", "fileinput", "gzip", "io", "logging.handlers", "lzma", "os"),
    *("pathlib", "pathlib._local", "runpy", "shelve", "shutil", "tarfile", "tempfile", "xml.etree.ElementTree", "zipfile"),
)

_LIBRARY = "/python/"
_INNER = "/rollout_sdk/"

_runs = False
"""Whether a rollout runs, so that refusals can be reported to the host."""

_counts: dict[str, int] = {}
"""Refused uses that are not yet reported to the host, by kind."""

_places: dict[str, str] = {}

_at_import: dict[str, tuple[int, str]] = {}
"""Refused uses while the component was built: their number, and the first location."""

_of_dependencies: dict[str, int] = {}
"""Number of uses, by kind, that dependencies tried while they were imported. Such uses are probes: in every project
that depends on it, a package tests for features of the machine and works without them. No rollout counts them."""


def begin() -> None:
    """Starts a rollout. Refusals while modules were imported are reported for each rollout."""
    global _runs
    _runs = True
    for kind, (count, place) in _at_import.items():
        _host.refused(kind, count, place)
        _counts[kind] = 0


def end() -> None:
    """Ends a rollout, and reports the remaining counts to the host."""
    global _runs
    _runs = False
    for kind, count in _counts.items():
        if count:
            _host.refused(kind, count, _places.get(kind, ""))
    _counts.clear()
    _places.clear()


def note(kind: str, what: str, place: str | None = None) -> None:
    """Counts a refused use. `what` is the function, for a direct call by the author's code."""
    if dependency := imported_dependency():
        if not _runs and kind not in _of_dependencies:
            print(f"note: {dependency} tried to {_PROBES[kind]} while it was imported, which no rollout counts", file=sys.stderr)
        _of_dependencies[kind] = _of_dependencies.get(kind, 0) + 1
        return
    if not _runs:
        count, first = _at_import.get(kind, (0, ""))
        if not count:
            first = f"{place or place_of(what)}, while it was imported"
            print(f"warning: {first}: {_AT_IMPORT[kind]}", file=sys.stderr)
        _at_import[kind] = (count + 1, first)
        return
    if kind in _counts:
        _counts[kind] += 1
        return
    # The first is reported immediately: a rollout may be stopped before its end.
    _counts[kind] = 0
    _places[kind] = place or place_of(what)
    _host.refused(kind, 1, _places[kind])


_AT_IMPORT = {
    "process": "a component starts no processes",
    "file": "a component has no such file",
    "network": NO_NETWORK,
    "thread": "a component has one thread",
    "alarm": "an alarm interrupts no computation in a component",
}

_PROBES = {
    "process": "start a process",
    "file": "use a file that a component does not have",
    "network": "use the network",
    "thread": "wait for another thread",
    "alarm": "set an alarm",
    "module": "import a module that a component does not have",
}


class Missing:
    """The last finder: a module that reaches it is not in the component. It reports only late imports by the author's
    code or by code that came with the rollout: packages try to import modules that they can do without."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if _runs and not _imports:
            at: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            while at is not None and at.f_code.co_filename.startswith(("<frozen ", "/python/importlib/")):
                at = at.f_back
            if at is not None and (_failure.is_authors(at.f_code.co_filename) or at.f_code.co_filename[:1] == "<"):
                note("module", f"import {name}")


_imports = False
"""Whether the author's modules are being imported. They, too, may try to import optional modules."""


def importing(now: bool) -> None:
    """Sets whether the author's modules are being imported."""
    global _imports
    _imports = now



def place_of(what: str) -> str:
    """Returns the current location in the author's code, or else in a dependency's, and the function that it calls."""
    called, frame = what, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    other = ""
    at: FrameType | None = frame
    while at is not None:
        path = at.f_code.co_filename
        if _failure.is_authors(path):
            return _written(at, called)
        if not _is_inner(path):
            if not path.startswith(_LIBRARY) and not other:
                other = _written(at, called)
            # Code that came with the rollout belongs to no module.
            if path[:1] != "<":
                module = at.f_globals.get("__name__", "")
                called = f"{module}.{at.f_code.co_qualname}".removesuffix(".__init__")
        at = at.f_back
    return other or what


def imported_dependency() -> str:
    """Returns the line of the dependency that is being imported and makes the refused call. Returns nothing if the
    author's own code makes the call, or code that came with the rollout."""
    innermost = ""
    at: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while at is not None:
        path, is_module = at.f_code.co_filename, at.f_code.co_name == "<module>"
        if _failure.is_authors(path) or (is_module and path[:1] == "<" and not _is_inner(path)):
            return ""
        if not _is_inner(path) and not path.startswith(_LIBRARY) and path[:1] != "<":
            innermost = innermost or f"{_failure.shown_path(path)}:{at.f_lineno}"
            if is_module:
                return innermost
        at = at.f_back
    return ""


def is_of_the_caller() -> bool:
    """Returns whether the author or a dependency named the missing file, and not the standard library for its own
    use."""
    at: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while at is not None:
        path = at.f_code.co_filename
        if not _is_inner(path):
            if not path.startswith(_LIBRARY):
                return True
            if at.f_globals.get("__name__") not in _OPENERS:
                return False
        at = at.f_back
    return False


def _is_inner(path: str) -> bool:
    return _INNER in path or path.startswith("<frozen ")


def _written(frame: FrameType, called: str) -> str:
    code = frame.f_code
    return f"{_failure.shown_path(code.co_filename)}:{frame.f_lineno}, in {code.co_name}: {called}"


# The network.


def refuse_network() -> None:
    """Makes the functions of `socket` raise an error that names the alternatives to a network."""
    import socket

    module: Any = socket
    for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr"):
        if hasattr(module, name):
            setattr(module, name, _without_network(getattr(module, name), f"socket.{name}"))
    module.socket.__init__ = _without_sockets(module.socket.__init__)
    for name in ("bind", "connect", "connect_ex", "sendto"):
        if hasattr(module.socket, name):
            setattr(module.socket, name, _without_network(getattr(module.socket, name), f"socket.socket.{name}"))


def _without_sockets(real: Any) -> Any:
    """Makes the creation of a socket raise an error with the reason. In a rollout the host counts the attempt, and in a build
    this module does, unless a dependency is being imported: libraries try to create a socket then, and work without it."""

    def made(*args: Any, **kwargs: Any) -> None:
        if _runs and imported_dependency():
            raise PermissionError(errno.EACCES, NO_NETWORK)
        try:
            real(*args, **kwargs)
        except OSError as error:
            if not _runs:
                note("network", "socket.socket")
            raise type(error)(error.errno, NO_NETWORK) from None

    return made


def _no_such_name() -> OSError:
    import socket

    return socket.gaierror(socket.EAI_FAIL, NO_NETWORK)


def _without_network(real: Any, what: str) -> Any:
    def refused(*args: Any, **kwargs: Any) -> Any:
        if _runs and what.startswith("socket.get") and imported_dependency():
            # The host would count the request for a name, so it gets none.
            raise _no_such_name()
        try:
            found = real(*args, **kwargs)
        except OSError as error:
            note("network", what)
            raise type(error)(error.errno, NO_NETWORK) from None
        if what.endswith("connect_ex") and found:
            note("network", what)
        return found

    return refused
