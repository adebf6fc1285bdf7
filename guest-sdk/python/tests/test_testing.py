"""Tests of `rollout_sdk.testing`."""

import asyncio
import json
import unittest
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from played import played_host

from rollout_sdk import _discover, _export
from rollout_sdk import AgentWorkflow, AgentWorkflowConfig, ChatError, Grader, artifact, log, same_number, tool
from rollout_sdk.agent_loop import RolloutAgentLoop
from rollout_sdk.testing import calls, grade, run_agent_loop, run_workflow


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


class Config(AgentWorkflowConfig):
    greeting: str = "Hello."


class Adding(AgentWorkflow[Config]):
    async def run(self, ctx: Any) -> None:
        run = await ctx.agent(ctx.config.greeting, tools=[add], temperature=0.5).run()
        run.sample.metrics["turns"] = run.turns
        artifact.write("answer.txt", run.text)
        log.info("done")


class SameNumber(Grader):
    async def grade(self, ctx: Any) -> bool:
        return same_number(ctx.sample.answer_after("####") or "", ctx.require_label())


class Said(AgentWorkflow):  # type: ignore[type-arg]
    async def run(self, ctx: Any) -> Any:
        replies = await asyncio.gather(*(ctx.sample.chat(ctx.prompt) for _ in range(2)))
        return [*ctx.prompt, *(reply.message for reply in replies)]


class Loop(RolloutAgentLoop):
    def get_tools(self, request: Any) -> Any:
        return [add]

    async def run(self, ctx: Any) -> Any:
        reply = await ctx.chat(ctx.request.messages)
        return ctx.complete([*ctx.request.messages, reply.message], reward=0.5)


class Passing(Loop):
    """A loop that calls the model like those of the published package."""

    async def run(self, ctx: Any) -> Any:
        params = {"model": "policy-7", "tools": [{}], "n": 4, "keep_reply": True, "temperature": 0.5}
        reply = await ctx.chat(ctx.request.messages, **params)
        return ctx.complete([*ctx.request.messages, reply.message])


class Failing(Loop):
    async def run(self, ctx: Any) -> Any:
        raise KeyError("x") if len(ctx.request.messages[0]["content"]) > 1 else AssertionError


class Testing(unittest.TestCase):
    def test_a_workflow_runs_against_a_script_and_is_graded(self) -> None:
        run = run_workflow(Adding, "What is 2 + 2?", [calls("add", a=2, b=2), "#### 4"], config={"greeting": "Hi."})
        roles = [message["role"] for message in run.sample.messages]
        self.assertEqual(roles, ["system", "user", "assistant", "tool", "assistant"])
        self.assertEqual(run.sample.messages[3]["content"], "4")
        self.assertEqual((run.sample.metrics, run.artifacts), ({"turns": 2.0}, {"answer.txt": b"#### 4"}))
        self.assertEqual(run.log, [("info", "done")])
        self.assertEqual((run.requests[0]["temperature"], run.requests[0]["messages"][0]["content"]), (0.5, "Hi."))
        self.assertEqual(grade(SameNumber, run, label="4").reward, 1.0)
        self.assertEqual(grade(SameNumber, "#### 5", label="4").reward, 0.0)

    def test_returned_messages_are_the_sample(self) -> None:
        run = run_workflow(Said, "Hello", ["a", lambda request: request["messages"][0]["content"]])
        self.assertEqual([message["content"] for message in run.sample.messages], ["Hello", "a", "Hello"])

    def test_an_error_of_the_model_and_the_end_of_the_script_raise(self) -> None:
        unavailable = ChatError("unavailable", "no model")
        self.assertRaises(ChatError, run_workflow, Adding, "Hello", [unavailable])
        self.assertRaisesRegex(AssertionError, "more often than there are replies, 1", run_workflow, Said, "Hello", ["a"])

    def test_an_agent_loop_runs_too_and_within_a_loop(self) -> None:
        async def main() -> Any:
            return run_agent_loop(Loop, "Hello", ["Hi."])

        run = asyncio.run(main())
        self.assertEqual((run.result.reward, run.requests[0]["tools"][0]["function"]["name"]), (0.5, "add"))

    def test_a_loop_may_pass_on_parameters_of_any_names(self) -> None:
        run = run_agent_loop(Passing, "Hello", ["Hi."])
        request = run.requests[0]
        self.assertEqual((request["temperature"], request["n"], request["keep_reply"]), (0.5, 4, True))
        result: Any = run.result
        self.assertEqual(len(result.final_messages), 2)

    def test_an_exception_of_a_loop_is_reported_with_its_own_text(self) -> None:
        loop = _export.AgentLoop()
        for prompt, expected in [("Hello", "'x'"), ("?", "AssertionError (")]:
            message = json.dumps({"role": "user", "content": prompt})
            request: Any = SimpleNamespace(messages=[message], max_turns=3, max_tokens_total=9, completion_params="{}")
            found = _discover.Found(None, Failing, None, None, None)
            told = patch.object(_export, "_as_failure", lambda _sort, text: text)
            with played_host(), told, patch.object(_export.log, "error"), self.assertRaises(_export.Err) as raised:
                _export.rehearse(found, lambda: loop.run(request))
            self.assertTrue(str(raised.exception).startswith(expected), raised.exception)


if __name__ == "__main__":
    unittest.main()
