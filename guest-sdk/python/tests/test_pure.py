"""Tests of the parts that need no host: answers, schemas, tools, configuration, discovery."""

import asyncio
import copy
import dataclasses
import datetime
import enum
import json
import math
import os
import sys
import threading
import types
import unittest
from collections.abc import Callable
from typing import Annotated, Any, Literal

from rollout_sdk import (
    AgentWorkflow,
    AgentWorkflowConfig,
    ChatError,
    Failed,
    Grader,
    GraderConfig,
    GraderContext,
    Invalid,
    OutsideOfHost,
    RolloutSample,
    Sample,
    TimedOut,
    ToolCall,
    Toolbox,
    Usage,
    _absent,
    _discover,
    _export,
    answer_after,
    artifact,
    message,
    parse_number,
    same_number,
    tool,
)
from rollout_sdk._failure import Sort, describe, sort_of
from rollout_sdk._metrics import Metrics
from rollout_sdk._older import ExceptionGroup, NotRequired, TypedDict
from rollout_sdk._schema import Mismatch, read_value, schema_of
from rollout_sdk.agent_loop import (
    ToolArgumentError,
    create_tool_error_result,
    create_tool_result,
    get_tool_call_info,
    parse_tool_arguments,
    serialize_tool_result,
)
from rollout_sdk.openai_agents import RunContextWrapper, ToolContext, function_tool
from rollout_sdk.strands import as_chat, in_blocks


class Answers(unittest.TestCase):
    def test_the_answer_follows_the_last_marker_on_its_line(self) -> None:
        for text, expected in [
            ("#### 42", "42"),
            ("#### 1\nno, wait\n####2\nThat is it.", "2"),
            ("####\n 7 \n", "7"),
            ("nothing", None),
            ("####   ", None),
            ("", None),
        ]:
            self.assertEqual(answer_after(text, "####"), expected, text)

    def test_numbers_are_read_in_any_usual_format(self) -> None:
        for text, expected in {
            "42": 42.0,
            " -4,659 ": -4659.0,
            "\u22125": -5.0,
            "- 5": -5.0,
            "+5": 5.0,
            "$1,234.50": 1234.5,
            "-$3": -3.0,
            "$-3": -3.0,
            "1 000 000": 1_000_000.0,
            "**12**.": 12.0,
            "42.": 42.0,
            ".5": 0.5,
            "1e3": 1000.0,
            "1, 2": None,
            "1,5": None,
            "1234,567": None,
            "1 2": None,
            "1e999": None,
            "inf": None,
            "nan": None,
            "1_000": None,
            "\u0664\u0662": None,
            "42 apples": None,
            "--4": None,
            "": None,
            ".": None,
            "-": None,
        }.items():
            self.assertEqual(parse_number(text), expected, repr(text))

    def test_numbers_are_compared_by_value(self) -> None:
        self.assertTrue(same_number("1,000", "1000.0"))
        self.assertTrue(same_number("0", "-0"))
        self.assertFalse(same_number("1", "2"))
        self.assertFalse(same_number("x", "x"))


class Colour(enum.Enum):
    RED = "red"


class Place(TypedDict):
    x: int
    y: NotRequired[int]


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Schemas(unittest.TestCase):
    def test_each_type_hint_has_its_schema(self) -> None:
        for hint, expected in [
            (str, {"type": "string"}),
            (float, {"type": "number"}),
            (Any, {}),
            (list[int], {"type": "array", "items": {"type": "integer"}}),
            (str | None, {"type": ["string", "null"]}),
            (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
            (Colour, {"type": "string", "enum": ["red"]}),
            (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
            (Annotated[int, "How many."], {"type": "integer", "description": "How many."}),
            (
                Place,
                {
                    "type": "object",
                    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
                    "required": ["x"],
                },
            ),
            (
                Point,
                {
                    "type": "object",
                    "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
                    "required": ["x"],
                },
            ),
        ]:
            self.assertEqual(schema_of(hint), expected, hint)

    def test_a_value_is_read_by_its_type_hint(self) -> None:
        for hint, value, expected in [
            (int, 3, 3),
            (int, 3.0, 3),
            (float, 3, 3.0),
            (str | None, None, None),
            (list[Point], [{"x": 1}], [Point(1)]),
            (Place, {"x": 1}, {"x": 1}),
            (Colour, "red", Colour.RED),
            (tuple[int, str], [1, "a"], (1, "a")),
            (set[int], [1, 1], {1}),
        ]:
            self.assertEqual(read_value(hint, value), expected, hint)

    def test_a_mismatch_names_its_location(self) -> None:
        for hint, value, expected in [
            (int, "3", "'3' is not a whole number"),
            (int, True, "True is not a whole number"),
            (int, 3.5, "3.5 is not a whole number"),
            (bool, 1, "1 is not true or false"),
            (list[int], [1, "a"], "[1]: 'a' is not a whole number"),
            (Point, {}, "missing field `x`"),
            (Point, {"x": "a"}, "field `x`: 'a' is not a whole number"),
            (Literal["a"], "b", "'b' is none of 'a'"),
        ]:
            with self.assertRaises(Mismatch, msg=hint) as raised:
                read_value(hint, value)
            self.assertEqual(str(raised.exception), expected)


@tool
def add(a: int, b: int = 1) -> int:
    """Adds numbers.

    Both of them.

    Args:
        a: The first,
            in two lines.
        b (int): The second.

    Returns:
        The sum.
    """
    return a + b


def call(made: Any, arguments: str) -> tuple[str, bool]:
    result = asyncio.run(made.call(ToolCall("1", made.name, arguments)))
    return result.content, result.is_error


class Tools(unittest.TestCase):
    def test_the_schema_comes_from_signature_and_docstring(self) -> None:
        self.assertEqual(
            add.schema,
            {
                "type": "function",
                "function": {
                    "name": "add",
                    "description": "Adds numbers.\n\nBoth of them.",
                    "parameters": {
                        "type": "object",
                        "properties": {
                            "a": {"type": "integer", "description": "The first, in two lines."},
                            "b": {"type": "integer", "description": "The second.", "default": 1},
                        },
                        "required": ["a"],
                    },
                },
            },
        )

    def test_a_tool_is_still_the_function(self) -> None:
        self.assertEqual(add(1, b=2), 3)

    def test_errors_in_a_call_are_reported_to_the_model(self) -> None:
        for arguments, expected in [
            ("{", "error: the arguments: not valid JSON: "),
            ("", "error: the arguments: missing field `a`"),
            ("[1]", "error: the arguments: not a JSON object"),
            ('{"a": "x"}', "error: the arguments: field `a`: 'x' is not a whole number"),
        ]:
            content, is_error = call(add, arguments)
            self.assertTrue(is_error)
            self.assertTrue(content.startswith(expected), content)

    def test_strings_are_returned_unchanged_and_other_values_as_json(self) -> None:
        @tool(name="other")
        async def text() -> str:
            return 'a "b"'

        @tool
        def items() -> list[int]:
            return [1, 2]

        @tool
        def broken() -> None:
            raise KeyError("gone")

        self.assertEqual(text.name, "other")
        self.assertEqual(call(text, ""), ('a "b"', False))
        self.assertEqual(call(items, "{}"), ("[1,2]", False))
        self.assertEqual(call(broken, "{}"), ("error: KeyError: 'gone'", True))

    def test_results_come_in_the_order_of_the_calls(self) -> None:
        calls = [ToolCall("1", "none", "{}"), ToolCall("2", "add", '{"a": 1}')]
        results = asyncio.run(Toolbox([add]).execute(calls))
        read = [(result.call_id, result.content, result.is_error) for result in results]
        self.assertEqual(read, [("1", "error: there is no tool `none`; there are: add", True), ("2", "2", False)])

    def test_a_function_tool_is_strict_and_hides_its_context(self) -> None:
        @function_tool
        def lookup(wrapper: RunContextWrapper[int], key: str, least: int = 0) -> str:
            """Looks up."""
            return key * wrapper.context

        parameters = lookup.schema["function"]["parameters"]
        self.assertEqual(list(parameters["properties"]), ["key", "least"])
        self.assertEqual(parameters["required"], ["key", "least"])
        self.assertFalse(parameters["additionalProperties"])
        given = ToolContext(3, tool_name="lookup", tool_arguments='{"key": "a", "least": 1}')
        self.assertEqual(asyncio.run(lookup.on_invoke_tool(given, given.tool_arguments)), "aaa")


class Inner(AgentWorkflowConfig):
    limits: dict[str, int] = {"a": 1}  # noqa: RUF012
    turns: int = 8


class Strict(AgentWorkflowConfig, extra="forbid"):
    turns: int


class Loose(AgentWorkflowConfig):
    tool: Callable[..., Any]
    stops: tuple[str, ...] = ()
    seen: set[int] = set()  # noqa: RUF012
    turns: int = 8


class Configuration(unittest.TestCase):
    def test_an_operators_values_override_the_defaults(self) -> None:
        made = Inner.read({"turns": 3, "colour": "red"})
        self.assertEqual((made.turns, made.limits, vars(made)["colour"]), (3, {"a": 1}, "red"))
        made.limits["a"] = 2
        self.assertEqual(Inner.read({}).limits, {"a": 1})

    def test_an_instance_keeps_its_own_values_unless_the_operator_sets_them(self) -> None:
        instance = Inner(name="mine", turns=2, tools=[print])
        made = instance.updated({"turns": 5})
        self.assertEqual((made.name, made.turns, vars(made)["tools"]), ("mine", 5, [print]))
        self.assertEqual(instance.turns, 2)
        self.assertNotIn("tools", instance.plain_values())

    def test_the_host_refuses_undeclared_values_unless_the_class_allows_them(self) -> None:
        class Open(AgentWorkflowConfig, extra="allow"):
            depth: int = 1

        class OpenAsPydantic(AgentWorkflowConfig):
            model_config = {"extra": "allow"}  # noqa: RUF012

        class Marked(GraderConfig, extra="forbid"):
            marker: str = "####"

        class Rated(Grader):
            async def grade(self, ctx: Any) -> float:
                return 1.0

        def declared(config: Any, *more: Any) -> Any:
            class Work(AgentWorkflow[Any]):
                async def run(self, ctx: Any) -> None: ...

            module = types.ModuleType("made")
            vars(module).update({"Work": Work, "config": config, **dict(more)})
            return _export.declaration(_discover.discover(module))

        schema, _ = declared(Inner(tools=[1]))
        self.assertFalse(schema["additionalProperties"])
        # A value that the author gives is thereby declared.
        self.assertEqual(schema["properties"]["tools"], {})
        self.assertTrue(declared(Open())[0]["additionalProperties"])
        self.assertTrue(declared(OpenAsPydantic())[0]["additionalProperties"])
        both = declared(Inner(), ("Rated", Rated), ("of_grader", Marked()))[0]
        self.assertFalse(both["additionalProperties"])
        self.assertLessEqual({"turns", "marker"}, set(both["properties"]))
        # A class that forbids extra values receives its own, and not those that the other part declares.
        self.assertEqual(Marked.own_of({"marker": "=", "turns": 3}, Inner), {"marker": "="})
        self.assertEqual(Inner.own_of({"marker": "=", "turns": 3}, Marked), {"marker": "=", "turns": 3})

    def test_values_that_json_cannot_represent_stay_the_authors(self) -> None:
        lock = threading.Lock()
        instance = Loose(tool=print, stops=("a", "b"), seen={1}, lock=lock, day=datetime.date(2026, 1, 2), odd=math.nan)

        class Work(AgentWorkflow[Loose]):
            async def run(self, ctx: Any) -> None: ...

        module = types.ModuleType("made")
        vars(module).update(Work=Work, config=instance)
        schema, defaults = _export.declaration(_discover.discover(module))
        self.assertNotIn("required", schema)
        self.assertEqual(defaults["stops"], ["a", "b"])
        json.dumps(defaults, allow_nan=False)
        # The host returns the defaults, overridden by the operator's values.
        made = instance.updated({**json.loads(json.dumps(defaults)), "turns": 5})
        self.assertEqual((made.tool, made.stops, made.seen, made.turns), (print, ("a", "b"), {1}, 5))
        self.assertIs(vars(made)["lock"], lock)
        self.assertEqual(vars(made)["day"], datetime.date(2026, 1, 2))
        self.assertEqual(instance.updated({"stops": ["c"]}).stops, ("c",))

    def test_a_wrong_value_is_reported_with_its_name(self) -> None:
        for values, expected in [
            ({}, "missing field `turns`"),
            ({"turns": "x"}, "field `turns`: 'x' is not a whole number"),
            ({"turns": 1, "turn": 2}, "unknown field `turn`"),
            ({"turns": 1, "concurrency": {"max_concurrent": "x"}}, "field `concurrency`: field `max_concurrent`: "),
        ]:
            with self.assertRaises(Invalid) as raised:
                Strict.read(values)
            self.assertTrue(str(raised.exception).startswith(expected), raised.exception)

    def test_the_declaration_is_a_schema_with_the_defaults(self) -> None:
        class Work(AgentWorkflow[Strict]):
            async def run(self, ctx: Any) -> None: ...

        module = types.ModuleType("made")
        vars(module).update(Work=Work)
        schema, defaults = _export.declaration(_discover.discover(module))
        self.assertEqual(schema["required"], ["turns"])
        self.assertFalse(schema["additionalProperties"])
        self.assertEqual(schema["properties"]["turns"], {"type": "integer"})
        self.assertEqual(defaults["name"], "Work")
        self.assertEqual(defaults["concurrency"], {"max_concurrent": None})


class Recorded:
    """The handle of a sample, which stores its metrics."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}

    def set_metric(self, name: str, value: float) -> None:
        self.metrics[name] = value


class Measurements(unittest.TestCase):
    def test_metrics_that_a_grader_writes_are_part_of_its_verdict(self) -> None:
        graded = RolloutSample("a", [], {"turns": 2.0})
        graded.metrics["x"] = True
        graded.metrics.update(y=2)
        graded.metrics |= {"z": 3}
        graded.metrics = {"turns": 4}
        self.assertEqual(graded.verdict_metrics, {"x": 1.0, "y": 2.0, "z": 3.0, "turns": 4.0})
        self.assertEqual(graded.metrics, {"turns": 4.0, "x": 1.0, "y": 2.0, "z": 3.0})
        self.assertTrue(graded.is_rated)

    def test_metrics_that_a_workflow_writes_reach_the_host(self) -> None:
        opened = Sample.__new__(Sample)
        handle = Recorded()
        opened._handle = handle
        opened._metrics = Metrics({}, opened._record_metric)
        opened.metrics["x"] = 1
        opened.metric("y", 2)
        self.assertEqual(handle.metrics, {"x": 1.0, "y": 2.0})
        self.assertEqual(opened.metrics, {"x": 1.0, "y": 2.0})

    def test_assignments_that_would_be_lost_raise(self) -> None:
        graded = RolloutSample("a", [])
        for work in [
            lambda: setattr(graded, "score", 1.0),
            lambda: setattr(graded, "extra_fields", {}),
            lambda: graded.metrics.clear(),
            lambda: graded.metrics.__setitem__("x", "much"),
        ]:
            self.assertRaises((AttributeError, TypeError, Failed), work)
        ctx = GraderContext("4", [graded])
        ctx.reward = 0.5
        self.assertEqual(graded.reward, 0.5)
        copy.deepcopy(graded.metrics)["x"] = 1.0
        self.assertEqual(graded.verdict_metrics, {})

    def test_usage_is_read_by_attribute_or_by_key(self) -> None:
        usage = Usage(3, 4) + Usage(1)
        self.assertEqual((usage.total_tokens, usage["total_tokens"], usage.get("none", 0)), (8, 8, 0))
        self.assertEqual(dict(usage), {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8})


class Failures(unittest.TestCase):
    def test_each_exception_has_its_kind_of_the_contract(self) -> None:
        def because_of(cause: Exception) -> Exception:
            error = ValueError("no answer to read")
            error.__cause__ = cause
            return error

        unavailable = ChatError("unavailable", "the model's server is unavailable")
        for error, expected in [
            (KeyError("a"), Sort.FAILED),
            (Failed("a"), Sort.FAILED),
            (Invalid("a"), Sort.INVALID),
            (ValueError("a"), Sort.INVALID),
            (UnicodeDecodeError("utf-8", b"", 0, 1, "a"), Sort.INVALID),
            (TypeError("a"), Sort.INVALID),
            (AssertionError(), Sort.INVALID),
            (TimeoutError(), Sort.TIMED_OUT),
            (TimedOut("a"), Sort.TIMED_OUT),
            (ExceptionGroup("two", [TimeoutError(), ExceptionGroup("one", [TimeoutError()])]), Sort.TIMED_OUT),
            (ExceptionGroup("two", [TimeoutError(), ValueError()]), Sort.FAILED),
            # The host knows the cause.
            (because_of(unavailable), Sort.FAILED),
        ]:
            self.assertEqual(sort_of(error), expected, repr(error))


    def test_the_message_of_an_exception_names_what_a_component_does_not_have(self) -> None:
        def of(work: Callable[[], object]) -> str:
            try:
                work()
            except Exception as error:
                return describe(error)
            return ""

        def absent(name: str) -> Callable[[], object]:
            return lambda: getattr(os, name)

        def ended() -> None:
            raise EOFError

        self.assertRegex(of(lambda: os.environ["NO_SUCH_KEY"]), "KeyError: 'NO_SUCH_KEY'; a component has no environment variables: declare a setting")
        self.assertRegex(of(absent("fork_no_more")), "no attribute 'fork_no_more'; a component starts no processes")
        self.assertNotRegex(of(absent("no_such_name")), "processes")
        self.assertRegex(of(ended), "EOFError: EOF; a component has no standard input")
        self.assertNotRegex(of(lambda: {}["a"]), "environment")


class Absent(unittest.TestCase):
    def test_a_breakpoint_raises_with_the_alternatives(self) -> None:
        kept = sys.breakpointhook
        try:
            _absent.stand_in()
            self.assertRaisesRegex(RuntimeError, "rollout_sdk.testing", breakpoint)
        finally:
            sys.breakpointhook = kept

    def test_a_search_for_dotenv_files_without_a_start_directory_finds_none(self) -> None:
        module: Any = types.SimpleNamespace(_walk_to_root=lambda path: iter([path]))

        _absent._find_no_dotenv(module)

        self.assertEqual(list(module._walk_to_root("/no/such/directory")), [])
        self.assertEqual(list(module._walk_to_root(os.getcwd())), [os.getcwd()])


class Discovery(unittest.TestCase):
    def test_one_class_under_two_names_counts_once(self) -> None:
        class Work(AgentWorkflow[AgentWorkflowConfig]):
            async def run(self, ctx: Any) -> None: ...

        class Rate(Grader):
            async def grade(self, ctx: Any) -> None: ...

        module = types.ModuleType("made")
        vars(module).update(Work=Work, Same=Work, Rate=Rate)
        found = _discover.discover(module)
        self.assertEqual((found.workflow, found.grader), (Work, Rate))
        self.assertEqual(found.exports, ["workflow", "grader", "settings"])

    def test_too_few_or_too_many_classes_are_named(self) -> None:
        workflow = "class {}(AgentWorkflow):\n    async def run(self, ctx): ...\n"
        grader = "class {}(Grader):\n    async def grade(self, ctx): ...\n"
        for code, expected in [
            (grader.format("Rate"), "has no workflow.*only-grader = true"),
            (workflow.format("One") + grader.format("A") + grader.format("B"), "has 2 graders: `A`, `B`"),
            ("class Half(AgentWorkflow):\n    pass\n", "`Half` lacks run"),
            ("class Lone:\n    async def run(self, ctx): ...\n", "`Lone` has `run` and is no subclass"),
        ]:
            module = types.ModuleType("made")
            exec("from rollout_sdk import *\n" + code, vars(module))
            # The classes of `exec` do not have the module's name yet.
            for value in vars(module).values():
                if _discover._is_class(value) and value.__module__ == "builtins":
                    value.__module__ = "made"
            with self.assertRaisesRegex(_discover.NotAPlugin, expected):
                _discover.discover(module)

    def test_functions_of_the_host_raise_without_a_host(self) -> None:
        with self.assertRaisesRegex(OutsideOfHost, "artifacts.names"):
            artifact.names()


class Messages(unittest.TestCase):
    def test_text_is_the_content_or_the_text_parts_of_it(self) -> None:
        self.assertEqual(message.text_of(message.user("a")), "a")
        parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
        self.assertEqual(message.text_of({"role": "user", "content": parts}), "a\nb")
        self.assertEqual(message.text_of({"role": "assistant", "content": None}), "")

    def test_blocks_convert_to_chat_messages_and_back(self) -> None:
        function = {"name": "f", "arguments": '{"a": 1}'}
        chat = [
            {"role": "system", "content": "s"},
            {"role": "assistant", "content": "t", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "1", "content": "r"},
        ]
        blocks = [in_blocks(each) for each in chat]
        self.assertEqual(blocks[0], {"role": "system", "content": [{"text": "s"}]})
        self.assertEqual(blocks[2]["content"][0]["toolResult"]["content"], [{"text": "r"}])
        again = [one for each in blocks for one in as_chat(each)]
        self.assertEqual(again[1]["tool_calls"], chat[1]["tool_calls"])
        self.assertEqual(again[2], chat[2])
        self.assertIs(in_blocks(blocks[1]), blocks[1])


class LoopHelpers(unittest.TestCase):
    def test_results_have_the_usual_form(self) -> None:
        made = create_tool_result("1", "x")
        self.assertEqual(list(made), ["role", "content", "tool_call_id"])
        self.assertEqual(create_tool_error_result("1", "x")["content"], "Error: x")
        for value, text in [(True, "true"), (3.0, "3.0"), (3, "3"), ("a", "a"), ({"a": [1]}, '{"a": [1]}')]:
            self.assertEqual(serialize_tool_result(value), text)

    def test_calls_are_read_or_refused(self) -> None:
        self.assertEqual(get_tool_call_info({}), ("unknown", "", {}))
        self.assertEqual(parse_tool_arguments({"function": {"arguments": {"a": 1}}}), {"a": 1})
        for arguments in ["", "{", "[1]", 3, None]:
            with self.assertRaises(ToolArgumentError, msg=arguments):
                parse_tool_arguments({"function": {"arguments": arguments}})

    def test_arguments_are_read_and_refused_as_in_the_published_package(self) -> None:
        self.assertEqual(parse_tool_arguments('{"a": 1}'), {"a": 1})
        self.assertEqual(parse_tool_arguments({"function": "f"}), {"function": "f"})
        for arguments, text in [
            ("[1]", "Expected dict from JSON, got list"),
            (3, "Expected str or dict arguments, got int"),
            ("{", "Invalid JSON arguments: Expecting property name enclosed in double quotes"),
        ]:
            with self.assertRaises(ToolArgumentError) as raised:
                parse_tool_arguments(arguments)  # type: ignore[arg-type]
            self.assertTrue(str(raised.exception).startswith(text), raised.exception)


if __name__ == "__main__":
    unittest.main()
