"""Tests that the templates of `rollout-host new --lang python` are plugins."""

import tempfile
import types
import unittest
from pathlib import Path

from rollout_sdk import _discover

TEMPLATES = Path(__file__).parents[3] / "host/cli/src/new/templates"


class Templates(unittest.TestCase):
    def test_every_template_has_the_parts_in_its_name(self) -> None:
        for name, exports in {
            "one-turn": ["workflow", "grader", "settings"],
            "tools": ["workflow", "grader", "settings"],
            "agent-loop": ["agent-loop", "grader"],
            "grader": ["grader", "settings"],
            "environment": ["environment", "settings"],
        }.items():
            with self.subTest(name):
                code = (TEMPLATES / f"{name}.py.in").read_text().replace("@NAME@", "my-plugin")
                module = types.ModuleType("my_plugin")
                directory = self.enterContext(tempfile.TemporaryDirectory())
                Path(directory, "rows.jsonl").write_text('{"metadata": {"target": 3}}\n')
                vars(module)["__file__"] = str(Path(directory, "my_plugin.py"))
                exec(compile(code, name, "exec"), vars(module))
                found = _discover.discover(module, only_grader=name == "grader")
                self.assertEqual(found.exports, exports)


if __name__ == "__main__":
    unittest.main()
