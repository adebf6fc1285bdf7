"""Tests that agents in the shapes of other frameworks behave as those document, with a model that replies from a
script."""

import importlib
import json
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_sdk import AgentWorkflow, ChatError, _names, openai_agents, strands
from rollout_sdk.testing import PlayedRun, Reply, calls, run_workflow


def ran(work: Callable[[Any], Any], replies: Iterable[Reply]) -> tuple[Any, PlayedRun]:
    """Runs the work as a workflow. Returns its result and the run."""
    given: list[Any] = []

    class Made(AgentWorkflow[Any]):
        async def run(self, ctx: Any) -> None:
            given.append(await work(ctx))

    run = run_workflow(Made, "Begin.", replies)
    return given[0], run


@strands.tool
def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


TOO_LONG = ChatError("refused", "the model's server refused with 400", 400, "maximum context length is 9 tokens")


class Strands(unittest.TestCase):
    def test_a_stream_yields_events_and_the_handler_receives_them(self) -> None:
        heard: list[set[str]] = []

        async def work(ctx: Any) -> list[str]:
            agent = strands.Agent(tools=[double], callback_handler=lambda **event: heard.append(set(event)))
            return [next(iter(event)) async for event in agent.stream_async("Twice 2?")]

        found, _ = ran(work, [calls("double", number=2), "4"])
        one = ["start", "start_event_loop"]
        expected = ["init_event_loop", *one, "message", "current_tool_use", "message", *one, "data", "message", "result"]
        self.assertEqual(found, expected)
        self.assertEqual(len(heard), len(expected))

    def test_hooks_replace_a_tool_retry_a_model_call_and_resume(self) -> None:
        @strands.tool
        def triple(number: int) -> int:
            """Triples a number."""
            return 3 * number

        seen: list[Any] = []

        def before_tool(event: strands.BeforeToolCallEvent) -> None:
            event.selected_tool = triple

        def after_model(event: strands.AfterModelCallEvent) -> None:
            event.retry = event.stop_response is not None and event.stop_response.message["content"] == [{"text": "bad"}]

        def after(event: strands.AfterInvocationEvent) -> None:
            seen.append(str(event.result).strip())
            event.resume = "Once more." if len(seen) == 1 else None

        async def work(ctx: Any) -> Any:
            agent = strands.Agent(tools=[double], hooks=[before_tool, after_model, after])
            await agent.invoke_async("Twice 2?")
            return agent.messages

        messages, run = ran(work, [calls("double", number=2), "bad", "6", "done"])
        self.assertEqual(messages[2]["content"][0]["toolResult"]["content"], [{"text": "6"}])
        self.assertEqual(seen, ["6", "done"])
        self.assertEqual(len(run.requests), 4)

    def test_writing_a_read_only_value_of_an_event_raises(self) -> None:
        def meddle(event: strands.BeforeModelCallEvent) -> None:
            event.messages = []  # type: ignore[attr-defined]

        async def work(ctx: Any) -> None:
            await strands.Agent(hooks=[meddle]).invoke_async("Hi")

        with self.assertRaisesRegex(AttributeError, "BeforeModelCallEvent.messages cannot be written by a hook; .*cancel"):
            ran(work, [])

    def test_end_events_reach_the_callback_registered_last_first(self) -> None:
        order: list[int] = []

        async def work(ctx: Any) -> None:
            agent = strands.Agent()
            for number in range(2):
                agent.add_hook(lambda event, number=number: order.append(number), strands.BeforeInvocationEvent)
                agent.add_hook(lambda event, number=number: order.append(number), strands.AfterInvocationEvent)
            await agent.invoke_async("Hi")

        ran(work, ["Hello"])
        self.assertEqual(order, [0, 1, 1, 0])

    def test_a_tool_may_yield_progress_and_stop_the_loop(self) -> None:
        @strands.tool(context="where")
        async def slow(number: int, agent: Any, where: strands.ToolContext) -> Any:
            """Takes its time."""
            where.invocation_state["request_state"]["stop_event_loop"] = True
            yield "half"
            yield number + len(agent.tool_names)

        async def work(ctx: Any) -> strands.AgentResult:
            return await strands.Agent(tools=[[slow]]).invoke_async("Go")

        result, run = ran(work, [calls("slow", number=2)])
        self.assertEqual(result.stop_reason, "tool_use")
        self.assertEqual(run.sample.messages[-1]["content"][0]["toolResult"]["content"], [{"text": "3"}])
        self.assertEqual(list(run.requests[0]["tools"][0]["function"]["parameters"]["properties"]), ["number"])

    def test_limits_end_an_invocation(self) -> None:
        async def work(ctx: Any) -> strands.AgentResult:
            return await strands.Agent(tools=[double]).invoke_async("Go", limits={"turns": 2})

        result, run = ran(work, [calls("double", number=1), calls("double", number=2)])
        self.assertEqual((result.stop_reason, len(run.requests)), ("limit_turns", 2))

    def test_a_direct_call_is_recorded_unless_the_agent_is_set_otherwise(self) -> None:
        async def work(ctx: Any) -> tuple[Any, Any]:
            agent = strands.Agent(tools=[double], name="a")
            quiet = strands.Agent(tools=[double], record_direct_tool_call=False, name="b")
            result = agent.tool.double(number=4)
            quiet.tool.double(number=5)
            with self.assertRaisesRegex(AttributeError, "no tool `halve`; it has double"):
                agent.tool.halve()
            return result, (len(agent.messages), len(quiet.messages))

        (result, counts), _ = ran(work, [])
        self.assertEqual((result["content"], counts), ([{"text": "8"}], (4, 0)))

    def test_a_conversation_that_is_too_long_is_shortened_or_summarized_and_the_call_repeated(self) -> None:
        said = [{"role": role, "content": [{"text": str(n)}]} for n, role in enumerate(["user", "assistant"] * 6)]

        def work(manager: Any) -> Callable[[Any], Any]:
            async def work(ctx: Any) -> Any:
                agent = strands.Agent(messages=said, conversation_manager=manager)
                await agent.invoke_async("Now?")
                return [block["text"] for message in agent.messages for block in message["content"]]

            return work

        sliding = strands.SlidingWindowConversationManager(window_size=4)
        texts, _ = ran(work(sliding), [TOO_LONG, "yes"])
        self.assertEqual((texts, sliding.removed_message_count), (["10", "11", "Now?", "yes"], 10))
        summarizing = strands.SummarizingConversationManager(preserve_recent_messages=2, summary_ratio=0.8)
        texts, run = ran(work(summarizing), [TOO_LONG, "the summary", "yes"])
        self.assertEqual((texts[0], texts[-2:], summarizing.removed_message_count), ("the summary", ["Now?", "yes"], 10))
        self.assertEqual(len(run.requests[1]["messages"]), 12)
        with self.assertRaises(ChatError):
            ran(work(sliding), [ChatError("refused", "refused with 400", 400, "no such parameter")])
        with self.assertRaises(strands.ContextWindowOverflowException):
            ran(work(None), [TOO_LONG])

    def test_state_is_json_and_is_copied(self) -> None:
        state = strands.AgentState({"a": [1]})
        state.get("a").append(2)
        state.set("b", 1)
        state.delete("a")
        self.assertEqual((state.get(), state.get("a")), ({"b": 1}, None))
        self.assertRaises(ValueError, state.set, "c", object())

    def test_a_tool_that_a_component_cannot_load_is_named(self) -> None:
        async def work(ctx: Any) -> None:
            strands.Agent(tools=["calculator"])

        with self.assertRaisesRegex(TypeError, "loads no tools by name or path.*'calculator'"):
            ran(work, [])


@dataclass
class Answer:
    value: int


@openai_agents.function_tool
def half(number: int) -> str:
    """Halves a number."""
    return f"half of {number}"


class OpenAiAgents(unittest.TestCase):
    def test_an_agent_as_a_tool_calls_the_model_for_the_sample_of_the_outer_run(self) -> None:
        async def work(ctx: Any) -> Any:
            inner = openai_agents.Agent(name="Inner", instructions="Inner.")
            outer = openai_agents.Agent(name="Outer", tools=[inner.as_tool("ask_inner", "Asks.")])
            return await openai_agents.Runner.run(outer, "Go", session=openai_agents.MemorySession("one"))

        result, run = ran(work, [calls("ask_inner", input="What?"), "inner says", "outer says"])
        self.assertEqual([each.id for each in run.samples], ["one"])
        self.assertEqual([each["content"] for each in run.requests[1]["messages"]], ["Inner.", "What?"])
        self.assertEqual(result.new_items[1].output, "inner says")
        self.assertEqual((len(run.sample.messages), result.final_output, result.usage.requests), (4, "outer says", 2))

    def test_a_stream_yields_items_and_then_the_result(self) -> None:
        async def work(ctx: Any) -> Any:
            agent = openai_agents.Agent(name="A", tools=[half])
            streamed = openai_agents.Runner.run_streamed(agent, "Go")
            names = [getattr(event, "name", event.type) async for event in streamed.stream_events()]
            return names, streamed.final_output, streamed.is_complete

        found, _ = ran(work, [calls("half", number=4), "2"])
        raw, updated = "raw_response_event", "agent_updated_stream_event"
        names = [updated, raw, "tool_called", "tool_output", raw, raw, "message_output_created"]
        self.assertEqual(found, (names, "2", True))

    def test_a_failed_run_raises_when_its_stream_is_read(self) -> None:
        async def work(ctx: Any) -> Any:
            streamed = openai_agents.Runner.run_streamed(openai_agents.Agent(name="A"), "Go")
            with self.assertRaisesRegex(openai_agents.ModelBehaviorError, "called `none`, and agent `A` has no such tool"):
                async for _ in streamed.stream_events():
                    pass

        ran(work, [calls("none")])

    def test_an_unknown_tool_may_be_reported_to_the_model(self) -> None:
        async def work(ctx: Any) -> Any:
            config = openai_agents.RunConfig(tool_not_found_behavior="return_error_to_model")
            return await openai_agents.Runner.run(openai_agents.Agent(name="A"), "Go", run_config=config)

        result, run = ran(work, [calls("none"), "fine"])
        self.assertEqual(run.sample.messages[2]["output"], "Tool none not found")

    def test_an_output_guardrail_ends_a_run(self) -> None:
        @openai_agents.output_guardrail(name="polite")
        def polite(context: Any, agent: Any, output: str) -> Any:
            return openai_agents.GuardrailFunctionOutput({"said": output}, "damn" in output)

        async def work(ctx: Any) -> Any:
            agent = openai_agents.Agent(name="A", output_guardrails=[polite])
            with self.assertRaisesRegex(openai_agents.OutputGuardrailTripwireTriggered, "`polite`") as raised:
                await openai_agents.Runner.run(agent, "Go")
            return raised.exception.guardrail_result.output.output_info

        self.assertEqual(ran(work, ["damn"])[0], {"said": "damn"})

    def test_tools_may_return_the_final_output(self) -> None:
        for behavior in ("stop_on_first_tool", openai_agents.StopAtTools(stop_at_tool_names=["half"])):
            agent: Any = openai_agents.Agent(name="A", tools=[half], tool_use_behavior=behavior)

            async def work(ctx: Any, agent: Any = agent) -> Any:
                return (await openai_agents.Runner.run(agent, "Go")).final_output

            self.assertEqual(ran(work, [calls("half", number=4)])[0], "half of 4")

    def test_an_output_type_is_requested_and_checked(self) -> None:
        async def work(ctx: Any) -> Any:
            agent = openai_agents.Agent(name="A", output_type=list[Answer])
            return (await openai_agents.Runner.run(agent, "Go")).final_output

        found, run = ran(work, ['{"response": [{"value": 3}]}'])
        self.assertEqual(found, [Answer(3)])
        self.assertTrue(run.requests[0]["response_format"]["json_schema"]["strict"])
        with self.assertRaisesRegex(openai_agents.ModelBehaviorError, "is not a valid list: not valid JSON"):
            ran(work, ["three"])

    def test_a_filter_selects_the_conversation_of_the_next_agent(self) -> None:
        def last_only(given: openai_agents.HandoffInputData) -> openai_agents.HandoffInputData:
            return given.clone(input_history=given.input_history[-1:], new_items=())

        async def work(ctx: Any) -> Any:
            last = openai_agents.Agent(name="Last")
            first = openai_agents.Agent(name="First", handoffs=[openai_agents.handoff(last, input_filter=last_only)])
            given = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
            return await openai_agents.Runner.run(first, given)

        result, run = ran(work, [calls("transfer_to_last"), "done"])
        self.assertEqual([each["content"] for each in run.requests[1]["messages"]], ["two"])
        self.assertEqual(len(run.sample.messages), 5)
        self.assertEqual([each.type for each in result.new_items][:2], ["handoff_call_item", "handoff_output_item"])

    def test_a_session_class_of_the_author_also_has_a_sample(self) -> None:
        kept = openai_agents.SQLiteSession("mine")

        async def work(ctx: Any) -> Any:
            agent = openai_agents.Agent(name="A")
            await openai_agents.Runner.run(agent, "One", session=kept)
            return len(await kept.get_items())

        found, run = ran(work, ["1"])
        self.assertEqual((found, len(run.sample.messages)), (2, 2))
        self.assertRaisesRegex(openai_agents.UserError, "no file x.db", openai_agents.SQLiteSession, "a", "x.db")

    def test_a_tool_without_the_decorator_has_its_schema_and_the_models_json(self) -> None:
        async def invoke(context: openai_agents.ToolContext[Any], arguments: str) -> str:
            return f"{context.tool_name} {json.loads(arguments)['key']} {context.tool_call_id}"

        schema = {"type": "object", "properties": {"key": {"type": "string"}}}
        made = openai_agents.FunctionTool("look", "Looks.", schema, invoke)

        async def work(ctx: Any) -> Any:
            return await openai_agents.Runner.run(openai_agents.Agent(name="A", tools=[made]), "Go")

        result, run = ran(work, [calls("look", key="k"), "done"])
        self.assertEqual(result.new_items[1].output, "look k call-look")
        self.assertEqual(run.requests[0]["tools"][0]["function"]["parameters"]["required"], ["key"])


class BeforeThePackages(unittest.TestCase):
    def test_the_names_take_precedence_over_a_published_package_and_not_over_the_projects_own_module(self) -> None:
        kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in ("agents", "strands")}
        with tempfile.TemporaryDirectory() as place:
            for name in ("agents", "strands"):
                Path(place, name).mkdir()
                Path(place, name, "__init__.py").write_text("mine = True\n")
            Path(place, "strands_agents-1.0.dist-info").mkdir()
            sys.path.insert(0, place)
            try:
                _names.install_before_the_packages()
                self.assertIs(importlib.import_module("strands").Agent, strands.Agent)
                self.assertTrue(importlib.import_module("agents").mine)
            finally:
                sys.path.remove(place)
                for name in [each for each in sys.modules if each.split(".")[0] in ("agents", "strands")]:
                    del sys.modules[name]
                sys.modules.update(kept)


if __name__ == "__main__":
    unittest.main()
