"""Converts exceptions to the host's errors and to log lines.

The caller of the rollout gets one line with the file and line of the author's code; the rollout's log gets the traceback.
Paths are those of the author's project, because a component has no others.
"""

from __future__ import annotations

import linecache
import os
import sys
import traceback
import warnings
from enum import Enum
from types import TracebackType
from typing import Any

from ._json import is_a
from ._older import BaseExceptionGroup
from .errors import ChatError, Invalid, JudgeError, RolloutError

_roots: list[tuple[str, str]] = []
"""The component's directories during the build, with their names in messages; the author's first."""

_INNER = "/rollout_sdk/"
_BINDINGS = "/_rollout_wit/"
# The directory of the standard library in a component.
_LIBRARY = "/python/"

_MISSING = (
    "; it is neither in the project nor among what it depends on, and not in the standard library of a component"
)

_NO_FILE = "; a component has the files that it was built with, and none can be written: read data while modules are imported"
_NO_ENVIRONMENT = "; a component has no environment variables: declare a setting, which `--set` and configuration files give"
_NO_PROCESSES = "; a component starts no processes: do the work in place, or in threads, which run in place too"
_STARTS_PROCESSES = ("exec", "fork", "posix_spawn", "spawn")
_NO_ZONES = "; a component has no time zones of its own: add `tzdata` to the project's dependencies"


def set_roots(roots: list[tuple[str, str]]) -> None:
    """Sets the names of directories in messages: pairs of a prefix and its replacement. The first is the author's."""
    _roots[:] = roots


def roots() -> list[tuple[str, str]]:
    """Returns the names of directories in messages."""
    return list(_roots)


def directories() -> list[str]:
    """Returns the directories of the component's modules, except the standard library."""
    return [prefix.rstrip("/") for prefix, _ in _roots if prefix != _LIBRARY]


def keep_sources() -> None:
    """Stores the lines of the author's modules for tracebacks: the files exist only while the component is built."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and is_authors(path) and (lines := linecache.getlines(path)):
            # Without a modification time, `linecache` does not check the file again.
            linecache.cache[path] = (sum(map(len, lines)), None, lines, path)


def forget_times() -> None:
    """Removes the modification times, which belong to the build, from the other files in the cache."""
    for path, (*_, lines, name) in [(path, each) for path, each in linecache.cache.items() if len(each) == 4]:
        linecache.cache[path] = (sum(map(len, lines)), None, lines, name)


def warn_with_authors_paths() -> None:
    """Makes warnings show a file's path in the author's project."""
    original = warnings.formatwarning

    def written(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
        if line is None:
            # Reads the line by the module's path in the component.
            line = linecache.getline(filename, lineno)
        return original(message, category, shown_path(filename), lineno, line)

    module: Any = warnings
    module.formatwarning = written


def shown_path(path: str) -> str:
    """Returns the name of a file for messages."""
    for prefix, shown in _roots:
        if path.startswith(prefix):
            return shown + path[len(prefix) :]
    return path


def is_authors(path: str) -> bool:
    return bool(_roots) and path.startswith(_roots[0][0])


def is_close(path: str) -> bool:
    """Returns whether a source file is the author's, this package's or one of its bindings."""
    return is_authors(path) or _INNER in path or _BINDINGS in path


def describe(error: BaseException) -> str:
    """Returns the exception in one line: its text, and its location in the author's code."""
    text = _text(error)
    place = _place(error.__traceback__)
    return f"{text} ({place})" if place else text


def text_of(error: BaseException) -> str:
    """Returns the exception's own text, as the published package reports loops. For an exception without a text, or one
    that is not an `Exception`, returns its description and location."""
    return (str(error) if isinstance(error, Exception) else "") or describe(error)


def _text(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r}) instead of returning"
    if is_a(error, BaseExceptionGroup):
        group: Any = error
        return f"{group.message}: {'; '.join(map(_text, group.exceptions))}"
    text = str(error)
    if isinstance(error, RolloutError) and text:
        return text
    if isinstance(error, ModuleNotFoundError):
        text += _MISSING
    elif isinstance(error, FileNotFoundError):
        text += _NO_FILE
    elif type(error).__name__ == "ZoneInfoNotFoundError":
        text += _NO_ZONES
    elif isinstance(error, EOFError) and (not text or text.startswith("EOF when reading a line")):
        text = f"{text or 'EOF'}; a component has no standard input"
    elif isinstance(error, AttributeError) and error.obj is os and str(error.name).startswith(_STARTS_PROCESSES):
        text += _NO_PROCESSES
    elif isinstance(error, KeyError) and _raised_in(error.__traceback__) in ("<frozen os>", f"{_LIBRARY}os.py"):
        text += _NO_ENVIRONMENT
    elif isinstance(error, SyntaxError) and error.filename:
        text = f"{error.msg} ({shown_path(error.filename)}:{error.lineno})"
    return f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__


def _place(trace: TracebackType | None) -> str:
    """Returns the location of the innermost frame of the author's code, or else of a dependency's."""
    place = ""
    authors = False
    for frame, line in traceback.walk_tb(trace):
        path = frame.f_code.co_filename
        if is_authors(path):
            authors = True
        elif authors or _INNER in path or path.startswith((_LIBRARY, "<frozen ")):
            continue
        place = f"{shown_path(path)}:{line}, in {frame.f_code.co_name}"
    return place


def _raised_in(trace: TracebackType | None) -> str:
    """Returns the file of the innermost frame."""
    path = ""
    for frame, _ in traceback.walk_tb(trace):
        path = frame.f_code.co_filename
    return path


def lines(error: BaseException) -> list[str]:
    """Returns the lines of the traceback, without this package's frames."""
    formatted = traceback.TracebackException.from_exception(error)
    _tidy(formatted, set())
    text = "".join(formatted.format())
    return [line for line in text.splitlines() if line.strip(" ^~")]


def _tidy(formatted: traceback.TracebackException, seen: set[int]) -> None:
    if id(formatted) in seen:
        return
    seen.add(id(formatted))
    kept = [frame for frame in formatted.stack if not _is_inner(frame.filename)]
    # The frames before the author's code are the same in every traceback.
    first = next((at for at, frame in enumerate(kept) if is_authors(frame.filename)), 0)
    kept = kept[first:]
    for frame in kept:
        frame.filename = shown_path(frame.filename)
    formatted.stack[:] = kept
    for inner in (formatted.__cause__, formatted.__context__, *(formatted.exceptions or ())):
        if inner is not None:
            _tidy(inner, seen)


def _is_inner(path: str) -> bool:
    """Returns whether a frame is hidden: those of this package, and those of the import system, which CPython hides
    too."""
    return _INNER in path or path.startswith(("<frozen importlib", f"{_LIBRARY}importlib/"))


class Sort(Enum):
    """The contract's kind of an exception."""

    FAILED = "failed"
    INVALID = "invalid"
    TIMED_OUT = "timed-out"


def sort_of(error: BaseException) -> Sort:
    """Returns the kind of an exception. A group has the kind of its members if all have the same."""
    if is_a(error, BaseExceptionGroup):
        group: Any = error
        sorts = {sort_of(inner) for inner in group.exceptions}
        return sorts.pop() if len(sorts) == 1 else Sort.FAILED
    if isinstance(error, Invalid):
        return Sort.INVALID
    # The host knows why the model or the judge did not answer, and checks only failed rollouts.
    if _comes_from(error, (ChatError, JudgeError)):
        return Sort.FAILED
    if isinstance(error, TimeoutError):
        return Sort.TIMED_OUT
    if isinstance(error, (ValueError, TypeError, AssertionError)):
        return Sort.INVALID
    return Sort.FAILED


def _comes_from(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Returns whether the exception is one of these, or was raised because of one."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        if isinstance(at, kinds):
            return True
        seen.add(id(at))
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    return False
