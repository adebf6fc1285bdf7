"""Tests a generation-C server with the package's own HttpRolloutDriver (osmosis-ai 0.3.2).

    python drive_c.py BASE_URL [--model-url URL] [--api-key K] [--count N] [--scenario NAME]…

The package's CallbackListener receives the callbacks and serves the chat route, which forwards calls to --model-url.
The server serves the workflow and grader of `cases.py`.
Reports like `drive_d.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import HTTPException
from osmosis_ai.rollout import (
    GraderCompleteRequest,
    RolloutCompleteRequest,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_ai.rollout.controller import CallbackListener, CallbackStore
from osmosis_ai.rollout.driver import RolloutOutcome, RolloutRunRequest
from osmosis_ai.rollout.http_driver import HttpRolloutDriver

import cases
from cases import NotRun, Scenarios, adding, asking, expect, expect_answered, fresh_id
from stand_in import Loopback, Model, Request

CHAT_KEY = "chat-key-of-this-run"
CALLBACK_KEY = "callback-key-of-this-run"

SCENARIOS = Scenarios({})

Callback = RolloutCompleteRequest | GraderCompleteRequest


class Bridge:
    """The listener's model: forwards calls to an OpenAI-compatible endpoint."""

    model = "stand-in"

    def __init__(self, model_url: str, http: httpx.AsyncClient) -> None:
        self._url = model_url + "/chat/completions"
        self._http = http

    async def complete(self, body: dict[str, Any], *, rollout_id: str) -> Any:
        response = await self._http.post(self._url, json={**body, "stream": False})
        response.raise_for_status()
        return response.json()


class RecordingStore(CallbackStore):
    """The package's store, which also records every callback in the order of arrival."""

    def __init__(self) -> None:
        super().__init__(on_terminal_commit=self._acknowledge)
        self.callbacks: dict[str, list[Callback]] = {}
        self.arrived = asyncio.Condition()
        # Answers the first completion and the first grader callback of these ids with 500.
        self.stumbles: set[str] = set()

    @staticmethod
    async def _acknowledge(_: Any) -> None:
        return None

    async def handle_completion(
        self, rollout_id: str, request: RolloutCompleteRequest
    ) -> dict[str, Any]:
        await self._note(rollout_id, request)
        return await super().handle_completion(rollout_id, request)

    async def handle_grader(
        self, rollout_id: str, request: GraderCompleteRequest
    ) -> dict[str, Any]:
        await self._note(rollout_id, request)
        return await super().handle_grader(rollout_id, request)

    async def _note(self, rollout_id: str, request: Callback) -> None:
        seen = self.callbacks.setdefault(rollout_id, [])
        async with self.arrived:
            seen.append(request)
            self.arrived.notify_all()
        first = sum(type(callback) is type(request) for callback in seen) == 1
        if first and rollout_id in self.stumbles:
            raise HTTPException(500, "a failure that the test requested")

    async def wait_for(
        self, rollout_id: str, enough: Callable[[list[Callback]], bool]
    ) -> list[Callback]:
        async with self.arrived:
            await self.arrived.wait_for(lambda: enough(self.callbacks.get(rollout_id, [])))
            return self.callbacks[rollout_id]


@dataclass
class Drive:
    """A run of the driver: the real driver, store and listener, and plain HTTP."""

    args: argparse.Namespace
    http: httpx.AsyncClient
    store: RecordingStore
    listener: CallbackListener
    make_driver: Callable[..., HttpRolloutDriver]
    driver: HttpRolloutDriver = field(init=False)

    def __post_init__(self) -> None:
        self.driver = self.make_driver()

    async def run(self, prompt: cases.Messages, name: str, **options: Any) -> Ended:
        options.setdefault("rollout_id", fresh_id(name))
        driver = options.pop("driver", self.driver)
        outcome = await driver.run(RolloutRunRequest(messages=prompt, **options))
        callbacks = self.store.callbacks.get(options["rollout_id"], [])
        return Ended(outcome, callbacks)

    async def post_raw(self, **changes: Any) -> httpx.Response:
        return await self.http.post("/rollout", json=self.raw(**changes))

    def raw(self, **changes: Any) -> dict[str, Any]:
        callback = {"completion_callback_url": "http://127.0.0.1:9/completion"}
        return cases.valid_request(**{**callback, **changes})


@dataclass(frozen=True)
class Ended:
    """The result of a rollout: the driver's outcome and the callbacks."""

    outcome: RolloutOutcome
    callbacks: list[Callback]

    @property
    def completion(self) -> RolloutCompleteRequest:
        found = [c for c in self.callbacks if isinstance(c, RolloutCompleteRequest)]
        expect("completion callbacks", len(found), 1)
        return found[0]

    @property
    def grader(self) -> GraderCompleteRequest:
        found = [c for c in self.callbacks if isinstance(c, GraderCompleteRequest)]
        expect("grader callbacks", len(found), 1)
        return found[0]

    def told(self) -> dict[str, Any]:
        def short(callback: Callback) -> dict[str, Any]:
            return {
                "status": callback.status,
                "err_message": callback.err_message,
                "err_category": callback.err_category,
            }

        sample = self.grader.sample
        return {
            "completion": short(self.completion),
            "grader": short(self.grader),
            "reward": sample.reward if sample else None,
        }

    def expect(
        self,
        completion: tuple[str, Any, Any],
        grader: tuple[str, Any, Any],
    ) -> dict[str, Any]:
        """Checks two callbacks in order. Each argument is (status, message, category)."""
        expect(
            "kinds of callbacks",
            [type(callback).__name__ for callback in self.callbacks],
            ["RolloutCompleteRequest", "GraderCompleteRequest"],
        )
        for what, callback, wanted in (
            ("completion", self.completion, completion),
            ("grader", self.grader, grader),
        ):
            status, message, category = wanted
            expect(f"{what} status", callback.status, status)
            expect(f"{what} err_message", callback.err_message, message)
            expect(f"{what} err_category", callback.err_category, category)
            expect(f"{what} rollout_id", callback.rollout_id, self.outcome.rollout_id)
        expect("outcome of the driver", self.outcome.status, grader[0])
        if grader[0] != "success" and self.grader.sample is not None:
            expect("reward of a failed rollout", self.grader.sample.reward, None)
        return self.told()

    def expect_reward(
        self, prompt: cases.Messages, reward: float | None, label: str | None
    ) -> dict[str, Any]:
        detail = self.expect(SUCCESS, SUCCESS)
        sample = expect_answered(self.grader.sample, prompt)
        expect("reward", sample.reward, reward)
        expect("label in the sample", sample.label, label)
        expect("remove_sample", sample.remove_sample, False)
        return detail


SUCCESS = ("success", None, None)
BARE_FAILURE = ("failure", None, None)


@SCENARIOS.add
async def happy(drive: Drive) -> dict[str, Any]:
    """Many concurrent rollouts, each rewarded with 1.0 for its own sum, two callbacks each."""

    async def one(number: int) -> None:
        prompt, label = adding(number, 3), str(number + 3)
        (await drive.run(prompt, "happy", label=label)).expect_reward(prompt, 1.0, label)

    await asyncio.gather(*(one(number) for number in range(drive.args.count)))
    return {"rollouts": drive.args.count}


@SCENARIOS.add
async def wrong_label(drive: Drive) -> dict[str, Any]:
    prompt = adding(2, 3)
    return (await drive.run(prompt, "wrong", label="6")).expect_reward(prompt, 0.0, "6")


@SCENARIOS.add
async def graded_by_metadata(drive: Drive) -> dict[str, Any]:
    prompt = adding(2, 3)
    ended = await drive.run(prompt, "metadata", metadata={"ground_truth": "5"})
    return ended.expect_reward(prompt, 1.0, None)


@SCENARIOS.add
async def empty_metadata_is_graded(drive: Drive) -> dict[str, Any]:
    prompt = adding(2, 3)
    return (await drive.run(prompt, "empty", metadata={})).expect_reward(prompt, 0.0, None)


@SCENARIOS.add
async def nothing_to_grade_with(drive: Drive) -> dict[str, Any]:
    ended = await drive.run(adding(2, 3), "no-truth")
    expect("sample", ended.grader.sample, None)
    return ended.expect(SUCCESS, BARE_FAILURE)


async def expect_workflow_failure(
    drive: Drive,
    prompt: cases.Messages,
    message: Any,
    category: RolloutErrorCategory,
    **options: Any,
) -> dict[str, Any]:
    """The completion has the reason; the grader callback is bare."""
    ended = await drive.run(prompt, "failing", label="5", **options)
    expect("sample", ended.grader.sample, None)
    return ended.expect(("failure", message, category), BARE_FAILURE)


@SCENARIOS.add
async def workflow_fails(drive: Drive) -> dict[str, Any]:
    return await expect_workflow_failure(
        drive,
        asking(cases.PLEASE_FAIL),
        cases.holding(cases.WORKFLOW_FAILED),
        RolloutErrorCategory.AGENT_ERROR,
    )


@SCENARIOS.add
async def workflow_refuses(drive: Drive) -> dict[str, Any]:
    return await expect_workflow_failure(
        drive,
        asking(cases.PLEASE_REFUSE),
        cases.holding(cases.WORKFLOW_REFUSED),
        RolloutErrorCategory.VALIDATION_ERROR,
    )


@SCENARIOS.add
async def workflow_traps(drive: Drive) -> dict[str, Any]:
    """A crash is the agent's error and does not affect the next rollout."""
    detail = await expect_workflow_failure(
        drive, asking(cases.PLEASE_TRAP), cases.some_text, RolloutErrorCategory.AGENT_ERROR
    )
    await wrong_label(drive)
    return detail


@SCENARIOS.add
async def workflow_times_out(drive: Drive) -> dict[str, Any]:
    return await expect_workflow_failure(
        drive,
        asking(cases.PLEASE_SPIN),
        cases.starting("workflow exceeded its 0.5s deadline"),
        RolloutErrorCategory.TIMEOUT,
        agent_timeout_sec=0.5,
    )


@SCENARIOS.add
async def no_time_at_all(drive: Drive) -> dict[str, Any]:
    return await expect_workflow_failure(
        drive,
        adding(2, 3),
        cases.starting("workflow exceeded its 0.0s deadline"),
        RolloutErrorCategory.TIMEOUT,
        agent_timeout_sec=0,
    )


@SCENARIOS.add
async def workflow_returns_nothing(drive: Drive) -> dict[str, Any]:
    ended = await drive.run(asking(cases.PLEASE_RETURN_NOTHING), "nothing", label="5")
    expect("sample", ended.grader.sample, None)
    category = RolloutErrorCategory.VALIDATION_ERROR
    return ended.expect(SUCCESS, ("failure", cases.starting(cases.NO_SAMPLE_STARTS), category))


async def expect_grader_failure(
    drive: Drive, label: str, message: Any, category: RolloutErrorCategory, **options: Any
) -> dict[str, Any]:
    """The completion is a success; the grader callback has the reason, with the sample and no reward."""
    prompt = adding(2, 3)
    ended = await drive.run(prompt, "failing-grader", label=label, **options)
    expect_answered(ended.grader.sample, prompt)
    expect("error of the outcome", ended.outcome.error, message)
    return ended.expect(SUCCESS, ("failure", message, category))


@SCENARIOS.add
async def grader_fails(drive: Drive) -> dict[str, Any]:
    return await expect_grader_failure(
        drive,
        cases.FAIL_GRADING,
        cases.holding(cases.GRADER_FAILED),
        RolloutErrorCategory.AGENT_ERROR,
    )


@SCENARIOS.add
async def grader_times_out(drive: Drive) -> dict[str, Any]:
    return await expect_grader_failure(
        drive,
        cases.SPIN_GRADING,
        "grader exceeded its 0.5s deadline",
        RolloutErrorCategory.TIMEOUT,
        grader_timeout_sec=0.5,
    )


@SCENARIOS.add
async def grader_gives_no_reward(drive: Drive) -> dict[str, Any]:
    return await expect_grader_failure(
        drive, cases.GIVE_NO_REWARD, cases.NO_REWARD, RolloutErrorCategory.VALIDATION_ERROR
    )


@SCENARIOS.add
async def sample_is_removed(drive: Drive) -> dict[str, Any]:
    """A success, without its reward."""
    prompt = adding(2, 3)
    ended = await drive.run(prompt, "removed", label=cases.REMOVE_SAMPLE)
    detail = ended.expect(SUCCESS, SUCCESS)
    sample = expect_answered(ended.grader.sample, prompt)
    expect("remove_sample", sample.remove_sample, True)
    expect("reward", sample.reward, None)
    return detail


@SCENARIOS.add
async def callbacks_are_retried(drive: Drive) -> dict[str, Any]:
    """A listener that answers 500 once gets the same callback again."""
    rollout_id, prompt = fresh_id("retried"), adding(2, 3)
    drive.store.stumbles.add(rollout_id)
    ended = await drive.run(prompt, "", rollout_id=rollout_id, label="5")
    expect("outcome of the driver", ended.outcome.status, RolloutStatus.SUCCESS)
    expect("callbacks", len(ended.callbacks), 4)
    completion, completion_again, grader, grader_again = ended.callbacks
    expect("completion, sent again", completion_again, completion)
    expect("grader callback, sent again", grader_again, grader)
    return {"callbacks": [type(callback).__name__ for callback in ended.callbacks]}


@SCENARIOS.add
async def callback_refused(drive: Drive) -> dict[str, Any]:
    """404 is final: nothing is sent a third time, and the end is a bare grader failure."""
    rollout_id = fresh_id("unregistered")
    response = await drive.post_raw(
        rollout_id=rollout_id,
        initial_messages=adding(2, 3),
        chat_completions_url=drive.listener.chat_completions_url(rollout_id),
        llm_api_key=CHAT_KEY,
        controller_api_key=CALLBACK_KEY,
        completion_callback_url=drive.listener.completion_url(rollout_id),
        grader_callback_url=drive.listener.grader_url(rollout_id),
    )
    expect("admission", response.status_code, 202)
    callbacks = await drive.store.wait_for(
        rollout_id, lambda seen: any(isinstance(c, GraderCompleteRequest) for c in seen)
    )
    completions = [c for c in callbacks if isinstance(c, RolloutCompleteRequest)]
    expect("completions", len(completions), cases.one_of(1, 2))
    grader = callbacks[-1]
    assert isinstance(grader, GraderCompleteRequest)
    expect("grader status and sample", (grader.status, grader.sample), ("failure", None))
    return {"completions": [(c.status, c.err_message) for c in completions]}


@SCENARIOS.add
async def controller_gives_up(drive: Drive) -> dict[str, Any]:
    """The driver's own timeout expires; it cancels, and the rollout is stopped without callbacks."""
    rollout_id = fresh_id("given-up")
    driver = drive.make_driver(callback_timeout_sec=1.0)
    ended = await drive.run(
        asking(cases.PLEASE_SPIN), "", rollout_id=rollout_id, label="5", driver=driver
    )
    expect("error of the outcome", ended.outcome.error, "callback_timeout")
    return await expect_stopped(drive, rollout_id)


@SCENARIOS.add
async def controller_cancels(drive: Drive) -> dict[str, Any]:
    rollout_id, before = fresh_id("cancelled"), await held_now(drive)
    task = asyncio.create_task(
        drive.run(asking(cases.PLEASE_SPIN), "", rollout_id=rollout_id, label="5")
    )
    await until_more_held_than(drive, before)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    expect("the driver's task", task.cancelled(), True)
    return await expect_stopped(drive, rollout_id)


async def held_now(drive: Drive) -> int:
    """Returns the number of rollouts in the server's health report."""
    counts = (await drive.http.get("/health")).json()["concurrency"]
    return int(counts["running"]) + int(counts["queued"])


async def until_more_held_than(drive: Drive, before: int) -> None:
    """Waits until the health report shows a new rollout: C has no message about the start of one."""
    while await held_now(drive) <= before:
        await asyncio.sleep(0.02)


async def expect_stopped(drive: Drive, rollout_id: str) -> dict[str, Any]:
    """Checks that the driver's cancellation worked: the rollout has ended, and no callback arrived."""
    response = await drive.http.post("/rollout/cancel", json={"ids": [rollout_id]})
    wanted = {} if drive.args.original else {rollout_id: "not_found"}
    expect("disposition of a second cancel", response.json(), {"dispositions": wanted})
    expect("callbacks", drive.store.callbacks.get(rollout_id, []), [])
    return {"second_cancel": response.json()}


@SCENARIOS.add
async def full_is_waited_out(drive: Drive) -> dict[str, Any]:
    """A full server sends a retry time, which the driver respects."""
    if drive.args.full_at is None:
        raise NotRun("needs --full-at, with a server that refuses when it holds that many")
    spin, before = asking(cases.PLEASE_SPIN), await held_now(drive)
    fillers = [
        asyncio.create_task(drive.run(spin, "filler", label="5", agent_timeout_sec=2))
        for _ in range(drive.args.full_at - before)
    ]
    await until_more_held_than(drive, drive.args.full_at - 1)
    refused = await drive.post_raw()
    expect("status code when full", refused.status_code, 429)
    retry_after = refused.headers.get("retry-after")
    expect("Retry-After", float(retry_after or "nan") > 0, True)
    prompt = adding(2, 3)
    detail = (await drive.run(prompt, "patient", label="5")).expect_reward(prompt, 1.0, "5")
    await asyncio.gather(*fillers)
    return {"retry_after": retry_after, "body": refused.json(), **detail}


@SCENARIOS.add
async def server_makes_an_id(drive: Drive) -> dict[str, Any]:
    """Without rollout_id the body has a generated one of 32 hex digits. No grader URL: one callback."""
    arrived: asyncio.Queue[Request] = asyncio.Queue()

    async def take(request: Request) -> tuple[int, Any]:
        await arrived.put(request)
        return 200, {}

    made = []
    async with Loopback(take) as controller:
        for without in (..., None):
            response = await drive.post_raw(
                rollout_id=without, completion_callback_url=controller.url + "/done"
            )
            expect("admission", (response.status_code, response.json()), (202, {}))
            request = await arrived.get()
            body = request.json()
            expect(
                "fields of a completion", sorted(body), sorted(RolloutCompleteRequest.model_fields)
            )
            expect("status", body["status"], "failure")
            expect("digits of the id", len(bytes.fromhex(body["rollout_id"])), 16)
            expect("key without one given", request.headers.get("authorization"), None)
            made.append(body["rollout_id"])
        expect("callbacks left", arrived.qsize(), 0)
    return {"ids": made}


@SCENARIOS.add
async def chat_key_falls_back(drive: Drive) -> dict[str, Any]:
    """Without llm_api_key the chat call carries controller_api_key."""
    keys: asyncio.Queue[tuple[str, str | None]] = asyncio.Queue()

    async def take(request: Request) -> tuple[int, Any]:
        await keys.put((request.path, request.headers.get("authorization")))
        return await Model()(request) if request.path.startswith("/v1/") else (200, {})

    async with Loopback(take) as controller:
        response = await drive.post_raw(
            initial_messages=adding(2, 3),
            chat_completions_url=controller.url + "/v1",
            llm_api_key=None,
            controller_api_key=CALLBACK_KEY,
            completion_callback_url=controller.url + "/done",
            grader_callback_url=controller.url + "/graded",
        )
        expect("admission", response.status_code, 202)
        for path in ("/v1/chat/completions", "/done", "/graded"):
            expect("call with its key", await keys.get(), (path, f"Bearer {CALLBACK_KEY}"))
    return {}


@SCENARIOS.add
async def invalid_requests(drive: Drive) -> dict[str, Any]:
    bodies = cases.invalid_bodies(completion_callback_url="http://127.0.0.1:9/completion")
    for what, body in bodies.items():
        # One connection each: the original closes its connection after a 500.
        headers = {"content-type": "application/json", "connection": "close"}
        response = await drive.http.post("/rollout", content=body, headers=headers)
        allowed = (
            {422, 500}
            if drive.args.original and what in ("timeout NaN", "timeout infinite")
            else {422}
        )
        expect(what, response.status_code, cases.one_of(*allowed))
        if response.status_code == 422:
            expect(f"body for {what}", "detail" in response.json(), True)
    cancels: list[Any] = [
        {},
        {"ids": ["a"], "prefix": "a"},
        {"ids": [], "all": True},
        {"all": False},
    ]
    for request in cancels:
        response = await drive.http.post("/rollout/cancel", json=request)
        expect(f"cancel with {request}", response.status_code, 422)
    return {"bodies": len(bodies)}


@SCENARIOS.add
async def status_of_the_unknown(drive: Drive) -> dict[str, Any]:
    rollout_id = fresh_id("nobody")
    response = await drive.http.get(f"/rollout/{rollout_id}/status")
    expect("status code", response.status_code, 200)
    wanted = {"rollout_id": rollout_id, "status": "unknown", "reward": None, "err_message": None}
    expect("body", response.json(), wanted)
    return wanted


@SCENARIOS.add
async def health(drive: Drive) -> dict[str, Any]:
    response = await drive.http.get("/health")
    expect("status code", response.status_code, 200)
    body = response.json()
    expect("status", body.get("status"), "ok")
    capacity = body["concurrency"]["max_concurrent"]
    expect("advertised capacity", isinstance(capacity, int) and capacity > 0, True)
    return {"body": body}


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    SCENARIOS.add_arguments(parser)
    args = parser.parse_args()
    base_url = args.base_url.rstrip("/")
    async with AsyncExitStack() as stack:
        model_url = args.model_url
        if model_url is None:
            model_url = (await stack.enter_async_context(Loopback(Model()))).url + "/v1"

        async def open_client(**options: Any) -> httpx.AsyncClient:
            limits = httpx.Limits(max_connections=None)
            client = httpx.AsyncClient(limits=limits, timeout=30, trust_env=False, **options)
            return await stack.enter_async_context(client)

        headers = {"authorization": f"Bearer {args.api_key}"} if args.api_key else {}
        http = await open_client(base_url=base_url, headers=headers)
        driver_http = await open_client(headers=headers)
        store = RecordingStore()
        listener = CallbackListener(
            store,
            auth_token=CALLBACK_KEY,
            bridge=Bridge(model_url.rstrip("/"), await open_client()),  # type: ignore[arg-type]
            bridge_token=CHAT_KEY,
        )
        await stack.enter_async_context(listener)

        def make_driver(**options: Any) -> HttpRolloutDriver:
            return HttpRolloutDriver(
                rollout_base_url=base_url,
                callback_store=store,
                completion_url_for=listener.completion_url,
                grader_url_for=listener.grader_url,
                chat_completions_url_for=listener.chat_completions_url,
                chat_api_key=CHAT_KEY,
                controller_api_key=CALLBACK_KEY,
                http_client=driver_http,
                fresh_cancel_client=not args.api_key,
                admission_timeout_sec=args.timeout,
                **options,
            )

        drive = Drive(args, http, store, listener, make_driver)
        return await SCENARIOS.run(drive, args)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
