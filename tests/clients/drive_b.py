"""Tests a generation-B server like that generation's controllers (with osmosis-ai 0.2.31's types).

    python drive_b.py BASE_URL [--model-url URL] [--api-key K] [--count N] [--scenario NAME]…

The only published controller of B cannot be installed any more, so the one here imitates it: one address for all rollouts,
which two headers distinguish; a model that streams unless that is disabled; the first callback of each kind counts; a row
fails unless both report success, the samples are exactly those with model calls, and each that counts has a reward. The
messages are checked with the package's own types: they are B's, unchanged.
The server serves the workflow and grader of `cases.py`. Reports like `drive_d.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Otherwise the import of the package would download a price list, with retries if there is no network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import httpx
from harbor.models.trajectories import Trajectory
from osmosis_ai.rollout import (
    GraderCompleteRequest,
    RolloutCompleteRequest,
    RolloutInitRequest,
    RolloutInitResponse,
    RolloutSample,
)

import cases
from cases import NotRun, Scenarios, adding, asking, expect, expect_answered, fresh_id
from stand_in import Loopback, Model, Request

COMPLETED = "/v1/rollout/completed"
GRADED = "/v1/grader/completed"

SCENARIOS = Scenarios({})


@dataclass
class Row:
    """The controller's record of a rollout."""

    asked: dict[str, int] = field(default_factory=dict)
    callbacks: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    # Answers to the next callbacks of each path, before they are accepted.
    answers: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)

    def first(self, path: str) -> dict[str, Any] | None:
        return next((body for seen, body in self.callbacks if seen == path), None)

    def completion(self) -> RolloutCompleteRequest:
        return checked(RolloutCompleteRequest, self.first(COMPLETED))

    def graded(self) -> GraderCompleteRequest:
        return checked(GraderCompleteRequest, self.first(GRADED))

    def kinds(self) -> list[str]:
        return [path for path, _ in self.callbacks]

    def failure(self) -> str | None:
        """Returns the reason why the controller fails the row, if it does."""
        completion, graded = self.completion(), self.graded()
        for what, callback in (("rollout", completion), ("grader", graded)):
            if callback.status != "success":
                return f"{what} callback failed: {callback.err_message}"
        told, asked = set(graded.samples), set(self.asked)
        if told - asked:
            return f"samples that never asked the model: {sorted(told - asked)}"
        if not asked:
            return "no sample asked the model"
        if asked - told:
            return f"samples that are missing: {sorted(asked - told)}"
        without = [
            name
            for name, sample in graded.samples.items()
            if not sample.remove_sample and sample.reward is None
        ]
        return f"samples without a reward: {without}" if without else None

    def rewards(self) -> dict[str, float | None]:
        return {name: sample.reward for name, sample in self.graded().samples.items()}


def checked(model: Any, body: dict[str, Any] | None) -> Any:
    """Parses a body with the package's type, and checks that it has every field that the package writes."""
    expect(f"a {model.__name__}", body, lambda body: body is not None)
    assert body is not None
    wanted = set(model.model_fields)
    # B's types ignore unknown fields; a caller that may be of C gets an additional field.
    expect(f"fields of {model.__name__}", set(body) - {"sample"}, wanted)
    for sample in body.get("samples", {}).values():
        fields = set(RolloutSample.model_fields) - {"trajectory_messages"}
        expect("fields of a sample", set(sample), fields)
    return model.model_validate(body)


class Controller:
    """Chat route and callbacks of all rollouts at one address, with one key."""

    def __init__(self, model_url: str | None, http: httpx.AsyncClient) -> None:
        self.key = secrets.token_urlsafe(32)
        self.rows: dict[str, Row] = {}
        self.refused: list[tuple[str, int]] = []
        self._model = Model()
        self._model_url = model_url
        self._http = http
        self._arrived = asyncio.Condition()

    async def __call__(self, request: Request) -> tuple[int, Any]:
        status, body = await self._answer(request)
        if status in (400, 401, 404):
            self.refused.append((request.path, status))
        return status, body

    async def _answer(self, request: Request) -> tuple[int, Any]:
        if request.method != "POST" or request.path not in (COMPLETED, GRADED, "/chat/completions"):
            return 404, {"detail": "Not Found"}
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return 401, {"detail": "unauthorized"}
        if request.path == "/chat/completions":
            return await self._chat(request)
        return await self._callback(request)

    async def _chat(self, request: Request) -> tuple[int, Any]:
        names = [request.headers.get(name) for name in ("x-rollout-id", "x-sample-id")]
        if not all(names):
            return 400, {"detail": "missing required header(s)"}
        rollout_id, sample_id = names
        row = self.rows.get(rollout_id or "")
        if row is None or sample_id is None:
            return 500, {"detail": "rollout not found"}
        if request.json().get("stream", True):
            # The original streams here, which a caller that expects no stream cannot read.
            return 400, {"detail": "would be answered as a stream"}
        row.asked[sample_id] = row.asked.get(sample_id, 0) + 1
        if self._model_url is None:
            return await self._model(request)
        reply = await self._http.post(
            self._model_url + "/chat/completions",
            content=request.body,
            headers={"content-type": "application/json"},
        )
        return reply.status_code, reply.json()

    async def _callback(self, request: Request) -> tuple[int, Any]:
        body = request.json()
        row = self.rows.get(body.get("rollout_id"))
        if row is None:
            return 200, {"status": "ok"}
        async with self._arrived:
            row.callbacks.append((request.path, body))
            self._arrived.notify_all()
        answers = row.answers.get(request.path, [])
        return answers.pop(0) if answers else (200, {"status": "ok"})

    async def wait(self, row: Row, *paths: str) -> None:
        """Waits until a callback has arrived for each of these paths, counting repetitions."""
        async with self._arrived:
            await self._arrived.wait_for(
                lambda: all(row.kinds().count(path) >= paths.count(path) for path in paths)
            )


@dataclass
class Drive:
    """A run of the driver: the server under test, and the controller."""

    args: argparse.Namespace
    http: httpx.AsyncClient
    controller: Controller
    address: str

    def request(self, prompt: cases.Messages, name: str, **changes: Any) -> dict[str, Any]:
        """Returns a request of B's controller: with every field, null if empty."""
        request = {
            "rollout_id": fresh_id(name),
            "initial_messages": prompt,
            "label": None,
            "metadata": None,
            "chat_completions_url": self.address,
            "controller_api_key": self.controller.key,
            "completion_callback_url": self.address + COMPLETED,
            "grader_callback_url": self.address + GRADED,
            "agent_timeout_sec": 450.0,
            "grader_timeout_sec": 150.0,
            "extra_fields": None,
            **changes,
        }
        return {key: value for key, value in request.items() if value is not ...}

    async def post(self, request: dict[str, Any], row: Row | None = None) -> Row:
        """Requests a rollout, which must be accepted."""
        row = row or Row()
        self.controller.rows[RolloutInitRequest.model_validate(request).rollout_id] = row
        response = await self.http.post("/rollout", json=request)
        expect("admission", response.status_code // 100, 2)
        RolloutInitResponse.model_validate(response.json())
        expect("body of the admission", response.json(), {})
        return row

    async def run(self, prompt: cases.Messages, name: str, **changes: Any) -> Row:
        """Runs one row, from the request to its two callbacks, which must arrive in order and once each."""
        row = await self.post(self.request(prompt, name, **changes))
        await self.controller.wait(row, COMPLETED, GRADED)
        expect("callbacks", row.kinds(), [COMPLETED, GRADED])
        return row

    def trajectory(self, rollout_id: str, file: str) -> Trajectory:
        """Reads a file of the server with the package's type."""
        folder = Path(self.args.artifacts)
        if self.args.original:
            folder /= ".osmosis"
        return Trajectory.model_validate(json.loads((folder / rollout_id / file).read_text()))


def branching(text: str = cases.PLEASE_BRANCH) -> cases.Messages:
    return asking(f"{text}: Calculate 2 + 3.")


def told(row: Row) -> dict[str, Any]:
    graded = row.graded()
    return {
        "completion": row.completion().status,
        "grader": graded.status,
        "err_message": graded.err_message,
        "rewards": row.rewards(),
        "row": row.failure() or "success",
    }


def expect_success(row: Row, rewards: dict[str, float | None]) -> dict[str, Any]:
    expect("verdict of the controller", row.failure(), None)
    expect("rewards", row.rewards(), rewards)
    return told(row)


def expect_callback(callback: Any, status: str, message: Any = None, category: Any = None) -> None:
    name = type(callback).__name__
    expect(f"{name} status", callback.status, status)
    expect(f"{name} err_message", callback.err_message, message)
    expect(f"{name} err_category", callback.err_category, category)


def only_sample(row: Row) -> RolloutSample:
    samples = list(row.graded().samples.items())
    expect("samples", len(samples), 1)
    name, sample = samples[0]
    expect("id of the sample", sample.id, name)
    return sample


@SCENARIOS.add
async def happy(drive: Drive) -> dict[str, Any]:
    """Many concurrent rollouts, one sample each, each rewarded with 1.0 for its own sum."""

    async def one(number: int) -> None:
        prompt, label = adding(number, 3), str(number + 3)
        row = await drive.run(prompt, "happy", label=label)
        expect("verdict of the controller", row.failure(), None)
        sample = expect_answered(only_sample(row), prompt)
        expect("reward", (sample.reward, sample.label, sample.remove_sample), (1.0, None, False))
        expect("calls of the model", list(row.asked.values()), [1])

    refused_before = len(drive.controller.refused)
    await asyncio.gather(*(one(number) for number in range(drive.args.count)))
    expect("calls that the controller refused", drive.controller.refused[refused_before:], [])
    return {"rollouts": drive.args.count}


@SCENARIOS.add
async def several_samples(drive: Drive) -> dict[str, Any]:
    """Two samples, under the workflow's names."""
    row = await drive.run(branching(), "several", label="5")
    for sample in row.graded().samples.values():
        expect_answered(sample, branching())
    return expect_success(row, {cases.FIRST: 1.0, cases.SECOND: 1.0})


@SCENARIOS.add
async def wrong_label(drive: Drive) -> dict[str, Any]:
    row = await drive.run(branching(), "wrong", label="6")
    return expect_success(row, {cases.FIRST: 0.0, cases.SECOND: 0.0})


@SCENARIOS.add
async def graded_by_metadata(drive: Drive) -> dict[str, Any]:
    row = await drive.run(branching(), "metadata", metadata={"ground_truth": "5"})
    return expect_success(row, {cases.FIRST: 1.0, cases.SECOND: 1.0})


@SCENARIOS.add
async def empty_metadata_is_graded(drive: Drive) -> dict[str, Any]:
    row = await drive.run(branching(), "empty", metadata={})
    return expect_success(row, {cases.FIRST: 0.0, cases.SECOND: 0.0})


@SCENARIOS.add
async def nothing_to_grade_with(drive: Drive) -> dict[str, Any]:
    row = await drive.run(branching(), "no-truth")
    expect_callback(row.completion(), "success")
    expect_callback(row.graded(), "failure")
    expect("samples", row.graded().samples, {})
    return told(row)


@SCENARIOS.add
async def silent_sample(drive: Drive) -> dict[str, Any]:
    """A sample without model calls is not reported. The original reports it and fails its row."""
    row = await drive.run(branching(cases.PLEASE_HALF_BRANCH), "half", label="5")
    if drive.args.original:
        expect("row", row.failure(), cases.holding(cases.SILENT))
        return told(row)
    return expect_success(row, {cases.FIRST: 1.0})


@SCENARIOS.add
async def silent_rollout(drive: Drive) -> dict[str, Any]:
    """Without a model call the row fails, by the server's or the controller's decision."""
    row = await drive.run(asking(cases.PLEASE_STAY_SILENT), "silent", label="5")
    expect("row", row.failure(), cases.some_text)
    return told(row)


async def expect_workflow_failure(
    drive: Drive, prompt: cases.Messages, message: Any, category: str, **changes: Any
) -> dict[str, Any]:
    row = await drive.run(prompt, "failing", label="5", **changes)
    expect_callback(row.completion(), "failure", message, category)
    expect_callback(row.graded(), "failure")
    expect("samples", row.graded().samples, {})
    return told(row)


@SCENARIOS.add
async def workflow_fails(drive: Drive) -> dict[str, Any]:
    message = cases.holding(cases.WORKFLOW_FAILED)
    return await expect_workflow_failure(drive, asking(cases.PLEASE_FAIL), message, "agent_error")


@SCENARIOS.add
async def workflow_refuses(drive: Drive) -> dict[str, Any]:
    prompt, message = asking(cases.PLEASE_REFUSE), cases.holding(cases.WORKFLOW_REFUSED)
    return await expect_workflow_failure(drive, prompt, message, "validation_error")


@SCENARIOS.add
async def workflow_traps(drive: Drive) -> dict[str, Any]:
    """A crash is the agent's error and does not affect the next rollout."""
    prompt = asking(cases.PLEASE_TRAP)
    detail = await expect_workflow_failure(drive, prompt, cases.some_text, "agent_error")
    await several_samples(drive)
    return detail


@SCENARIOS.add
async def workflow_times_out(drive: Drive) -> dict[str, Any]:
    """The original does not enforce the caller's timeouts."""
    if drive.args.original:
        raise NotRun("this generation's own server enforces no time")
    prompt = asking(cases.PLEASE_SPIN)
    message = cases.starting("workflow exceeded its 0.5s deadline")
    return await expect_workflow_failure(drive, prompt, message, "timeout", agent_timeout_sec=0.5)


@SCENARIOS.add
async def workflow_registers_nothing(drive: Drive) -> dict[str, Any]:
    row = await drive.run(asking(cases.PLEASE_RETURN_NOTHING), "nothing", label="5")
    expect_callback(row.completion(), "success")
    message = (
        cases.one_of("No samples after grading")
        if drive.args.original
        else cases.starting(cases.NO_SAMPLE_STARTS)
    )
    expect_callback(row.graded(), "failure", message, "validation_error")
    expect("samples", row.graded().samples, {})
    return told(row)


async def expect_grader_failure(
    drive: Drive,
    label: str,
    message: Any,
    category: str,
    rewards: dict[str, float | None],
    **changes: Any,
) -> dict[str, Any]:
    """The samples are sent nevertheless, with the rewards that they have."""
    row = await drive.run(branching(), "failing-grader", label=label, **changes)
    expect_callback(row.completion(), "success")
    expect_callback(row.graded(), "failure", message, category)
    expect("rewards", row.rewards(), rewards)
    for sample in row.graded().samples.values():
        expect_answered(sample, branching())
    return told(row)


NONE_REWARDED = {cases.FIRST: None, cases.SECOND: None}


@SCENARIOS.add
async def grader_fails(drive: Drive) -> dict[str, Any]:
    message = cases.holding(cases.GRADER_FAILED)
    return await expect_grader_failure(
        drive, cases.FAIL_GRADING, message, "agent_error", NONE_REWARDED
    )


@SCENARIOS.add
async def grader_times_out(drive: Drive) -> dict[str, Any]:
    if drive.args.original:
        raise NotRun("this generation's own server enforces no time")
    message = "grader exceeded its 0.5s deadline"
    return await expect_grader_failure(
        drive, cases.SPIN_GRADING, message, "timeout", NONE_REWARDED, grader_timeout_sec=0.5
    )


@SCENARIOS.add
async def grader_leaves_one_out(drive: Drive) -> dict[str, Any]:
    message = f"Sample {cases.SECOND} has no reward after grading"
    rewards = {cases.FIRST: 1.0, cases.SECOND: None}
    return await expect_grader_failure(
        drive, cases.RATE_THE_FIRST, message, "validation_error", rewards
    )


@SCENARIOS.add
async def sample_is_removed(drive: Drive) -> dict[str, Any]:
    """The sample is reported with its reward, unlike in later generations."""
    row = await drive.run(branching(), "removed", label=cases.REMOVE_THE_SECOND)
    removed = {name: sample.remove_sample for name, sample in row.graded().samples.items()}
    expect("removed samples", removed, {cases.FIRST: False, cases.SECOND: True})
    return expect_success(row, {cases.FIRST: 1.0, cases.SECOND: 0.5})


@SCENARIOS.add
async def only_sample_is_removed(drive: Drive) -> dict[str, Any]:
    row = await drive.run(adding(2, 3), "all-removed", label=cases.REMOVE_SAMPLE)
    expect("verdict of the controller", row.failure(), None)
    sample = only_sample(row)
    expect("reward and removal", (sample.reward, sample.remove_sample), (1.0, True))
    return told(row)


@SCENARIOS.add
async def callbacks_are_retried(drive: Drive) -> dict[str, Any]:
    """A controller that fails once gets the same callback again, unchanged."""
    row = Row(answers={COMPLETED: [(500, {}), (429, {})], GRADED: [(503, {})]})
    await drive.post(drive.request(branching(), "retried", label="5"), row)
    await drive.controller.wait(row, *[COMPLETED] * 3, *[GRADED] * 2)
    expect("callbacks", row.kinds(), [COMPLETED] * 3 + [GRADED] * 2)
    for path in (COMPLETED, GRADED):
        bodies = [body for seen, body in row.callbacks if seen == path]
        expect(f"what was sent to {path}", all(body == bodies[0] for body in bodies), True)
    return expect_success(row, {cases.FIRST: 1.0, cases.SECOND: 1.0})


@SCENARIOS.add
async def completion_is_refused(drive: Drive) -> dict[str, Any]:
    """404 is final: one failure replaces the completion, then a bare grader failure, and no grading."""
    row = Row(answers={COMPLETED: [(404, {})]})
    await drive.post(drive.request(branching(), "refused", label="5"), row)
    await drive.controller.wait(row, GRADED)
    expect("callbacks", row.kinds(), [COMPLETED, COMPLETED, GRADED])
    second = checked(RolloutCompleteRequest, row.callbacks[1][1])
    expect_callback(second, "failure", "Internal server error")
    expect_callback(row.graded(), "failure")
    expect("samples", row.graded().samples, {})
    return {"callbacks": row.kinds()}


@SCENARIOS.add
async def samples_are_refused(drive: Drive) -> dict[str, Any]:
    """The end is a bare grader failure. The original also retracts its completion."""
    row = Row(answers={GRADED: [(422, {})]})
    await drive.post(drive.request(branching(), "unwanted", label="5"), row)
    await drive.controller.wait(row, GRADED, GRADED)
    between = [COMPLETED] if drive.args.original else []
    expect("callbacks", row.kinds(), [COMPLETED, GRADED, *between, GRADED])
    last = checked(GraderCompleteRequest, row.callbacks[-1][1])
    expect_callback(last, "failure")
    expect("samples", last.samples, {})
    return {"callbacks": row.kinds()}


@SCENARIOS.add
async def without_a_grader_url(drive: Drive) -> dict[str, Any]:
    """One callback; the next row's two show that no other comes before them."""
    row = await drive.post(
        drive.request(branching(), "ungraded", label="5", grader_callback_url=None)
    )
    await drive.controller.wait(row, COMPLETED)
    await several_samples(drive)
    expect("callbacks", row.kinds(), [COMPLETED])
    expect_callback(row.completion(), "success")
    return {"callbacks": row.kinds()}


@SCENARIOS.add
async def least_that_can_be_asked(drive: Drive) -> dict[str, Any]:
    """Only the required fields."""
    optional = ("metadata", "agent_timeout_sec", "grader_timeout_sec", "extra_fields")
    row = await drive.run(branching(), "least", label="5", **dict.fromkeys(optional, ...))
    return expect_success(row, {cases.FIRST: 1.0, cases.SECOND: 1.0})


@SCENARIOS.add
async def odd_ids(drive: Drive) -> dict[str, Any]:
    """Ids that are one path segment are accepted; the routing header names the rollout."""
    ids = [f"{name} {secrets.token_hex(4)}" for name in ("row 1:2", "100%", "a.b", "...")]
    for rollout_id in ids:
        row = await drive.run(branching(), "", label="5", rollout_id=rollout_id)
        expect_success(row, {cases.FIRST: 1.0, cases.SECOND: 1.0})
    return {"ids": ids}


@SCENARIOS.add
async def trajectories(drive: Drive) -> dict[str, Any]:
    """One document for each sample, with the controller's reports of its calls."""
    if drive.args.artifacts is None:
        raise NotRun("needs --artifacts, the directory in which the server keeps its files")
    call = {"prompt_tokens": 21, "completion_tokens": 4, "logprobs": [-0.5], "model_name": "engine"}
    report = {"model_name": "policy", "samples": {cases.SECOND: {"llm_call_metrics": [call]}}}
    row = Row(answers={COMPLETED: [(200, {"trajectory": report})]})
    request = drive.request(branching(), "kept", label="5", extra_fields={"row_index": 3})
    await drive.post(request, row)
    await drive.controller.wait(row, COMPLETED, GRADED)
    documents = {}
    for name in (cases.FIRST, cases.SECOND):
        file = f"trajectory-{name}.json"
        documents[name] = await eventually(
            lambda file=file: drive.trajectory(request["rollout_id"], file)
        )
    for name, document in documents.items():
        expect("trajectory_id", document.trajectory_id, f"{request['rollout_id']}/{name}")
        extra = (document.extra or {})["osmosis"]
        expect("sample_id", extra["sample_id"], name)
        expect("reward", extra["reward"], 1.0)
        expect("label", extra["label"], "5")
        expect("extra fields", extra["request_extra_fields"], {"row_index": 3})
        expect("model", document.agent.model_name, "policy")
        expect("steps", [step.source for step in document.steps], ["system", "user", "agent"])
    metrics = documents[cases.SECOND].steps[2].metrics
    expect(
        "metrics",
        metrics and metrics.model_dump(exclude_none=True),
        {k: v for k, v in call.items() if k != "model_name"},
    )
    expect("model of the step", documents[cases.SECOND].steps[2].model_name, "engine")
    sums = documents[cases.SECOND].final_metrics
    expect("sum of the prompt tokens", sums and sums.total_prompt_tokens, 21)
    return {"files": len(documents)}


async def eventually(read: Any) -> Any:
    """Retries: the original writes its files some time after the last callback."""
    while True:
        try:
            return read()
        except FileNotFoundError:
            await asyncio.sleep(0.02)


@SCENARIOS.add
async def invalid_requests(drive: Drive) -> dict[str, Any]:
    here = drive.request(asking(cases.PLEASE_FAIL), "invalid")

    def body(**changes: Any) -> bytes:
        request = {key: value for key, value in {**here, **changes}.items() if value is not ...}
        return json.dumps(request).encode()

    bodies = {
        "not JSON": b"{",
        "nothing": b"",
        "not an object": b"[]",
        "no messages": body(initial_messages=...),
        "messages not a list": body(initial_messages="hello"),
        "message not an object": body(initial_messages=["hello"]),
        "no chat URL": body(chat_completions_url=...),
        "completion URL not text": body(completion_callback_url=5),
        "label not text": body(label=5),
        "metadata not an object": body(metadata=[1]),
        "timeout not a number": body(agent_timeout_sec="soon"),
        "id not text": body(rollout_id=5),
    }
    for wrong_id in ("", ".", "..", "a/b", "a\\b", "a\0b"):
        bodies[f"rollout_id {wrong_id!r}"] = body(rollout_id=wrong_id)
    for what, content in bodies.items():
        headers = {"content-type": "application/json"}
        response = await drive.http.post("/rollout", content=content, headers=headers)
        expect(what, response.status_code, 422)
        expect(f"body for {what}", "detail" in response.json(), True)
    return {"bodies": len(bodies)}


@SCENARIOS.add
async def health(drive: Drive) -> dict[str, Any]:
    response = await drive.http.get("/health")
    expect("status code", response.status_code, 200)
    body = response.json()
    expect("status", body.get("status"), "ok")
    counts = body["concurrency"]
    expect("counts", sorted(counts), ["max_concurrent", "queued", "running"])
    return {"body": body}


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    SCENARIOS.add_arguments(parser)
    parser.add_argument(
        "--artifacts", metavar="DIR", help="the directory of the server's files, for `trajectories`"
    )
    args = parser.parse_args()
    async with AsyncExitStack() as stack:

        async def open_client(**options: Any) -> httpx.AsyncClient:
            limits = httpx.Limits(max_connections=None)
            client = httpx.AsyncClient(limits=limits, timeout=30, trust_env=False, **options)
            return await stack.enter_async_context(client)

        headers = {"authorization": f"Bearer {args.api_key}"} if args.api_key else {}
        http = await open_client(base_url=args.base_url.rstrip("/"), headers=headers)
        model_url = args.model_url.rstrip("/") if args.model_url else None
        controller = Controller(model_url, await open_client())
        loopback = await stack.enter_async_context(Loopback(controller))
        return await SCENARIOS.run(Drive(args, http, controller, loopback.url), args)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
