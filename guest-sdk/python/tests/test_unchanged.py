"""Tests that unchanged programs for the published packages are discovered, run with a simulated host, and behave as
they do there."""

import importlib
import json
import sys
import types
import unittest
from pathlib import Path
from typing import Any

from played import played_host
from rollout_sdk import _build, _discover, _export, _names, testing
from rollout_sdk.testing import calls

PROGRAMS = Path(__file__).parent / "unchanged"
PROMPT = [json.dumps({"role": "user", "content": "What is 2 + 2?"})]


class Unchanged(unittest.TestCase):
    def setUp(self) -> None:
        self.finders, self.modules, self.path = list(sys.meta_path), set(sys.modules), list(sys.path)
        _names.install()

    def tearDown(self) -> None:
        sys.path[:] = self.path
        sys.meta_path[:] = self.finders
        for name in set(sys.modules) - self.modules:
            del sys.modules[name]

    def found(self, program: str, **options: Any) -> tuple[Any, _discover.Found]:
        sys.path.insert(0, str(PROGRAMS / program))
        module = importlib.import_module(program)
        return module, _discover.discover(module, **options)

    def run_workflow(self, found: _discover.Found) -> None:
        with played_host():
            _export.rehearse(found, lambda: _export.run_workflow(PROMPT))

    def grade(self, found: _discover.Found, content: Any, label: str) -> Any:
        message = json.dumps({"role": "assistant", "content": content})
        sample = types.SimpleNamespace(id="main", messages=[message], metrics=[])
        with played_host():
            _export.types, kept = types.SimpleNamespace(Metric=lambda *each: each), _export.types
            _export.grader_types, other = types.SimpleNamespace(Verdict=types.SimpleNamespace), _export.grader_types
            try:
                return _export.rehearse(found, lambda: _export.run_grader(label, [sample]))
            finally:
                _export.types, _export.grader_types = kept, other

    def test_a_workflow_with_strands_and_a_grader_in_another_file(self) -> None:
        _, found = self.found("strands_tool")
        self.assertEqual(found.exports, ["workflow", "grader"])
        self.run_workflow(found)
        [verdict] = self.grade(found, [{"text": "It is #### 4"}], "4")
        self.assertEqual((verdict.reward, verdict.metrics), (1.0, [("length", 12.0)]))

    def test_a_strands_agent_that_is_called_without_await(self) -> None:
        module, found = self.found("strands_sync")
        self.run_workflow(found)
        self.assertEqual(module.seen, ["invoked", "4", "#### 4"])

    def test_openai_agents_with_a_session(self) -> None:
        module, found = self.found("openai_session")
        self.run_workflow(found)
        self.assertEqual(module.seen, [("solver", "double", 4), "#### 4"])

    def test_a_configuration_with_tools_in_it(self) -> None:
        _, found = self.found("config_tools")
        schema, defaults = _export.declaration(found)
        self.assertNotIn("required", schema)
        self.assertEqual((defaults["stops"], defaults["concurrency"]), (["####"], {"max_concurrent": 8}))
        self.run_workflow(found)

    def test_an_agent_loop_with_schema_classes_and_its_app(self) -> None:
        _, found = self.found("loop_schemas")
        self.assertEqual(found.exports, ["agent-loop", "settings"])
        self.assertEqual(_export.declaration(found)[1]["concurrency"], {"max_concurrent": 6})
        request = types.SimpleNamespace(messages=PROMPT, max_turns=3, max_tokens_total=9, completion_params="{}")
        with played_host():
            ctx, result = _export.rehearse(found, lambda: _export.run_loop(request))
        function = ctx.tools[0]["function"]
        self.assertEqual(function["parameters"]["properties"]["number"], {"type": "integer", "description": "The number."})
        self.assertEqual([message["role"] for message in result.final_messages], ["user", "assistant", "tool", "assistant"])

    def test_a_reward_function(self) -> None:
        _, found = self.found("reward_function", only_grader=True)
        self.assertEqual(found.exports, ["grader"])
        for label, reward in [("4", 1.0), ("5", 0.0)]:
            self.assertEqual(self.grade(found, "so #### 4", label)[0].reward, reward)

    def test_a_strands_agent_with_structured_output_and_hooks(self) -> None:
        module, found = self.found("strands_structured")
        replies = [calls("double", number=200), calls("double", number=2), "It is 4.", calls("Answer", value=4)]
        assert found.workflow is not None and found.grader is not None
        run = testing.run_workflow(found.workflow, "Twice 2?", replies)
        self.assertEqual(module.seen, ["error", "caller", "success", (module.Answer(4), 1, 9), True])
        self.assertEqual([each["function"]["name"] for each in run.requests[-1]["tools"]], ["Answer"])
        self.assertEqual(run.requests[-1]["tool_choice"]["function"]["name"], "Answer")
        self.assertEqual(testing.grade(found.grader, run, "4").reward, 1.0)

    def test_openai_agents_that_hand_over(self) -> None:
        module, found = self.found("openai_handoff")
        replies = [calls("transfer_to_sums", reason="a sum"), calls("double", number=2), '{"value": 4}']
        assert found.workflow is not None and found.grader is not None
        run = testing.run_workflow(found.workflow, "Twice 2?", replies)
        self.assertEqual(module.seen, ["no_politics", "a sum", ("Front", "Sums"), "Ada", 4, 1, "Sums"])
        self.assertEqual([each.get("tool_choice") for each in run.requests], [None, "required", None])
        self.assertEqual(run.requests[-1]["response_format"]["json_schema"]["schema"]["required"], ["value"])
        self.assertEqual(len(run.samples), 1)
        self.assertEqual(testing.grade(found.grader, run, "4").reward, 1.0)

    def test_the_exports_of_a_program_are_read_from_its_source(self) -> None:
        programs = sorted(each.name for each in PROGRAMS.iterdir() if (each / "pyproject.toml").is_file())
        self.assertEqual(len(programs), 9)
        for program in programs:
            project = _build.read_project(PROGRAMS / program)
            _, found = self.found(program, only_grader=project.only_grader)
            self.assertEqual(_build.read_modules(project).exports, found.exports, program)

    def test_every_name_can_be_imported(self) -> None:
        for module, names in _names.NAMES.items():
            for name in names:
                getattr(importlib.import_module(module), name)

    def test_an_import_that_a_name_does_not_cover_lists_what_exists(self) -> None:
        for code, expected in [
            ("from strands import AgentSkills", "no `AgentSkills`.*there are Agent, .*tool"),
            ("from strands.models import BedrockModel", "no module `strands.models`.*OsmosisRolloutModel"),
            ("from agents import OpenAIChatCompletionsModel", "no `OpenAIChatCompletionsModel`.*Runner"),
            ("import osmosis_ai.cli", "no module `osmosis_ai.cli`.*osmosis_ai.rollout"),
        ]:
            with self.assertRaisesRegex(ImportError, expected):
                exec(code, {})


if __name__ == "__main__":
    unittest.main()
