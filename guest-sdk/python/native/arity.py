"""Finds functions that CPython would call with others than their parameters, which ends a component's instance: getters
without a closure, methods without arguments that do not take the nothing, methods whose flags say other than they take.

The compiler says which casts of functions are of this kind, and the tables of methods say how each is called.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_CAST = re.compile(r"^(\S+?):(\d+):\d+: warning: cast from '(?:[^']*)\(\*\)\(([^']*)\)' .* to '(PyCFunction|getter|setter)'", re.M)
_METHOD = re.compile(r'\{\s*"[^"]*",\s*(?:\([^)]*\)\s*)*\(?\s*(\w+)\s*\)?,\s*(METH_[A-Z_|\s]*)')

# Of a getter and a setter. A method has as many as its flags say.
_PARAMETERS = {"getter": 2, "setter": 3}


def wrong(made: Path, environment: dict[str, str]) -> list[str]:
    """Where such functions are, in the sources of what was made here."""
    commands = [each for each in json.loads((made / "compile_commands.json").read_text()) if ".pyx" not in each["file"]]
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        said = list(workers.map(lambda each: _said_of(each, environment), commands))
    found: set[str] = set()
    methods: dict[tuple[Path, int], int] = {}
    for command, text in zip(commands, said, strict=True):
        for file, line, parameters, kind in _CAST.findall(text):
            place, count = (Path(command["directory"]) / file).resolve(), parameters.count(",") + 1
            if kind == "PyCFunction":
                methods[place, int(line)] = count
            elif count != _PARAMETERS[kind]:
                found.add(f"{place.name}:{line}: a {kind} with {count} parameters in place of {_PARAMETERS[kind]}")
    for place in {_written(each) for each in commands} | {file for file, _ in methods}:
        for name, flags, lines in _methods_in(place):
            wanted = 2 + ("FASTCALL" in flags) + ("KEYWORDS" in flags)
            # Of a function with two parameters there is nothing to say.
            count = next((methods[place, line] for line in lines if (place, line) in methods), 2)
            if count != wanted:
                found.add(f"{place.name}:{lines[0]}: {name} has {count} parameters, and is called with {wanted}: {flags}")
    return sorted(found)


def _written(command: dict[str, Any]) -> Path:
    """The source that a command compiles, or what it was made of, which is what the compiler names."""
    directory = Path(command["directory"])
    source = directory / command["file"]
    made_of = re.search(r'^#line \d+ "([^"]+)"', source.read_text(errors="replace"), re.MULTILINE)
    return (directory / made_of[1] if made_of else source).resolve()


def _said_of(command: dict[str, Any], environment: dict[str, str]) -> str:
    arguments = shlex.split(command["command"])
    for option in ("-o", "-MQ", "-MF"):
        if option in arguments:
            at = arguments.index(option)
            del arguments[at : at + 2]
    arguments = [each for each in arguments if each not in ("-c", "-MD", "-fdiagnostics-color=always")]
    arguments += ["-fsyntax-only", "-Wno-everything", "-Wcast-function-type-mismatch"]
    done = subprocess.run(
        arguments, cwd=command["directory"], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.stdout


def _methods_in(source: Path) -> Iterator[tuple[str, str, range]]:
    """Name, flags and lines of each method in a file's tables."""
    text = source.read_text(errors="replace")
    for entry in _METHOD.finditer(text):
        first, last = (text.count("\n", 0, at) + 1 for at in entry.span())
        yield entry[1], " ".join(entry[2].split()), range(first, last + 1)
