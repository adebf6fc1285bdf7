"""Takes the author's modules into a component that has everything else.

Nearly all of a build is the same for each project with the same dependencies: to link the interpreter, to start it, to
import the SDK and the dependencies. So componentize-py makes a *base*, a component with all of this and without the author's
modules, once. `rollout-host build` runs the base, passes the project's files to its export `take-in`, which imports the
author's modules and arranges the memory, and stores the memory in the component.

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

if TYPE_CHECKING:
    from componentize_py_types import Err
else:
    Err = _host.Err

AUTHORS = "/0"
"""The directory of the author's modules in a component."""

_exports: list[str] = []
_parts: list[bytes] = []
_before: str = ""
"""Output of the dependencies when they were imported."""

_is_done = False


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
    """Imports the modules of other packages that the author's modules import."""
    global _before
    _exports[:] = exports
    _failure.set_roots(roots)
    with _recorded() as text:
        for name in imports:
            # An import that fails here fails again for the author's module, with the author's lines.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    _before = text.getvalue()


class RolloutWit:
    """The functions that the component exports by themselves."""

    def take_in(self, part: bytes) -> str:
        """Takes the next part of the project: a line with a list of the files, followed by their contents. An empty part
        ends the project. Returns a report in JSON."""
        global _is_done
        if _is_done:
            raise Err("the component has its modules already")
        if part:
            _parts.append(part)
            return ""
        _is_done = True
        given = b"".join(_parts)
        _parts.clear()
        with _recorded() as text:
            report = _load_project(given)
        return json.dumps({**report, "said": _before + text.getvalue()})


def _load_project(given: bytes) -> dict[str, Any]:
    head, _, contents = given.partition(b"\n")
    header: dict[str, Any] = json.loads(head)
    roots = [(f"{AUTHORS}/", header["shown"]), *_failure.roots()[1:]]
    files: dict[str, bytes] = {}
    begin = 0
    for path, size in header["files"]:
        files[f"{AUTHORS}/{path}"] = contents[begin : begin + size]
        begin += size
    del given, contents
    _archive.add(AUTHORS, files)
    del files
    _failure.set_roots(roots)
    try:
        entry = importlib.import_module(header["entry"])
        _export.load(entry, only_grader=header["only_grader"], exports=_exports, roots=roots)
    except _export.OtherExports as other:
        return {"exports": other.exports}
    except BaseException as error:
        return {"error": "".join(traceback.format_exception(error))}
    del entry
    _archive.keep_what_is_built(AUTHORS)
    _export.settle()
    return {"exports": _exports, "complete": True}
