"""The component's own memory while it is built, for changes that Python code cannot make to its interpreter.

The layout is that of CPython 3.14 for a 32-bit target. Before a write, the memory is compared with what Python reports
about the same objects; the build fails if they differ.
"""

from __future__ import annotations

import importlib
import opcode
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any

_MODULE = "_rollout_environment"
_BEGIN = 8

# Indices of words in all objects, in variable-sized objects, in `PyFunctionObject` and in `PyCodeObject`.
_COUNT, _SIZE = 0, 2
_FUNCTION_CODE, _FUNCTION_VERSION = 6, 18
_CODE_LINE, _CODE_VERSION, _CODE_NAME = 11, 17, 21

_UNCOUNTED = 5 << 28
"""The reference count of an immortal object, which is not counted and never freed."""

_FIRST_VERSION = 2
"""The first valid version of a function. A lower number means that the function has no version or lost it."""


class Memory:
    """The whole memory."""

    def __init__(self) -> None:
        module: Any = importlib.import_module(_MODULE)
        self._bytes: memoryview[int] = module.memory
        self._words: memoryview[int] = module.memory.cast("I")
        self._check()

    def _check(self) -> None:
        """Checks the layout."""
        function = Memory.stop_counting
        code = function.__code__
        known = (
            (self._word(function, _FUNCTION_CODE), id(code)),
            (self._word(code, _SIZE), len(code.co_code) // 2),
            (self._word(code, _CODE_LINE), code.co_firstlineno),
            (self._word(code, _CODE_NAME), id(code.co_name)),
            (self._word(function, _FUNCTION_VERSION), self._word(code, _CODE_VERSION)),
        )
        if any(found != right for found, right in known):
            raise RuntimeError("the component's Python stores objects in another form than Python 3.14")

    def close(self) -> None:
        """Releases the access to the memory."""
        self._words.release()
        self._bytes.release()

    def _word(self, owner: object, member: int) -> int:
        return self._words[(id(owner) - _BEGIN >> 2) + member]

    def stop_counting(self, addresses: Iterable[int]) -> None:
        """Makes the objects at these addresses immortal."""
        words = self._words
        for address in addresses:
            words[(address - _BEGIN >> 2) + _COUNT] = _UNCOUNTED

    def replace_code(self, function: FunctionType, code: CodeType) -> None:
        """Gives a function a copy of its code. The interpreter removes the version of a function whose code is
        replaced, and calls functions without a version slowly. This sets the version of the code, as if the function
        had been created with it."""
        had_version = self._word(function, _FUNCTION_VERSION) >= _FIRST_VERSION
        function.__code__ = code
        if had_version:
            self._words[(id(function) - _BEGIN >> 2) + _FUNCTION_VERSION] = self._word(code, _CODE_VERSION)

    def forget_runs(self, codes: Iterable[CodeType]) -> list[tuple[CodeType, int]]:
        """Makes the interpreter treat code as if it had not run. On the first run of a function, the interpreter
        replaces its first instruction by a quicker one. Returns the addresses of these instructions."""
        special: Any = opcode
        quick = special._specialized_opmap["RESUME_CHECK"]
        begins = (opcode.opmap["RESUME"], quick)
        found: list[tuple[CodeType, int]] = []
        for code in codes:
            first = id(code) - _BEGIN + CodeType.__basicsize__
            instructions = bytes(self._bytes[first : first + 2 * self._word(code, _SIZE) : 2])
            place = next((first + 2 * at for at, each in enumerate(instructions) if each in begins), None)
            if place is not None:
                self._bytes[place] = opcode.opmap["RESUME"]
                found.append((code, place))
        return found

    def has_run(self, place: int) -> bool:
        """Returns whether the code with its first instruction at this address has run."""
        return self._bytes[place] != opcode.opmap["RESUME"]
