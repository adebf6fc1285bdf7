"""Tests that the cache key of a component depends on its inputs, and on nothing else."""

import argparse
import os
import shutil
import tempfile
import unittest
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

from rollout_sdk import _build, _build_key

TOOL = [("version", "0.25.1"), ("componentize_py/__init__.py", "digest")]


class Inputs:
    """A project with a dependency and a program, in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source, self.bundled, self.wit = root / "source", root / "bundled", root / "wit"
        for file, text in {
            "source/agent.py": "import data",
            "source/data/rows.txt": "1",
            "bundled/thing/__init__.py": "X = 1",
            "wit/plugin.wit": "package rollout:plugin@0.1.0;",
            "program": "binary",
        }.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text)
        self.project = _build.Project(root, "agent", "agent", root, ["thing"])
        self.options = ""
        self.tool = TOOL

    def key(self) -> str:
        arguments = argparse.Namespace(
            cache=self.root / "cache", program=self.root / "program", program_options=self.options, wheels=None
        )
        tools = _build.Tools("componentize-py", self.wit, self.root / "work", self.root / "out.wasm", self.bundled)
        with mock.patch.object(_build_key, "_tool", lambda: self.tool):
            return _build_key.kept_at(_build, self.project, arguments, tools, self.source).name


def _write(file: str, text: str) -> Callable[[Inputs], object]:
    return lambda inputs: (inputs.root / file).write_text(text)


def _set(**changes: object) -> Callable[[Inputs], None]:
    def change(inputs: Inputs) -> None:
        inputs.project = replace(inputs.project, **changes)  # type: ignore[arg-type]

    return change


def _older(file: str) -> Callable[[Inputs], None]:
    return lambda inputs: os.utime(inputs.root / file, (1, 1))


class Keys(unittest.TestCase):
    def check(self, change: Callable[[Inputs], object], is_other: bool) -> None:
        with tempfile.TemporaryDirectory() as held:
            inputs = Inputs(Path(held))
            before = inputs.key()
            self.assertEqual(before, inputs.key())
            change(inputs)
            self.assertEqual(before != inputs.key(), is_other)

    def test_every_input_changes_the_name(self) -> None:
        changes: dict[str, Callable[[Inputs], object]] = {
            "an edit": _write("source/agent.py", "import data  # edited"),
            "a data file": _write("source/data/rows.txt", "2"),
            "a new file": _write("source/other.py", ""),
            "a new directory": lambda inputs: (inputs.source / "empty").mkdir(),
            "a renamed file": lambda inputs: (inputs.source / "agent.py").rename(inputs.source / "agen.py"),
            "a dependency's file": _write("bundled/thing/__init__.py", "X = 10"),
            "a dependency that was installed again": _older("bundled/thing/__init__.py"),
            "the contract": _write("wit/plugin.wit", "package rollout:plugin@0.1.1;"),
            "the program": _write("program", "BINARY"),
            "the lock file": _write("rollout-host.lock", "# for: [\"thing\"]\nthing==1.0\n"),
            "an option": lambda inputs: setattr(inputs, "options", "no-fuse"),
            "another componentize-py": lambda inputs: setattr(inputs, "tool", [("version", "0.25.2")]),
            "an import": _set(imports=["thing"]),
            "a requirement": _set(dependencies=["thing", "other"]),
            "only-grader": _set(only_grader=True),
            "the entry": _set(entry="data"),
        }
        for name, change in changes.items():
            with self.subTest(name):
                self.check(change, is_other=True)

    def test_a_file_of_the_sdk_changes_the_name(self) -> None:
        with tempfile.TemporaryDirectory() as held:
            sdk = Path(held, "sdk")
            shutil.copytree(Path(_build_key.__file__).parent, sdk)
            inputs = Inputs(Path(held, "project"))
            with mock.patch.object(_build_key, "__file__", str(sdk / "_build_key.py")):
                before = inputs.key()
                (sdk / "agent.py").write_text("")
                self.assertNotEqual(before, inputs.key())

    def test_places_times_and_variables_do_not(self) -> None:
        def moved(inputs: Inputs) -> None:
            place = inputs.root / "elsewhere"
            inputs.source = Path(shutil.move(inputs.source, place))
            inputs.project = replace(inputs.project, dir=inputs.root, source=inputs.root)

        self.check(moved, is_other=False)
        self.check(_older("source/agent.py"), is_other=False)
        with mock.patch.dict(os.environ, {"ROLLOUT_THING": "1"}):
            self.check(lambda _: os.environ.update(ROLLOUT_THING="2"), is_other=False)


if __name__ == "__main__":
    unittest.main()
