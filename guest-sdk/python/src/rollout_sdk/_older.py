"""Backports for Python 3.10, for code that runs on an author's machine. A component's Python has all of them."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from asyncio import Runner
    from builtins import BaseExceptionGroup, ExceptionGroup
    from enum import StrEnum
    from typing import Never, NotRequired, Required, Self, TypedDict, dataclass_transform, is_typeddict
else:
    import asyncio
    from collections.abc import Callable, Coroutine
    from enum import Enum
    from typing import Any, TypeVar

    from exceptiongroup import BaseExceptionGroup, ExceptionGroup
    from typing_extensions import (
        Never,
        NotRequired,
        Required,
        Self,
        TypedDict,
        dataclass_transform,
        is_typeddict,
    )

    T = TypeVar("T")

    class StrEnum(str, Enum):
        """An enumeration of texts."""

        __str__ = str.__str__

    class Runner:
        """Runs coroutines in its own loop, and closes the loop."""

        def __init__(self, *, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
            self._loop = loop_factory()

        def __enter__(self) -> Runner:
            return self

        def __exit__(self, *_: object) -> None:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

        def run(self, work: Coroutine[Any, Any, T]) -> T:
            """Runs a coroutine to its end."""
            return self._loop.run_until_complete(work)


__all__ = [
    "BaseExceptionGroup",
    "ExceptionGroup",
    "Never",
    "NotRequired",
    "Required",
    "Runner",
    "Self",
    "StrEnum",
    "TypedDict",
    "dataclass_transform",
    "is_typeddict",
]
