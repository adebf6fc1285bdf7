"""A library that sets up the component's Python while the component is built. componentize-py has no option for this.

A WebAssembly library is linked into the component, and its start function runs before the interpreter starts:

- It sets environment variables, so that texts have the same hashes in every build (the order of sets and the addresses
  of objects depend on them) and no compiled modules are written.
- It wraps Python's allocators with one that clears memory. Otherwise, old contents (times, random numbers) would remain
  where an object does not use all of its memory, and differ in every build.
- It records the original allocators. `rollout-host build` (`host/fuse/src/python/repeat.rs`) restores them in the
  finished memory.

As a Python module it has one member, `memory`: the component's whole memory. `_memory.py` uses it for changes that Python
code cannot make to the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterable

VARIABLES = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}

FILE = "_rollout_environment.cpython-314-wasm32-wasi.so"
"""The library's file name, which componentize-py recognizes as a library."""

MARK = b"ROLLOUT-ALLOCATE"
"""The start of the record. The three original allocators and the one that replaces them follow it."""

DOMAINS = 3
"""The number of Python's memory domains: raw, mem, and object. Each has an allocator."""

ALLOCATOR_BYTES = 20
"""A context, and the functions malloc, calloc, realloc and free."""

MODULE = "_rollout_environment"
MEMBER = "memory"

MEMORY_BEGIN = 8
"""The address of the first byte of `memory`. A buffer at address zero would be a null pointer."""

_MEMORY_BYTES = 0x7FFF_FFF0
_WRITABLE = 0x200

# CPython's `struct PyModuleDef`, and the version of its module API.
_DEFINITION_BYTES, _DEFINITION_NAME, _INTERFACE = 52, 20, 1013

# The layout of the library's memory: the record, the module's definition, texts.
_DEFINITION_AT = len(MARK) + ALLOCATOR_BYTES * (DOMAINS + 1)
_TEXTS_AT = _DEFINITION_AT + _DEFINITION_BYTES
_TEXTS = [*(text for pair in VARIABLES.items() for text in pair), MODULE, MEMBER]

# Types and kinds, with the numbers of WebAssembly's binary format.
_I32, _FUNCTION_TYPE, _FUNCTIONS_TABLE = 0x7F, 0x60, 0x70
_FUNCTION, _TABLE, _MEMORY, _GLOBAL = 0, 1, 2, 3
_CUSTOM, _TYPES, _IMPORTS, _FUNCTIONS, _EXPORTS, _ELEMENTS, _CODE, _DATA = 0, 1, 2, 3, 7, 9, 10, 11
_END, _CALL, _DROP, _SELECT = b"\x0b", b"\x10", b"\x1a", b"\x1b"
_STORE, _EQUALS_ZERO, _BELOW, _ADD, _SUBTRACT, _MULTIPLY = b"\x36\x02\x00", b"\x45", b"\x49", b"\x6a", b"\x6b", b"\x6c"
_IF_TRUE, _FILL = b"\x04\x40", b"\xfc\x0b\x00"

# Imported globals, by index.
_MEMORY_BASE, _TABLE_BASE = range(2)

# Imported functions, with the number of their parameters and results; the library's own follow.
_IMPORTED = {
    "setenv": (3, 1),
    "malloc": (1, 1),
    "realloc": (2, 1),
    "free": (1, 0),
    "malloc_usable_size": (1, 1),
    "PyMem_GetAllocator": (2, 0),
    "PyMem_SetAllocator": (2, 0),
    "PyModule_Create2": (2, 1),
    "PyMemoryView_FromMemory": (3, 1),
    "PyModule_AddObject": (3, 1),
}
_OWN = {"malloc": (2, 1), "calloc": (3, 1), "realloc": (3, 1), "free": (2, 0), "module": (0, 1), "begin": (0, 0)}
_SIGNATURES = sorted({*_IMPORTED.values(), *_OWN.values()})


def library() -> bytes:
    """Returns the library, a module that can be linked dynamically."""
    data = MARK + bytes(_TEXTS_AT - len(MARK)) + b"".join(text.encode() + b"\0" for text in _TEXTS)
    dynamic = (
        _text("dylink.0")
        + _sized(1, _number(len(data)) + _number(2) + _number(4) + _number(0))
        + _sized(2, _vector([_text("libc.so"), _text("libpython3.14.so")]))
    )
    imports = [
        _text("env") + _text("memory") + bytes([_MEMORY, 0, 0]),
        _text("env") + _text("__indirect_function_table") + bytes([_TABLE, _FUNCTIONS_TABLE, 0, 0]),
        *(_text("env") + _text(name) + bytes([_GLOBAL, _I32, 0]) for name in ("__memory_base", "__table_base")),
        *(_text("env") + _text(name) + bytes([_FUNCTION, _kind(kind)]) for name, kind in _IMPORTED.items()),
    ]
    types = [
        bytes([_FUNCTION_TYPE]) + _vector([bytes([_I32])] * takes) + _vector([bytes([_I32])] * gives)
        for takes, gives in _SIGNATURES
    ]
    first = len(_IMPORTED)
    exported = {"__wasm_call_ctors": "begin", f"PyInit_{MODULE}": "module"}
    exports = [
        _text(name) + bytes([_FUNCTION]) + _number(first + list(_OWN).index(own)) for name, own in exported.items()
    ]
    element = bytes([0]) + _global(_TABLE_BASE) + _END + _vector(_number(first + number) for number in range(4))
    return b"\0asm\1\0\0\0" + b"".join(
        _sized(section, content)
        for section, content in (
            (_CUSTOM, dynamic),
            (_TYPES, _vector(types)),
            (_IMPORTS, _vector(imports)),
            (_FUNCTIONS, _vector(_number(_kind(kind)) for kind in _OWN.values())),
            (_EXPORTS, _vector(exports)),
            (_ELEMENTS, _vector([element])),
            (_CODE, _vector(_function(*code) for code in (*_allocator(), _module(), (0, _begin())))),
            (_DATA, _vector([bytes([0]) + _global(_MEMORY_BASE) + _END + _number(len(data)) + data])),
        )
    )


def _begin() -> bytes:
    """Returns the body of the library's start function."""
    body = b""
    for name, value in VARIABLES.items():
        body += _text_address(name) + _text_address(value) + _const(1) + _call("setenv") + _DROP
    at = len(MARK)
    for domain in range(DOMAINS):
        body += _const(domain) + _address(at) + _call("PyMem_GetAllocator")
        at += ALLOCATOR_BYTES
    for number in range(4):
        body += _address(at + 4 + 4 * number) + _global(_TABLE_BASE) + _const(number) + _ADD + _STORE
    for domain in range(DOMAINS):
        body += _const(domain) + _address(at) + _call("PyMem_SetAllocator")
    return body


def _module() -> tuple[int, bytes]:
    """Returns the module's init function: the number of its variables, and its code."""
    module = 0
    body = _address(_DEFINITION_AT + _DEFINITION_NAME) + _text_address(MODULE) + _STORE
    body += _address(_DEFINITION_AT) + _const(_INTERFACE) + _call("PyModule_Create2") + _set(module)
    body += _get(module) + _text_address(MEMBER)
    body += _const(MEMORY_BEGIN) + _const(_MEMORY_BYTES) + _const(_WRITABLE) + _call("PyMemoryView_FromMemory")
    return 1, body + _call("PyModule_AddObject") + _DROP + _get(module)


def _allocator() -> list[tuple[int, bytes]]:
    """Returns Python's malloc, calloc, realloc and free, whose first parameter is the allocator's context: the number
    of variables of each, and its code. Memory that they allocate is cleared, including the usable bytes beyond the requested size."""
    usable = _call("malloc_usable_size")
    size, place = 1, 2
    malloc = _at_least_one(size) + _call("malloc") + _set(place) + _get(place) + _IF_TRUE
    malloc += _get(place) + _const(0) + _get(place) + usable + _FILL + _END + _get(place)
    own = len(_IMPORTED)
    calloc = _get(0) + _get(1) + _get(2) + _MULTIPLY + _CALL + _number(own)
    old, size, kept, place = 1, 2, 3, 4
    realloc = _get(old) + _IF_TRUE + _get(old) + usable + _set(kept) + _END
    realloc += _get(old) + _at_least_one(size) + _call("realloc") + _set(place) + _get(place) + _IF_TRUE
    # The old content remains, up to the smaller of the two sizes.
    realloc += _get(kept) + _get(size) + _get(kept) + _get(size) + _BELOW + _SELECT + _set(kept)
    realloc += _get(place) + _get(kept) + _ADD + _const(0) + _get(place) + usable + _get(kept) + _SUBTRACT
    realloc += _FILL + _END + _get(place)
    return [(1, malloc), (0, calloc), (2, realloc), (0, _get(1) + _call("free"))]


def _at_least_one(size: int) -> bytes:
    """Returns the size, or one for zero, so that each allocation has its own address."""
    return _get(size) + _get(size) + _EQUALS_ZERO + _ADD


def _function(variables: int, body: bytes) -> bytes:
    declared = _vector([_number(variables) + bytes([_I32])] if variables else [])
    content = declared + body + _END
    return _number(len(content)) + content


def _kind(signature: tuple[int, int]) -> int:
    return _SIGNATURES.index(signature)


def _call(name: str) -> bytes:
    return _CALL + _number(list(_IMPORTED).index(name))


def _get(variable: int) -> bytes:
    return b"\x20" + _number(variable)


def _set(variable: int) -> bytes:
    return b"\x21" + _number(variable)


def _global(number: int) -> bytes:
    return b"\x23" + _number(number)


def _const(value: int) -> bytes:
    return b"\x41" + _signed(value)


def _address(offset: int) -> bytes:
    """Returns an address in the library's memory."""
    return _global(_MEMORY_BASE) + _const(offset) + _ADD


def _text_address(text: str) -> bytes:
    """Returns the address of a text in the library's memory."""
    before = _TEXTS[: _TEXTS.index(text)]
    return _address(_TEXTS_AT + sum(len(each) + 1 for each in before))


def _number(value: int) -> bytes:
    """Encodes an unsigned number as LEB128."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _signed(value: int) -> bytes:
    """Encodes a number that is not negative as signed LEB128."""
    parts = bytearray()
    while value > 0x3F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _text(text: str) -> bytes:
    return _number(len(text)) + text.encode()


def _vector(items: Iterable[bytes]) -> bytes:
    listed = list(items)
    return _number(len(listed)) + b"".join(listed)


def _sized(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + _number(len(content)) + content
