"""Arranges the memory of a finished component.

A component's memory is an image that all of its instances share. An instance that writes to a page gets its own copy of
that page, so the pages that every rollout writes to should be few. Four causes increase their number; the last step of
a build removes these causes:

- A rollout allocates in freed gaps. After all modules were imported, there are gaps in all parts of the memory. They
  are filled, so that allocations go to the end of the memory.
- The interpreter writes counters into the code that it runs. The code that a rollout runs is moved to one place.
- Each access to an object changes its reference count, except for immortal objects, which are never freed. All objects
  of the image become immortal. Counts are set here (`_memory.py`), so that code specializes to a form that does not
  count references. The final objects are listed at a marked address, and `rollout-host build` writes the counts of
  those that were created later into the component.
- The garbage collector visits every object. It is configured to ignore the objects of the image.
"""

from __future__ import annotations

import dis
import gc
import sys
import types
import warnings
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from ._json import class_of
from ._memory import Memory


# The start of the list of objects: four words of four bytes. `rollout-host build` searches for it.
_MARK = b"ROLLOUT-OBJECTS:"

_WORDS_BEFORE = len(_MARK) // 4 + 1
"""The words before the list: the mark and the number of objects. Their sum follows the list."""

_TIMES = 80
"""Number of runs, after which the interpreter has specialized its code."""

_SLACK = 1.5
"""Factor of the list's size, for objects that are created after they were counted."""

_END_BYTES = 4 << 20
"""More memory than code in C and Rust has freed at the end of a base's memory."""

_BETWEEN = 64
"""Bytes of an object and of the allocator between the contents of two objects that were allocated one after the other."""

_retained: list[Any] = []
"""Objects that are never freed: fillings of gaps, and originals of moved code."""

Codes: TypeAlias = dict[int, types.CodeType]
"""Code by its identity, because different functions may have equal code."""

_moved: Codes = {}
"""Moved code, by its identity before and after."""

_listed = array("I")


def settle(
    parts: Sequence[Callable[[], None]],
    is_authors: Callable[[str], bool],
    is_close: Callable[[str], bool],
    renew: Sequence[Callable[[], None]],
) -> None:
    """Arranges the memory for the parts of a rollout, which it runs several times.

    `is_authors` returns whether a source file is the author's, whose code does not run here, and `is_close` whether its
    code is likely to run in a rollout; `renew` recreates objects that every rollout writes to."""
    memory = Memory()
    functions = [each for each in gc.get_objects() if type(each) is types.FunctionType]
    _forget_directories()
    # When code first runs, it specializes to a form that counts references if its objects are counted then. The
    # collector ignores immortal objects.
    memory.stop_counting(_reachable())
    _arrange_code(memory, functions, parts, is_authors, is_close, renew)
    memory.close()
    # The interpreter caches facts about the moved code again; the gaps that this leaves are filled, too.
    _run(parts)
    _free_caches()
    _fill()
    _run(parts)
    _list_objects()
    gc.collect()
    _fill()
    gc.freeze()


def clear_gaps() -> None:
    """Clears and occupies the freed memory of a base that objects can have, until `free_gaps`.

    Code in C and Rust allocates memory that it does not clear, and componentize-py does so when it asks for the exports. Such
    memory must not have traces of the build's clock."""
    _forget_directories()
    gc.collect()
    _fill()
    # What was freed at the end of the memory is there, too.
    bytes(_END_BYTES)


def free_gaps() -> None:
    """Frees the memory that `clear_gaps` occupied."""
    _retained.clear()


def _forget_directories() -> None:
    """Makes importers forget the modification times of directories. The importers are dropped once the component is
    done, but immortal objects stay."""
    for importer in sys.path_importer_cache.values():
        forget: Any = getattr(importer, "invalidate_caches", None)
        if forget is not None:
            forget()


def _run(parts: Sequence[Callable[[], None]]) -> None:
    for _ in range(_TIMES):
        for part in parts:
            part()


def _free_caches() -> None:
    """Frees cached objects during the build, so that no rollout has to do it. Compiling all modules leaves names in the
    cache of attributes."""
    # The replacement is not a Python function; and the author may have turned warnings into errors.
    system: Any = sys
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        system._clear_type_cache()
    gc.collect()


def _fill() -> None:
    """Allocates all freed memory, from large gaps to small ones, until only the end of the memory is free, and gaps of more than
    1.5 MiB."""
    filled = -1
    # The list of fillings leaves gaps when it grows.
    while filled != (filled := len(_retained)):
        larger, size = 1 << 20, 1 << 19
        # The last size fits the smallest gap that an object may have.
        while size > 0:
            filling, after = bytes(size), bytes(larger)
            if 0 < id(after) - id(filling) - size < _BETWEEN:
                # There are no gaps of this size: a larger object, which does not fit one, has its place there, too.
                larger, size = size, size * 7 // 8 if size > 512 else size - 8
            else:
                _retained.append(filling)
            del filling, after


# Code.


def _arrange_code(
    memory: Memory,
    functions: Sequence[types.FunctionType],
    parts: Sequence[Callable[[], None]],
    is_authors: Callable[[str], bool],
    is_close: Callable[[str], bool],
    renew: Sequence[Callable[[], None]],
) -> None:
    """Moves the code that runs to one place, beginning with the code that the interpreter writes to on every run."""
    ran = [_code_run_by(memory, functions, part) for part in parts]
    _run(parts)
    rewritten = [_rewritten_by(part, codes) for part, codes in zip(parts, ran, strict=True)]
    _free_caches()
    _reserve_list()
    _fill()
    for each in renew:
        each()
    _move_code(memory, functions, lambda code: is_authors(code.co_filename))
    for codes, of_part in zip(rewritten, ran, strict=True):
        _move_code(memory, functions, lambda code: id(code) in codes or (id(code) in of_part and _branches(code)))
    for codes in ran:
        _move_code(memory, functions, lambda code: id(code) in codes)
    _move_code(memory, functions, lambda code: is_close(code.co_filename))


def _code_run_by(memory: Memory, functions: Sequence[types.FunctionType], work: Callable[[], None]) -> Codes:
    """Returns the code of all Python functions that run during `work`. It uses no profiler: the interpreter would
    prepare each function for one on its first run."""
    begins = memory.forget_runs({id(each.__code__): each.__code__ for each in functions}.values())
    work()
    return {id(code): code for code, begin in begins if memory.has_run(begin)}


def _rewritten_by(work: Callable[[], None], codes: Codes) -> Codes:
    """Returns the code that the interpreter writes to on every run, because it counts executions of instructions that
    it cannot specialize."""
    before = {key: _as_rewritten(code) for key, code in codes.items()}
    work()
    return {key: code for key, code in codes.items() if _as_rewritten(code) != before[key]}


def _as_rewritten(code: types.CodeType) -> bytes:
    instructions: bytes = vars(types.CodeType)["_co_code_adaptive"].__get__(code)
    return instructions


def _branches(code: types.CodeType) -> bool:
    """Returns whether the code has branches, whose directions the interpreter records in it."""
    return any(each.opname.startswith("POP_JUMP_IF") for each in dis.get_instructions(code))


def _move_code(
    memory: Memory, functions: Sequence[types.FunctionType], is_wanted: Callable[[types.CodeType], bool]
) -> None:
    """Gives functions copies of their code that are adjacent in memory."""

    def copy(code: types.CodeType) -> types.CodeType:
        if id(code) in _moved:
            return _moved[id(code)]
        # The original stays, so that its memory is not reused.
        _retained.append(code)
        inner = tuple(copy(each) if isinstance(each, types.CodeType) else each for each in code.co_consts)
        copied = code.replace(co_consts=inner)
        _moved[id(code)] = _moved[id(copied)] = copied
        memory.stop_counting([id(copied)])
        return copied

    for function in functions:
        code = function.__code__
        if id(code) in _moved or is_wanted(code):
            memory.replace_code(function, copy(code))


# The list of objects.


def _reserve_list() -> None:
    """Reserves memory for the list early, so that the list is not where a rollout allocates."""
    objects = sum(1 for _ in _reachable())
    _listed.frombytes(bytes(4 * (int(objects * _SLACK) + _WORDS_BEFORE + 1)))


def _list_objects() -> None:
    at = _WORDS_BEFORE
    total = 0
    for address in _reachable():
        _listed[at] = address
        total += address
        at += 1
    _listed[at] = total & 0xFFFF_FFFF
    _listed[_WORDS_BEFORE - 1] = at - _WORDS_BEFORE
    _listed[: _WORDS_BEFORE - 1] = array("I", _MARK)


def _reachable() -> Iterator[int]:
    """Yields the addresses of all objects that the collector knows or that are reachable from them, except temporary
    ones of this function."""
    # One bit for each possible address: a set would leave integer objects in all parts of the memory.
    seen = bytearray((id(bytes(1 << 20)) >> 6) + (1 << 16))
    todo: list[Any] = [*gc.get_objects(), sys.modules]
    passing = (id(seen), id(todo))
    while todo:
        found = todo.pop()
        address = id(found)
        kind = class_of(found)
        at, bit = address >> 6, 1 << (address >> 3 & 7)
        if at >= len(seen):
            # Large objects are at the end of the memory, unless there was a gap for them.
            seen.extend(bytes(at - len(seen) + (1 << 16)))
        if seen[at] & bit or address in passing or kind in (types.FrameType, types.GeneratorType):
            continue
        seen[at] |= bit
        yield address
        todo.append(kind)
        todo.extend(gc.get_referents(found))
        # Objects that are not reported to the collector: keys that are texts, and parts of code.
        if kind is dict:
            todo.extend(found)
        elif issubclass(kind, type):
            todo.extend(vars(found))  # pyright: ignore[reportUnknownArgumentType]
        elif kind is types.CodeType:
            todo += (found.co_consts, found.co_names, found.co_filename, found.co_name, found.co_qualname)
            todo += (found.co_linetable, found.co_exceptiontable)
