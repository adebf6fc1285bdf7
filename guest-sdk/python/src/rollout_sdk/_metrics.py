"""Metrics of a sample, which are recorded by writing them to a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsIndex

from ._older import Never


class Metrics(dict[str, float]):
    """Metrics by name. Each write is recorded, and a recorded metric cannot be removed."""

    def __init__(self, known: Mapping[str, float], record: Callable[[str, float], None]) -> None:
        super().__init__(known)
        self._record = record

    def __setitem__(self, name: str, value: float) -> None:
        self._record(name, value)
        super().__setitem__(name, float(value))

    def update(self, *given: Any, **named: float) -> None:
        for name, value in dict(*given, **named).items():
            self[name] = value

    def setdefault(self, name: str, value: float = 0.0) -> float:
        if name not in self:
            self[name] = value
        return self[name]

    def __ior__(self, given: Mapping[str, float] | Iterable[tuple[str, float]]) -> Metrics:  # type: ignore[override,misc]
        self.update(given)
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[dict[str, float]], tuple[dict[str, float]]]:
        # A copy is a plain dictionary and records nothing.
        return dict, (dict(self),)

    def copy(self) -> dict[str, float]:
        return dict(self)

    def _refuse_removal(self, *_: Any, **__: Any) -> Never:
        raise TypeError("a measurement that was recorded stays; write another value over it")

    __delitem__ = pop = popitem = clear = _refuse_removal
