"""Quick builds: a component that is prepared without the author's modules and loads them when an instance starts.

A component for serving has imported the author's modules already. Building one takes some seconds after each edit. So
`rollout-host test FILE.py` uses a component of the SDK and the dependencies, which is built once, and passes the project's files to
each instance on standard input. The same Python in the same component imports them under the same limits; only the time of the
import differs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable

from . import _archive, _discover, _export, _failure, _refused, _rehearse
from ._archived import AUTHORS
from ._incoming import Incoming
from .errors import Failed

_SEEN_BYTES = 1 << 16

_FAST = 1
"""The level of compression: each instance packs the files."""

_exports: list[str] | None = None
"""The exports of the component, if it is of this kind."""


class WrongExports(Failed):
    """Parsing the module gave other exports than importing it."""

    def __init__(self, found: list[str], exports: list[str]) -> None:
        super().__init__(
            f"the module has {' and '.join(found)}; by its text it was taken for one with {' and '.join(exports)}, "
            "and the quick way goes by that: run `rollout-host build`, and test the component"
        )


def prepare(*, exports: list[str], imports: list[str], roots: list[tuple[str, str]]) -> None:
    """Sets the component's exports, and imports the modules of other packages that the author's modules import."""
    global _exports
    _exports = exports
    _failure.set_roots(roots)
    for name in imports:
        # An import that fails here fails again for the author's module, with the author's lines.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    _export.load_later(load, stand_ins)


def stand_ins() -> list[Callable[[], None]]:
    """Returns the parts that are rehearsed in place of the author's."""
    exports = _exports or []
    workflow = _rehearse.OwnWorkflow if "workflow" in exports else None
    agent_loop = _rehearse.OwnLoop if "agent-loop" in exports else None
    grader = _rehearse.OwnGrader if "grader" in exports else None
    environment = _rehearse.OwnEnvironment if "environment" in exports else None
    group_grader = _rehearse.OwnGroupGrader if "group-grader" in exports else None
    found = _discover.Found(workflow, agent_loop, grader, None, None, environment, group_grader=group_grader)
    return _rehearse.parts(found)


def load() -> _discover.Found:
    """Loads the author's modules from standard input."""
    incoming = Incoming(AUTHORS, _FAST)
    is_empty = True
    while part := os.read(0, _SEEN_BYTES):
        is_empty = False
        incoming.add(part)
    if is_empty:
        raise Failed("this component is for `rollout-host test FILE.py`: it has no workflow of its own")
    header = incoming.header()
    _failure.set_roots([(f"{AUTHORS}/", header["shown"]), *_failure.roots()[1:]])
    _refused.importing(True)
    module = importlib.import_module(header["entry"])
    _refused.importing(False)
    found = _discover.discover(module, only_grader=header["only_grader"])
    # Settings are not compared: a component of this kind always exports them.
    declared = [export for export in found.exports if export != "settings"]
    exports = [export for export in _exports or [] if export != "settings"]
    if declared != exports:
        raise WrongExports(declared, exports)
    _archive.keep_what_is_built(AUTHORS)
    return found
