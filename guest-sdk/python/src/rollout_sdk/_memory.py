"""The component's own memory while it is built, for what Python code cannot do to its interpreter.

What is where is that of CPython 3.14 at 32 bits, and of nothing else: it is compared with what
Python says of the same objects before anything is written, and where it differs nothing is built.
"""

from __future__ import annotations

import importlib
import opcode
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any

_MODULE = "_rollout_environment"
_BEGIN = 8

# Words of objects: of all, of those of several sizes, and of `PyFunctionObject` and `PyCodeObject`.
_COUNT, _SIZE = 0, 2
_FUNCTION_CODE, _FUNCTION_VERSION = 6, 18
_CODE_LINE, _CODE_VERSION, _CODE_NAME = 11, 17, 21

_UNCOUNTED = 5 << 28
"""A count that says that references are not counted, and the object is never freed."""

_FIRST_VERSION = 2
"""Lower ones say that a function has none, or none any more."""


class Memory:
    """All of it."""

    def __init__(self) -> None:
        module: Any = importlib.import_module(_MODULE)
        self._bytes: memoryview[int] = module.memory
        self._words: memoryview[int] = module.memory.cast("I")
        self._check()

    def _check(self) -> None:
        """That members are where they should be."""
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
            raise RuntimeError("the component's Python has its objects in another form than 3.14")

    def close(self) -> None:
        """Leaves nobody with access to it."""
        self._words.release()
        self._bytes.release()

    def _word(self, owner: object, member: int) -> int:
        return self._words[(id(owner) - _BEGIN >> 2) + member]

    def stop_counting(self, addresses: Iterable[int]) -> None:
        """Has nobody count the references to the objects at these addresses."""
        words = self._words
        for address in addresses:
            words[(address - _BEGIN >> 2) + _COUNT] = _UNCOUNTED

    def replace_code(self, function: FunctionType, code: CodeType) -> None:
        """Gives a function a copy of its code. The interpreter takes the version from a function whose
        code is replaced, and has no quick way to call one without. It would have the code's own, had
        it been made with it."""
        had_version = self._word(function, _FUNCTION_VERSION) >= _FIRST_VERSION
        function.__code__ = code
        if had_version:
            self._words[(id(function) - _BEGIN >> 2) + _FUNCTION_VERSION] = self._word(code, _CODE_VERSION)

    def forget_runs(self, codes: Iterable[CodeType]) -> list[tuple[CodeType, int]]:
        """Has the interpreter see code as if it had not run. It makes the instruction that a function
        begins with a quicker one when it meets it first. Gives back where these are."""
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
        """Whether the code has run whose first instruction is here."""
        return self._bytes[place] != opcode.opmap["RESUME"]
