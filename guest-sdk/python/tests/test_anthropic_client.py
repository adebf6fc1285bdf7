"""Tests of the client in the shape of the `anthropic` package's. Replies are the package's own objects where it is installed,
and otherwise stand-ins with the same JSON."""

import importlib.util
import json
import sys
import unittest
from collections.abc import Callable, Iterable
from types import ModuleType, SimpleNamespace
from typing import Any

from rollout_sdk import AgentWorkflow
from rollout_sdk.anthropic_client import HostClient, SyncHostClient
from rollout_sdk.testing import PlayedRun, Reply, calls, run_workflow


def as_object(value: Any) -> Any:
    """Returns JSON as objects with attributes, like those of the package."""
    if isinstance(value, dict):
        found = SimpleNamespace(**{name: value if name == "input" else as_object(value) for name, value in value.items()})
        found.to_dict = lambda: value
        return found
    return [as_object(each) for each in value] if isinstance(value, list) else value


def setUpModule() -> None:
    if importlib.util.find_spec("anthropic") is not None:
        return
    types: Any = ModuleType("anthropic.types")

    def made(**fields: Any) -> Any:
        return as_object(fields)

    names = ["Message"]
    names += [f"Raw{name}Event" for name in ("MessageStart", "MessageDelta", "MessageStop")]
    names += [f"RawContentBlock{name}Event" for name in ("Start", "Delta", "Stop")]
    for name in names:
        setattr(types, name, SimpleNamespace(construct=made))
    sys.modules["anthropic"] = ModuleType("anthropic")
    sys.modules["anthropic.types"] = types
    unittest.addModuleCleanup(lambda: [sys.modules.pop(name) for name in ("anthropic.types", "anthropic")])


def ran(work: Callable[[Any], Any], replies: Iterable[Reply]) -> tuple[Any, PlayedRun]:
    """Runs the work as a workflow. Returns its result and the run."""
    given: list[Any] = []

    class Made(AgentWorkflow[Any]):
        async def run(self, ctx: Any) -> None:
            given.append(await work(ctx))

    run = run_workflow(Made, "Begin.", replies)
    return given[0], run


ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}


def asked(**given: Any) -> Any:
    """Returns the request that the model receives."""

    async def work(ctx: Any) -> None:
        given.setdefault("messages", [{"role": "user", "content": "Hi"}])
        await HostClient(ctx.sample).messages.create(model="claude", max_tokens=9, **given)

    _, run = ran(work, ["Hello"])
    return run.requests[0]


class Requests(unittest.TestCase):
    def test_a_system_prompt_and_parameters_are_sent_in_openais_form(self) -> None:
        request = asked(
            system=[{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "brief."}],
            stop_sequences=["END"], temperature=0.5, metadata={"user_id": "u"}, tools=[ADD],
            tool_choice={"type": "any", "disable_parallel_tool_use": True}, extra_body={"seed": 7},
            output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        )

        self.assertEqual(
            request["messages"], [{"role": "system", "content": "Be\nbrief."}, {"role": "user", "content": "Hi"}]
        )
        self.assertEqual(
            request["tools"],
            [{"type": "function", "function": {
                "name": "add", "parameters": ADD["input_schema"], "description": "Adds two numbers."}}],
        )
        schema = {"name": "reply", "schema": {"type": "object"}, "strict": True}
        self.assertEqual(
            {name: value for name, value in request.items() if name not in ("messages", "tools")},
            {
                "max_tokens": 9, "stop": ["END"], "temperature": 0.5, "tool_choice": "required", "parallel_tool_calls": False,
                "reasoning_effort": "low", "response_format": {"type": "json_schema", "json_schema": schema}, "seed": 7,
            },
        )

    def test_images_and_texts_become_parts(self) -> None:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        other = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
        request = asked(messages=[{"role": "user", "content": [{"type": "text", "text": "What?"}, image, other]}])

        self.assertEqual(
            request["messages"][0]["content"],
            [
                {"type": "text", "text": "What?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
            ],
        )

    def test_a_tool_of_a_name_is_chosen(self) -> None:
        request = asked(tools=[ADD], tool_choice={"type": "tool", "name": "add"})

        self.assertEqual(request["tool_choice"], {"type": "function", "function": {"name": "add"}})

    def test_features_of_anthropics_servers_are_refused_by_name(self) -> None:
        document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
        for said, given in {
            "web_search.*Anthropic's servers": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "takes no `container`": {"container": "c"},
            "block of the type 'document' cannot be sent": {"messages": [{"role": "user", "content": [document]}]},
            "ends with an assistant message": {
                "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The"}]
            },
            "is of the type auto, any, tool or none": {"tool_choice": {"type": "some"}},
            "`thinking` has a `type`: enabled, adaptive or disabled": {"thinking": {"budget_tokens": 9}},
        }.items():
            with self.subTest(said), self.assertRaisesRegex(TypeError, said):
                asked(**given)
        for name in ("beta", "models"):
            with self.assertRaisesRegex(AttributeError, f"no `{name}`; it has `messages.create`"):
                getattr(HostClient(), name)
        with self.assertRaisesRegex(AttributeError, "no `messages.count_tokens`; it has `create` and `stream`"):
            HostClient().messages.count_tokens


class Conversations(unittest.TestCase):
    def test_tools_are_called_and_their_results_answered(self) -> None:
        async def work(ctx: Any) -> Any:
            client = HostClient(ctx.sample)
            messages: list[Any] = [{"role": "user", "content": "2 + 3?"}]
            said: list[Any] = []
            while True:
                reply = await client.messages.create(
                    model="claude", max_tokens=9, system="Use the tool.", messages=messages, tools=[ADD]
                )
                said.append(reply)
                if reply.stop_reason != "tool_use":
                    return said
                messages.append({"role": "assistant", "content": reply.content})
                results = [
                    {"type": "tool_result", "tool_use_id": block.id, "content": str(block.input["a"] + block.input["b"])}
                    for block in reply.content if block.type == "tool_use"
                ]
                messages.append({"role": "user", "content": results})

        # The model wrote the arguments with other spaces than a dump of them has.
        spaced = calls("add")
        spaced["tool_calls"][0]["function"]["arguments"] = '{ "a":2,"b":3 }'
        (first, last), run = ran(work, [spaced, "It is 5."])

        self.assertEqual(first.content[0].input, {"a": 2, "b": 3})
        self.assertEqual((last.content[0].type, last.content[0].text, last.stop_reason), ("text", "It is 5.", "end_turn"))
        self.assertEqual([each["role"] for each in run.requests[1]["messages"]], ["system", "user", "assistant", "tool"])
        self.assertEqual(run.requests[1]["messages"][2], spaced)
        self.assertEqual(run.requests[1]["messages"][3], {"role": "tool", "tool_call_id": "call-add", "content": "5"})
        self.assertEqual([each["role"] for each in run.sample.messages], ["system", "user", "assistant", "tool", "assistant"])

    def test_results_come_before_the_text_of_the_same_turn(self) -> None:
        use = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1, "b": 1}}
        failed = {"type": "tool_result", "tool_use_id": "c1", "is_error": True}
        request = asked(messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "…", "signature": "s"}, use]},
            {"role": "user", "content": [failed, {"type": "text", "text": "Again."}]},
        ])

        call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 1}'}}
        self.assertEqual(
            request["messages"][1:],
            [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "the tool failed"},
                {"role": "user", "content": "Again."},
            ],
        )

    def test_arguments_that_are_not_json_reach_the_caller_and_stay_in_the_sample(self) -> None:
        async def work(ctx: Any) -> Any:
            client = HostClient(ctx.sample)
            asks: Any = {"model": "claude", "max_tokens": 9, "tools": [ADD]}
            messages: list[Any] = [{"role": "user", "content": "2 + 3?"}]
            reply = await client.messages.create(messages=messages, **asks)
            result = {"type": "tool_result", "tool_use_id": "call-add", "content": "not JSON", "is_error": True}
            messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
            await client.messages.create(messages=messages, **asks)
            return reply

        broken = calls("add")
        broken["tool_calls"][0]["function"]["arguments"] = '{"a": 2'
        reply, run = ran(work, [broken, "Sorry."])

        self.assertEqual(reply.content[0].input, {"INVALID_JSON": '{"a": 2'})
        self.assertEqual(run.sample.messages[1], broken)
        self.assertEqual(len(run.sample.messages), 4)

    def test_reasoning_is_shown_to_a_caller_that_asks_for_it(self) -> None:
        async def work(ctx: Any) -> Any:
            asks: Any = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
            with_it = await HostClient().messages.create(thinking={"type": "enabled", "budget_tokens": 1024}, **asks)
            return with_it, await HostClient().messages.create(**asks)

        reply: Any = {"role": "assistant", "content": "Hello", "reasoning_content": "A greeting."}
        (with_it, without), _ = ran(work, [reply, reply])

        self.assertEqual([block.type for block in with_it.content], ["thinking", "text"])
        self.assertEqual(with_it.content[0].thinking, "A greeting.")
        self.assertEqual([block.type for block in without.content], ["text"])

    def test_code_that_does_not_await_uses_the_other_client(self) -> None:
        async def work(ctx: Any) -> Any:
            with SyncHostClient(ctx.sample) as client:
                return client.with_options(timeout=9).messages.create(
                    model="claude", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
                )

        reply, run = ran(work, ["Hello"])

        self.assertEqual(reply.content[0].text, "Hello")
        self.assertEqual(len(run.sample.messages), 2)

    def test_a_stream_has_the_whole_reply_in_its_events(self) -> None:
        async def work(ctx: Any) -> Any:
            asks: Any = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
            events = [event async for event in await HostClient(ctx.sample).messages.create(**asks)]
            return events, list(SyncHostClient().messages.create(**asks))

        (events, others), _ = ran(work, [calls("add", a=1), "Hello"])

        kinds = ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"]
        self.assertEqual([each.type for each in events], kinds)
        self.assertEqual([each.type for each in others], kinds)
        self.assertEqual(json.loads(events[2].delta.partial_json), {"a": 1})
        self.assertEqual((others[2].delta.text, others[4].delta.stop_reason), ("Hello", "end_turn"))


if importlib.util.find_spec("anthropic") is not None:

    class ThePackage(unittest.TestCase):
        """Tests with the real `anthropic` package, where it is installed."""

        def test_its_own_helpers_read_the_reply(self) -> None:
            async def work(ctx: Any) -> Any:
                asks: Any = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
                async with HostClient(ctx.sample).messages.stream(**asks) as stream:
                    texts = [text async for text in stream.text_stream]
                    message = await stream.get_final_message()
                with SyncHostClient().messages.stream(**asks) as other:
                    return texts, message, other.get_final_message()

            (texts, message, called), _ = ran(work, ["Hello", calls("add", a=1)])

            import anthropic

            self.assertEqual((texts, message.content[0].text, message.stop_reason), (["Hello"], "Hello", "end_turn"))
            self.assertIsInstance(message, anthropic.types.Message)
            self.assertEqual((called.content[0].input, called.stop_reason), ({"a": 1}, "tool_use"))

        def test_a_reply_is_what_the_package_validates(self) -> None:
            async def work(ctx: Any) -> Any:
                asks: Any = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
                return await HostClient(ctx.sample).messages.create(**asks)

            reply, _ = ran(work, [calls("add", a=1)])

            import anthropic

            self.assertEqual(anthropic.types.Message.model_validate(reply.to_dict()).content[0].type, "tool_use")


if __name__ == "__main__":
    unittest.main()
