"""What a component's memory looks like when it is done.

A component's memory is an image that all of its instances share, page by page, until one
writes to a page and gets a copy of its own. So the pages that every rollout writes to
should be few. Four things make them many, and are dealt with here, as the last step of
building:

- What a rollout allocates goes where something was freed, and after all modules were
  imported such places are everywhere. They are filled, so that it goes to the end, all in
  one place.
- The interpreter counts in the code that it runs. The code that a rollout runs is moved to
  one place.
- Whoever looks at an object counts its references up and down. An object whose count is
  high enough is not counted, because it is never freed; so is everything that is in the
  image. Counts are set here (`_memory.py`), so that code settles on a form that does not count;
  what there is in the end is listed in a place that is easy to find, and `rollout-host build`
  writes the counts of what came later into the component.
- The collector visits every object. It is told to leave those of the image alone.
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


# How the list of objects begins: four words of four bytes. `rollout-host build` looks for it.
_MARK = b"ROLLOUT-OBJECTS:"

_WORDS_BEFORE = len(_MARK) // 4 + 1
"""The mark, and how many objects there are. After them comes their sum."""

_TIMES = 80
"""The interpreter settles on a form of its code within some tens of calls."""

_SLACK = 1.5
"""Room for objects that come into being after they were counted."""

_kept: list[Any] = []
"""What is only there to take up room."""

Codes: TypeAlias = dict[int, types.CodeType]
"""Code by its identity: two functions of equal code are not the same function."""

_moved: Codes = {}
"""Where code is now, by its identity before and after."""

_listed = array("I")


def settle(
    parts: Sequence[Callable[[], None]],
    is_authors: Callable[[str], bool],
    is_close: Callable[[str], bool],
    renew: Sequence[Callable[[], None]],
) -> None:
    """Arranges the memory around what the parts of a rollout do, and ends with them.
    `is_authors` says of a source file whether it is the author's, whose code does not run here, and
    `is_close` whether its code is likely to run in a rollout; `renew` makes objects anew that every
    rollout writes to."""
    memory = Memory()
    functions = [each for each in gc.get_objects() if type(each) is types.FunctionType]
    _forget_directories()
    # Code that runs first settles on a form that counts what is counted by then. What is not counted, the
    # collector forgets.
    memory.stop_counting(_reachable())
    _arrange_code(memory, functions, parts, is_authors, is_close, renew)
    memory.close()
    # What the interpreter learns of code, it learns of the moved code anew; and what that
    # leaves behind is filled, too.
    _run(parts)
    _let_go()
    _fill()
    _run(parts)
    _list_objects()
    gc.collect()
    _fill()
    gc.freeze()


def _forget_directories() -> None:
    """Has importers forget when directories were changed. They are dropped once the component is done, but
    what is not counted stays."""
    for importer in sys.path_importer_cache.values():
        forget: Any = getattr(importer, "invalidate_caches", None)
        if forget is not None:
            forget()


def _run(parts: Sequence[Callable[[], None]]) -> None:
    for _ in range(_TIMES):
        for part in parts:
            part()


def _let_go() -> None:
    """Frees what would be freed sooner or later, while that costs no rollout anything.
    Compiling all modules leaves names in the cache of attributes."""
    # What takes its place is no function of Python's; and an author may have made errors of warnings.
    system: Any = sys
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        system._clear_type_cache()
    gc.collect()


def _fill() -> None:
    """Allocates whatever was freed, from large to small, until there is nothing left but
    the end of the memory."""
    top = id(bytes(1 << 20))
    size = 1 << 19
    while size >= 8:
        while (at := id(filling := bytes(size))) < top:
            _kept.append(filling)
        top = at
        _kept.append(filling)
        size = size * 7 // 8 if size > 512 else size - 8


# Code.


def _arrange_code(
    memory: Memory,
    functions: Sequence[types.FunctionType],
    parts: Sequence[Callable[[], None]],
    is_authors: Callable[[str], bool],
    is_close: Callable[[str], bool],
    renew: Sequence[Callable[[], None]],
) -> None:
    """Moves what runs to where it lies together, and first what is written to as it runs."""
    ran = [_code_run_by(memory, functions, part) for part in parts]
    _run(parts)
    rewritten = [_rewritten_by(part, codes) for part, codes in zip(parts, ran, strict=True)]
    _let_go()
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
    """The code of all Python functions that run meanwhile. Not by a profile: from then on the interpreter
    would prepare each function for one when it runs first."""
    begins = memory.forget_runs({id(each.__code__): each.__code__ for each in functions}.values())
    work()
    return {id(code): code for code, begin in begins if memory.has_run(begin)}


def _rewritten_by(work: Callable[[], None], codes: Codes) -> Codes:
    """Those that the interpreter writes to whenever they run: it counts how often it met
    what it has no quicker way for."""
    before = {key: _as_rewritten(code) for key, code in codes.items()}
    work()
    return {key: code for key, code in codes.items() if _as_rewritten(code) != before[key]}


def _as_rewritten(code: types.CodeType) -> bytes:
    instructions: bytes = vars(types.CodeType)["_co_code_adaptive"].__get__(code)
    return instructions


def _branches(code: types.CodeType) -> bool:
    """Whether the interpreter writes down which way it went in the code."""
    return any(each.opname.startswith("POP_JUMP_IF") for each in dis.get_instructions(code))


def _move_code(
    memory: Memory, functions: Sequence[types.FunctionType], is_wanted: Callable[[types.CodeType], bool]
) -> None:
    """Gives functions copies of their code, which come to lie beside one another."""

    def copy(code: types.CodeType) -> types.CodeType:
        if id(code) in _moved:
            return _moved[id(code)]
        # What was there before stays, so that nothing goes to its place.
        _kept.append(code)
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
    """Makes room for the list now, because what is allocated last must not be in the way
    of what a rollout allocates."""
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
    """The addresses of all objects that the collector knows or that can be reached from
    them, but for what lives only while this runs."""
    # A flag for each place where an object can be: a set would leave its numbers everywhere.
    seen = bytearray((id(bytes(1 << 20)) >> 3) + (2 << 20))
    todo: list[Any] = [*gc.get_objects(), sys.modules]
    passing = (id(seen), id(todo))
    while todo:
        found = todo.pop()
        address = id(found)
        kind = class_of(found)
        if address >> 3 >= len(seen):
            # What is large is where the memory ends, unless there was a gap for it before.
            seen.extend(bytes((address >> 3) - len(seen) + (2 << 20)))
        if seen[address >> 3] or address in passing or kind in (types.FrameType, types.GeneratorType):
            continue
        seen[address >> 3] = 1
        yield address
        todo.append(kind)
        todo.extend(gc.get_referents(found))
        # What is not said to the collector: keys that are texts, and parts of code.
        if kind is dict:
            todo.extend(found)
        elif issubclass(kind, type):
            todo.extend(vars(found))  # pyright: ignore[reportUnknownArgumentType]
        elif kind is types.CodeType:
            todo += (found.co_consts, found.co_names, found.co_filename, found.co_name, found.co_qualname)
            todo += (found.co_linetable, found.co_exceptiontable)
