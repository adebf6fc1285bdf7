"""The environment of the component's Python while it is built, which componentize-py has
no option for.

A library in WebAssembly is linked into the component, and the function that a library
begins with sets the variables, before the interpreter is there to read them. What is set:
that texts hash alike in every build, because the order of sets and the places of objects
follow from it, and that no compiled modules are written.
"""

from __future__ import annotations

from collections.abc import Iterable

VARIABLES = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}

FILE = "_rollout_environment.cpython-314-wasm32-wasi.so"
"""What the library is called: a name by which componentize-py knows libraries."""

# Types and kinds, as WebAssembly's binary format numbers them.
_I32, _FUNCTION_TYPE = 0x7F, 0x60
_FUNCTION, _MEMORY, _GLOBAL = 0, 2, 3
_CUSTOM, _TYPES, _IMPORTS, _FUNCTIONS, _EXPORTS, _CODE, _DATA = 0, 1, 2, 3, 7, 10, 11
_CALL, _CONST, _GET_GLOBAL, _ADD, _DROP, _END = 0x10, 0x41, 0x23, 0x6A, 0x1A, 0x0B


def library() -> bytes:
    """The library, a module that can be linked dynamically."""
    data = bytearray()
    body = bytearray()
    for name, value in VARIABLES.items():
        for text in (name, value):
            body += bytes([_GET_GLOBAL, 0, _CONST]) + _signed(len(data)) + bytes([_ADD])
            data += text.encode() + b"\0"
        # setenv(name, value, 1)
        body += bytes([_CONST, 1, _CALL, 0, _DROP])
    memory = _number(len(data)) + _number(0) * 3
    needed = _vector([_text("libc.so")])
    dynamic = _text("dylink.0") + _sized(1, memory) + _sized(2, needed)
    types = [bytes([_FUNCTION_TYPE, 3, _I32, _I32, _I32, 1, _I32]), bytes([_FUNCTION_TYPE, 0, 0])]
    imports = [
        _text("env") + _text("memory") + bytes([_MEMORY, 0, 0]),
        _text("env") + _text("__memory_base") + bytes([_GLOBAL, _I32, 0]),
        _text("env") + _text("setenv") + bytes([_FUNCTION, 0]),
    ]
    function = bytes([0]) + body + bytes([_END])
    return b"\0asm\1\0\0\0" + b"".join(
        _sized(section, content)
        for section, content in (
            (_CUSTOM, dynamic),
            (_TYPES, _vector(types)),
            (_IMPORTS, _vector(imports)),
            (_FUNCTIONS, _vector([_number(1)])),
            (_EXPORTS, _vector([_text("__wasm_call_ctors") + bytes([_FUNCTION, 1])])),
            (_CODE, _vector([_number(len(function)) + function])),
            (_DATA, _vector([bytes([0, _GET_GLOBAL, 0, _END]) + _number(len(data)) + data])),
        )
    )


def _number(value: int) -> bytes:
    """An unsigned number of few bits, seven of them a byte."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _signed(value: int) -> bytes:
    """A number that is not negative, in the form of those that may be."""
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
