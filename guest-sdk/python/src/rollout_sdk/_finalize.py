"""Replaces parts of `weakref.finalize` that write to the class.

Each handle of the host has a finalizer. The standard library sets an attribute of the class with each new one, and a change
to a class discards everything that the interpreter has cached about it.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any


def _begin(self: Any, obj: object, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    kind: Any = weakref.finalize
    info = self._Info()
    info.weakref = weakref.ref(obj, self)
    info.func = func
    info.args = args
    info.kwargs = kwargs or None
    info.atexit = True
    info.index = next(self._index_iter)
    self._registry[self] = info
    if not kind._dirty:
        kind._dirty = True


def install() -> None:
    """Installs the replacement. The class's one-time registration happens now."""
    kind: Any = weakref.finalize
    kind(kind, _begin).detach()
    kind.__init__ = _begin


def renew() -> None:
    """Recreates the objects that each finalizer writes to, so that they lie at the end of the memory."""
    kind: Any = weakref.finalize
    kind._registry = dict(kind._registry)
    kind._index_iter = itertools.count(next(kind._index_iter))
