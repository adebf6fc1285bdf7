"""Takes the author's modules into a component that has everything else.

Nearly all of a build is the same for each project with the same dependencies: to link the interpreter, to start it, to
import the SDK and the dependencies. So componentize-py makes a *base*, a component with all of this and without the author's
modules, once. `rollout-host build` runs the base, passes the project's files to its export `take-in`, which imports the
author's modules and arranges the memory, and stores the memory in the component. Large files are passed only in another try,
if the modules open them while they are imported.

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
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TextIO

from . import _archive, _export, _failure, _host
from ._incoming import Incoming

if TYPE_CHECKING:
    from componentize_py_types import Err
else:
    Err = _host.Err

AUTHORS = "/0"
"""The directory of the author's modules in a component."""

_exports: list[str] = []

_before: str = ""
"""Output of the dependencies when they were imported."""


class _Recorded:
    """A stream that is recorded during the build. Objects that stored it meanwhile, such as handlers of `logging`, keep it."""

    def __init__(self, stream: TextIO, text: io.StringIO) -> None:
        self._stream = stream
        self.text: io.StringIO | None = text

    def write(self, text: str) -> int:
        return self._stream.write(text) if self.text is None else self.text.write(text)

    def flush(self) -> None:
        if self.text is None:
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _recorded() -> Generator[io.StringIO, None, None]:
    """Records the output of the `with` block."""
    text = io.StringIO()
    streams: Any = sys
    before = (sys.stdout, sys.stderr)
    recorded = [_Recorded(stream, text) for stream in before]
    streams.stdout, streams.stderr = recorded
    try:
        yield text
    finally:
        streams.stdout, streams.stderr = before
        for each in recorded:
            each.text = None


def prepare(*, exports: list[str], imports: list[str], roots: list[tuple[str, str]]) -> None:
    """Imports the modules of other packages that the author's modules import before they do anything else."""
    global _before
    _exports[:] = exports
    _failure.set_roots(roots)
    with _recorded() as text:
        for name in imports:
            # An import that fails here fails again for the author's module, with the author's lines. A module may also end
            # the program.
            with contextlib.suppress(BaseException):
                importlib.import_module(name)
    _before = text.getvalue()


_incoming: Incoming | None = Incoming(AUTHORS)

_is_loaded = False


class RolloutWit:
    """The functions that the component exports by themselves."""

    def take_in(self, part: bytes) -> str:
        """Takes the next part of the project, and returns an empty text. The first empty part ends the project: the
        author's modules are imported, and a report in JSON is returned. A second one arranges the memory: in a call of its
        own, because whatever is freed after that leaves gaps in which rollouts allocate."""
        global _incoming, _is_loaded
        if part and _incoming is not None:
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
    return json.dumps({**report, "said": _before + text.getvalue()})


def _load_project(header: dict[str, Any]) -> dict[str, Any]:
    """Imports the author's modules. Returns their exports, the exception if they could not be imported, and the files that
    they need."""
    roots = [(f"{AUTHORS}/", header["shown"]), *_failure.roots()[1:]]
    _failure.set_roots(roots)
    report: dict[str, Any] = {}
    try:
        entry = importlib.import_module(header["entry"])
        _export.load(entry, only_grader=header["only_grader"], exports=_exports, roots=roots)
        report = {"exports": _exports, "complete": True}
    except _export.OtherExports as other:
        report = {"exports": other.exports}
    except BaseException as error:
        report = {"error": "".join(traceback.format_exception(error))}
    if needed := _archive.needed():
        return {"needed": [path.removeprefix(f"{AUTHORS}/") for path in needed]}
    if "complete" in report:
        _archive.keep_what_is_built(AUTHORS)
    return report
