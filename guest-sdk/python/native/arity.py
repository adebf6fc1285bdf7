"""Finds functions that CPython would call with another number of arguments than they have parameters, which ends a
component's instance: getters without a closure parameter, methods without arguments that lack the null parameter, methods
with the wrong flags. The compiler's warnings list such casts of functions, and the tables of methods show how each is called.
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

# Number of parameters of a getter and a setter. That of a method follows from its flags.
_PARAMETERS = {"getter": 2, "setter": 3}


def wrong(made: Path, environment: dict[str, str]) -> list[str]:
    """Returns the locations of such functions in the sources of a build."""
    commands = [each for each in json.loads((made / "compile_commands.json").read_text()) if ".pyx" not in each["file"]]
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        outputs = list(workers.map(lambda each: _output_of(each, environment), commands))
    found: set[str] = set()
    methods: dict[tuple[Path, int], int] = {}
    for command, text in zip(commands, outputs, strict=True):
        for file, line, parameters, kind in _CAST.findall(text):
            place, count = (Path(command["directory"]) / file).resolve(), parameters.count(",") + 1
            if kind == "PyCFunction":
                methods[place, int(line)] = count
            elif count != _PARAMETERS[kind]:
                found.add(f"{place.name}:{line}: a {kind} with {count} parameters in place of {_PARAMETERS[kind]}")
    for place in {_written(each) for each in commands} | {file for file, _ in methods}:
        for name, flags, lines in _methods_in(place):
            wanted = 2 + ("FASTCALL" in flags) + ("KEYWORDS" in flags)
            # The compiler does not warn about a function with two parameters.
            count = next((methods[place, line] for line in lines if (place, line) in methods), 2)
            if count != wanted:
                found.add(f"{place.name}:{lines[0]}: {name} has {count} parameters, and is called with {wanted}: {flags}")
    return sorted(found)


def _written(command: dict[str, Any]) -> Path:
    """Returns the source that a command compiles, or the one that it was generated from, which the compiler names."""
    directory = Path(command["directory"])
    source = directory / command["file"]
    made_of = re.search(r'^#line \d+ "([^"]+)"', source.read_text(errors="replace"), re.MULTILINE)
    return (directory / made_of[1] if made_of else source).resolve()


def _output_of(command: dict[str, Any], environment: dict[str, str]) -> str:
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
    """Yields name, flags and lines of each method in a file's tables."""
    text = source.read_text(errors="replace")
    for entry in _METHOD.finditer(text):
        first, last = (text.count("\n", 0, at) + 1 for at in entry.span())
        yield entry[1], " ".join(entry[2].split()), range(first, last + 1)
