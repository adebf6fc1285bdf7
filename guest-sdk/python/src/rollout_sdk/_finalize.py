"""`weakref.finalize` without its changes to itself.

Each handle of the host has a finalizer. The standard library's notes with each new one that there is
one, in an attribute of the class; and after a change to a class nothing holds any more that the
interpreter has learned of it.
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
    """Has finalizers begin in that way. What the class does once it does now."""
    kind: Any = weakref.finalize
    kind(kind, _begin).detach()
    kind.__init__ = _begin


def renew() -> None:
    """Makes what is written to with each finalizer anew, which is where memory ends now."""
    kind: Any = weakref.finalize
    kind._registry = dict(kind._registry)
    kind._index_iter = itertools.count(next(kind._index_iter))
