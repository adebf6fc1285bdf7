"""Changes modules of the standard library when they are first imported, and not before: most rollouts need none of
them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any


def change(changes: dict[str, Callable[[Any], None]]) -> None:
    """Calls each function with the module of its name, once that is imported."""
    sys.meta_path.insert(0, _After(changes))


class _After:
    """Changes modules after they were imported."""

    def __init__(self, changes: dict[str, Callable[[Any], None]]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        change = self._changes.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            load = loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                change(module)

            loader.exec_module = exec_module
        return spec
