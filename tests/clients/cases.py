"""Shared definitions of baselines and drivers: the test workflow's behaviours, and the report of a run.

The workflow under test makes one chat completion with the prompt's messages and returns the prompt with the reply. Its
grader compares the text after `####` (else the whole reply) with the label, or with `ground_truth` of the metadata if there
is no label: 1.0 if equal, else 0.0. The texts below, as the last user message (workflow) or as the label (grader), request
misbehaviour. Any program that serves this workflow and grader can be tested, in any language.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

# Last user message: the workflow's behaviour instead of a model call.
PLEASE_FAIL = "please fail"  # ends with the error WORKFLOW_FAILED
PLEASE_REFUSE = "please refuse"  # says that its input is invalid: WORKFLOW_REFUSED
PLEASE_SPIN = "please spin"  # never returns
PLEASE_TRAP = "please trap"  # crashes
PLEASE_RETURN_NOTHING = "please return nothing"  # succeeds without a sample

# Beginnings of the last user message, for callers that accept several samples by name. The rest is the message to the
# model for each sample.
PLEASE_BRANCH = "please branch"  # samples FIRST and SECOND, each with a reply of the model
PLEASE_HALF_BRANCH = "please half branch"  # sample FIRST with a reply, SILENT without a call
FIRST, SECOND, SILENT = "first", "second", "silent"
# Last user message: a sample that answers 5 without a model call.
PLEASE_STAY_SILENT = "please stay silent"

WORKFLOW_FAILED = "the workflow was told to fail"
WORKFLOW_REFUSED = "the workflow was told to refuse"

# Label: the grader's behaviour instead of a comparison.
FAIL_GRADING = "please fail"  # ends with the error GRADER_FAILED
SPIN_GRADING = "please spin"  # never returns
GIVE_NO_REWARD = "please give no reward"  # returns without a reward
REMOVE_SAMPLE = "please remove"  # rewards 1.0 and withdraws the sample from training

# Labels for several samples.
RATE_THE_FIRST = "please rate the first"  # rewards 1.0, and the second nothing
REMOVE_THE_SECOND = "please remove the second"  # rewards 1.0 and 0.5, and withdraws the second

GRADER_FAILED = "the grader was told to fail"

NO_SAMPLE_STARTS = "No sample to grade."
NO_REWARD = "Sample has no reward after grading"

Messages = list[dict[str, Any]]


def asking(text: str) -> Messages:
    """Returns a prompt whose last user message is `text`."""
    return [
        {"role": "system", "content": "Give the final answer after ####."},
        {"role": "user", "content": text},
    ]


def adding(left: int, right: int) -> Messages:
    return asking(f"Calculate {left} + {right}.")


def fresh_id(name: str) -> str:
    return f"{name}-{uuid4().hex[:12]}"


class Unexpected(AssertionError):
    """The server's behaviour is not the expected one."""


def expect(what: str, actual: Any, wanted: Any) -> None:
    """Compares a value. `wanted` is a value, or a predicate whose docstring or name describes it."""
    if callable(wanted):
        good, wish = wanted(actual), wanted.__doc__ or wanted.__name__
    else:
        good, wish = actual == wanted, repr(wanted)
    if not good:
        raise Unexpected(f"{what}: {actual!r}, wanted {wish}")


def one_of(*values: Any) -> Callable[[Any], bool]:
    def check(actual: Any) -> bool:
        return actual in values

    check.__doc__ = "one of " + ", ".join(map(repr, values))
    return check


def starting(text: str) -> Callable[[Any], bool]:
    def check(actual: Any) -> bool:
        return isinstance(actual, str) and actual.startswith(text)

    check.__doc__ = f"text that starts with {text!r}"
    return check


def holding(text: str) -> Callable[[Any], bool]:
    def check(actual: Any) -> bool:
        return isinstance(actual, str) and text in actual

    check.__doc__ = f"text that holds {text!r}"
    return check


def some_text(actual: Any) -> bool:
    """text that is not empty"""
    return isinstance(actual, str) and bool(actual)


class NotRun(Exception):
    """The scenario needs an option that was not given, which the text names."""


class Sample(Protocol):
    """The part of the package's sample that scenarios use."""

    messages: Any
    label: str | None
    reward: float | None
    remove_sample: bool


def expect_answered(sample: Sample | None, prompt: Messages) -> Sample:
    """Checks that the sample is the prompt followed by one assistant reply."""
    if sample is None:
        raise Unexpected("there is no sample")
    expect("prompt in the sample", list(sample.messages[:-1]), prompt)
    expect("role of the last message", sample.messages[-1]["role"], "assistant")
    return sample


def valid_request(**changes: Any) -> dict[str, Any]:
    """Returns a request that is valid in any generation, with changes; the value `...` removes a field."""
    request = {
        "rollout_id": fresh_id("raw"),
        "initial_messages": asking(PLEASE_FAIL),
        "chat_completions_url": "http://127.0.0.1:9/v1",
        "llm_api_key": None,
        "label": "5",
        **changes,
    }
    return {key: value for key, value in request.items() if value is not ...}


def invalid_bodies(**base: Any) -> dict[str, bytes]:
    """Returns bodies of `POST /rollout` that must be answered with 422, by their error."""

    def body(**changes: Any) -> bytes:
        return json.dumps(valid_request(**base, **changes)).encode()

    bodies = {
        "not JSON": b"{",
        "nothing": b"",
        "not an object": b"[]",
        "no messages": body(initial_messages=...),
        "messages not a list": body(initial_messages="hello"),
        "message not an object": body(initial_messages=["hello"]),
        "no chat URL": body(chat_completions_url=...),
        "empty chat key": body(llm_api_key=""),
        "label not text": body(label=5),
        "metadata not an object": body(metadata=[1]),
        "timeout not a number": body(agent_timeout_sec="soon"),
        "timeout NaN": body(agent_timeout_sec=float("nan")),
        "timeout infinite": body(grader_timeout_sec=float("inf")),
    }
    for wrong_id in ("", ".", "..", "a/b", "a\\b", "a\0b"):
        bodies[f"rollout_id {wrong_id!r}"] = body(rollout_id=wrong_id)
    return bodies


Scenario = Callable[[Any], Awaitable[dict[str, Any] | None]]


@dataclass
class Scenarios:
    """The scenarios of one driver, in the order of definition."""

    by_name: dict[str, Scenario]

    def add(self, scenario: Scenario) -> Scenario:
        self.by_name[scenario.__name__.replace("_", "-")] = scenario
        return scenario

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("base_url", help="the server under test")
        parser.add_argument(
            "--model-url",
            help="OpenAI-compatible base that answers arithmetic; by default a stand-in is started "
            "(and drive_d checks its requests)",
        )
        parser.add_argument("--api-key", help="the server's key, if it requires one")
        parser.add_argument("--count", type=int, default=32, help="rollouts in `happy`")
        parser.add_argument(
            "--scenario",
            action="append",
            choices=list(self.by_name),
            metavar="NAME",
            help="run only this one; may be repeated. One of: %(choices)s",
        )
        parser.add_argument(
            "--timeout",
            type=float,
            default=60.0,
            metavar="SECONDS",
            help="the timeout of a scenario",
        )
        parser.add_argument(
            "--full-at",
            type=int,
            metavar="N",
            help="the server answers 429 while it holds N rollouts, for full-is-waited-out",
        )
        parser.add_argument(
            "--original",
            action="store_true",
            help="the server is the package's own: allow its known quirks",
        )

    async def run(self, context: Any, args: argparse.Namespace) -> int:
        """Runs the requested scenarios; prints one line of JSON for each; returns the exit code."""
        failed = 0
        for name in args.scenario or self.by_name:
            ok: bool | None = True
            try:
                async with asyncio.timeout(args.timeout):
                    detail: Any = await self.by_name[name](context) or {}
            except NotRun as reason:
                # If it was requested by name, it counts as failed.
                ok, detail = (False if args.scenario else None), {"not_run": str(reason)}
            except Unexpected as error:
                ok, detail = False, {"unexpected": str(error)}
            except TimeoutError:
                ok, detail = False, {"unexpected": f"not done after {args.timeout} s"}
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                ok, detail = False, {"unexpected": f"{type(error).__name__}: {error}"}
            failed += ok is False
            print(json.dumps({"scenario": name, "ok": ok, "detail": detail}), flush=True)
        return 1 if failed else 0
