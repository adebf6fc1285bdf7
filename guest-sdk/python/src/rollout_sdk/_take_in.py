"""Takes the author's modules and their dependencies into a component that has everything else.

Much of a build is the same for each project: to link the interpreter, to start it, to import the SDK and to pack the standard
library. So componentize-py makes a *base*, a component with all of this, once. `rollout-host build` runs the base, passes the files of
the project and its dependencies to its export `take-in`, which imports the author's modules and arranges the memory, and
stores the memory in the component. Large files are passed only in another try, if the modules open them while they are imported.

Nothing here may use a file or a stream of the system: a handle of this instance would stay in the memory, and no other
instance has it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import traceback
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, TextIO

from . import _archive, _export, _failure, _host, _image
from ._archived import AUTHORS
from ._incoming import Incoming

if TYPE_CHECKING:
    from componentize_py_types import Err
else:
    Err = _host.Err

_exports: list[str] = []


class _RecordedBytes:
    """The stream of bytes behind a recorded stream."""

    def __init__(self, stream: _Recorded) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        text = self._stream.text
        if text is None:
            return self._stream.stream.buffer.write(data)
        text.write(bytes(data).decode("utf-8", "replace"))
        return len(data)

    def writelines(self, lines: Iterable[Any]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream.stream.buffer, name)


class _Recorded:
    """A stream that is recorded during the build. Objects that stored it meanwhile, such as handlers of `logging`, keep it."""

    def __init__(self, stream: TextIO, text: io.StringIO) -> None:
        self.stream = stream
        self.text: io.StringIO | None = text
        self.buffer = _RecordedBytes(self)

    def write(self, text: str) -> int:
        return self.stream.write(text) if self.text is None else self.text.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self.text is None:
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")


@contextlib.contextmanager
def _recorded() -> Generator[io.StringIO, None, None]:
    """Records the output of the `with` block."""
    text = io.StringIO()
    before = {name: getattr(sys, name) for name in _STREAMS}
    recorded = {name: _Recorded(stream, text) for name, stream in before.items()}
    for name, stream in recorded.items():
        setattr(sys, name, stream)
    try:
        yield text
    finally:
        for name, stream in before.items():
            # A module that replaced a stream keeps its own.
            if getattr(sys, name) is recorded[name]:
                setattr(sys, name, stream)
            recorded[name].text = None


def prepare(*, exports: list[str], roots: list[tuple[str, str]]) -> None:
    """Sets the facts about the component."""
    _exports[:] = exports
    _failure.set_roots(roots)


_incoming: Incoming | None = Incoming(AUTHORS)

_is_loaded = False


class RolloutWit:
    """The functions that the component exports by themselves."""

    def take_in(self, part: bytes) -> str:
        """Takes the next part of the files, and returns an empty text. The first empty part ends them: the
        author's modules are imported, and a report in JSON is returned. A second one arranges the memory: in a call of its
        own, because whatever is freed after that leaves gaps in which rollouts allocate."""
        global _incoming, _is_loaded
        if part and _incoming is not None:
            _image.free_gaps()
            _incoming.add(part)
            return ""
        if _incoming is not None:
            header = _incoming.header()
            _incoming = None
            return _report(header)
        if _is_loaded and not part:
            _is_loaded = False
            _export.settle()
            return ""
        raise Err("the component has its modules already")


def _report(header: dict[str, Any]) -> str:
    global _is_loaded
    with _recorded() as text:
        report = _load_project(header)
    _is_loaded = "complete" in report
    return json.dumps({**report, "said": text.getvalue()})


def _load_project(header: dict[str, Any]) -> dict[str, Any]:
    """Imports the author's modules. Returns their exports, the exception if they could not be imported, and the files that
    they need."""
    roots = [(f"{AUTHORS}/", header["shown"]), *_failure.roots()[1:]]
    _failure.set_roots(roots)
    report: dict[str, Any] = {}
    try:
        for name in header["imports"]:
            importlib.import_module(name)
        entry = importlib.import_module(header["entry"])
        _export.load(entry, only_grader=header["only_grader"], exports=_exports, roots=roots)
        report = {"exports": _exports, "complete": True}
    except _export.OtherExports as other:
        report = {"exports": other.exports}
    except BaseException as error:
        report = {"error": "".join(traceback.format_exception(error))}
    if needed := _archive.needed():
        return {"needed": needed}
    if "complete" in report:
        _archive.keep_what_is_built(AUTHORS)
    return report
