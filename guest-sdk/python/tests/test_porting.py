"""Tests that every example of `PORTING.md` runs, with a simulated host."""

import json
import re
import types
import unittest
from pathlib import Path

from played import played_host
from rollout_sdk import _discover, _export

PAGE = Path(__file__).parent.parent / "PORTING.md"


def examples() -> list[tuple[str, str, str]]:
    """Returns the headings with the code before and after."""
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        if blocks:
            before, after = blocks
            found.append((section.splitlines()[0], before, after))
    return found


def classes(code: str) -> str:
    """Returns the code without its imports."""
    return code[code.index("\nclass ") :]


class Porting(unittest.TestCase):
    def test_every_example_runs(self) -> None:
        self.assertEqual(len(examples()), 5)
        prompt = [json.dumps({"role": "user", "content": "What is 2 + 2?"})]
        for heading, _, after in examples():
            with self.subTest(heading), played_host():
                module = types.ModuleType("ported")
                exec(compile(after, heading, "exec"), vars(module))
                found = _discover.discover(module)
                if found.agent_loop:
                    request = types.SimpleNamespace(
                        messages=prompt, max_turns=3, max_tokens_total=100, completion_params="{}"
                    )
                    ctx, result = _export.rehearse(found, lambda: _export.run_loop(request))
                    self.assertEqual((result.status, ctx.metrics.num_tool_calls), ("COMPLETED", 1))
                    continue
                messages, _ = _export.rehearse(found, lambda: _export.run_workflow(prompt))
                if heading == "Configuration":
                    self.assertEqual([json.loads(each)["content"] for each in messages], ["4"])

    def test_the_code_before_and_after_is_the_same_except_for_model_calls(self) -> None:
        for heading, before, after in examples():
            if not heading.startswith("A workflow that calls"):
                self.assertEqual(classes(before), classes(after), heading)


if __name__ == "__main__":
    unittest.main()
