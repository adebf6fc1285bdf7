"""Fails rollouts with coroutines that were never awaited.

`agent.run()` without `await` does nothing, and a rollout that continues without it would be graded for work that never
happened. Python only warns about it in the log; here it fails the rollout, with the line that created the coroutine.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterable
from typing import Any

from . import _failure, log
from .errors import Failed

# Number of frames, from the creation of a coroutine upwards, in which the author's code is searched.
_DEPTH = 6

_found: list[str] = []


def install() -> None:
    """Makes Python record where coroutines are created, and report those that are never awaited."""
    sys.set_coroutine_origin_tracking_depth(_DEPTH)
    module: Any = warnings
    module._warn_unawaited_coroutine = _note


def _note(coroutine: Any) -> None:
    text = f"coroutine `{coroutine.__qualname__}` was never awaited"
    place = _created_at(coroutine)
    if place:
        _found.append(f"{text}: write `await` before it ({place})")
    else:
        # The coroutine is a dependency's.
        warnings.warn(text, category=RuntimeWarning, stacklevel=2, source=coroutine)


def _created_at(coroutine: Any) -> str:
    """Returns the location at which the author's code created the coroutine."""
    for path, line, function in coroutine.cr_origin or ():
        if _failure.is_authors(path):
            return f"{_failure.shown_path(path)}:{line}, in {function}"
    return ""


def check() -> None:
    """Raises an error about the first coroutine found so far."""
    if _found:
        found, count = _found[0], len(_found)
        _found.clear()
        raise Failed(found if count == 1 else f"{found}; and {count - 1} more")


def warn_of_tasks(tasks: Iterable[Any]) -> None:
    """Warns about tasks that never started before the end."""
    for task in tasks:
        coroutine = task.get_coro()
        if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            place = _created_at(coroutine)
            log.warn(f"a task was left behind that never began: `{coroutine.__qualname__}`{f' ({place})' if place else ''}")
