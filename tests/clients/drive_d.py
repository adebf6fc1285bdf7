"""Tests a generation-D server with the package's own RolloutClient (osmosis-ai 0.3.7).

    python drive_d.py BASE_URL [--model-url URL] [--api-key K] [--count N] [--scenario NAME]…

The server serves the workflow and grader of `cases.py`. Every scenario prints one line, {"scenario", "ok", "detail"};
`ok` is null if a required option is missing. The exit code is 1 if one failed. --timeout is the limit of a scenario in
seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
from osmosis_ai.rollout import RolloutErrorCategory, RolloutResultResponse, RolloutStatus
from osmosis_ai.rollout.client import RolloutClient, RolloutHandle, RolloutProtocolError
from osmosis_ai.rollout.types import POLLING_LEASE_HEADER

import cases
from cases import NotRun, Scenarios, Unexpected, adding, asking, expect, expect_answered, fresh_id
from stand_in import Loopback, Model

CHAT_KEY = "chat-key-of-this-run"

SCENARIOS = Scenarios({})


@dataclass
class Drive:
    """A run of the driver: the real client, plain HTTP, and the model."""

    args: argparse.Namespace
    base_url: str
    model_url: str
    client: RolloutClient
    http: httpx.AsyncClient
    stand_in: Model | None
    stack: AsyncExitStack = field(repr=False)

    async def start(self, prompt: cases.Messages, name: str, **options: Any) -> RolloutHandle:
        options.setdefault("rollout_id", fresh_id(name))
        options.setdefault("chat_completions_url", self.model_url)
        return await self.client.run_rollout_async(
            initial_messages=prompt, llm_api_key=CHAT_KEY, **options
        )

    async def run(self, prompt: cases.Messages, name: str, **options: Any) -> RolloutResultResponse:
        return await (await self.start(prompt, name, **options))

    async def cancel(self, rollout_id: str) -> str:
        return (await self.client.cancel_rollout(rollout_id)).dispositions[rollout_id]

    async def health(self) -> dict[str, Any]:
        return await self.client.health()

    def other_client(self, **options: Any) -> RolloutClient:
        client = RolloutClient(url=self.base_url, **options)
        self.stack.push_async_callback(client.aclose)
        return client


def told(result: RolloutResultResponse) -> dict[str, Any]:
    """Returns a short form of a result, for the report."""
    return {
        "status": result.status,
        "reward": result.sample.reward if result.sample else None,
        "err_message": result.err_message,
        "err_category": result.err_category,
    }


def expect_result(
    result: RolloutResultResponse, status: RolloutStatus, message: Any = None, category: Any = None
) -> dict[str, Any]:
    expect("status", result.status, status)
    expect("err_message", result.err_message, message)
    expect("err_category", result.err_category, category)
    if status is not RolloutStatus.SUCCESS and result.sample is not None:
        expect("reward of a failed rollout", result.sample.reward, None)
    return told(result)


def expect_reward(
    result: RolloutResultResponse, prompt: cases.Messages, reward: float | None, label: str | None
) -> dict[str, Any]:
    expect_result(result, RolloutStatus.SUCCESS)
    sample = expect_answered(result.sample, prompt)
    expect("reward", sample.reward, reward)
    expect("label in the sample", sample.label, label)
    expect("remove_sample", sample.remove_sample, False)
    return told(result)


async def expect_refused(action: Any, status_code: int) -> str:
    """Awaits `action`, which the client must report as refused with `status_code`."""
    try:
        await action
    except RolloutProtocolError as error:
        expect("status code that the client reports", error.status_code, status_code)
        return str(error)
    raise Unexpected(f"accepted, wanted {status_code}")


@SCENARIOS.add
async def happy(drive: Drive) -> dict[str, Any]:
    """Many concurrent rollouts, each rewarded with 1.0 for its own sum."""
    asked_before = len(drive.stand_in.requests) if drive.stand_in else 0

    async def one(number: int) -> None:
        prompt, label = adding(number, 3), str(number + 3)
        expect_reward(await drive.run(prompt, "happy", label=label), prompt, 1.0, label)

    await asyncio.gather(*(one(number) for number in range(drive.args.count)))
    if drive.stand_in is not None:
        calls = drive.stand_in.requests[asked_before:]
        expect("chat calls", len(calls), drive.args.count)
        for call in calls:
            expect("key of a chat call", call.headers.get("authorization"), f"Bearer {CHAT_KEY}")
            expect("path of a chat call", call.path, "/v1/chat/completions")
            expect("model of a chat call", call.json().get("model"), "osmosis-rollout")
    return {"rollouts": drive.args.count, "calls_checked": drive.stand_in is not None}


@SCENARIOS.add
async def wrong_label(drive: Drive) -> dict[str, Any]:
    prompt = adding(2, 3)
    return expect_reward(await drive.run(prompt, "wrong", label="6"), prompt, 0.0, "6")


@SCENARIOS.add
async def ungraded(drive: Drive) -> dict[str, Any]:
    prompt = adding(2, 3)
    result = await drive.run(prompt, "ungraded", label="5", grade=False)
    return expect_reward(result, prompt, None, "5")


@SCENARIOS.add
async def graded_by_metadata(drive: Drive) -> dict[str, Any]:
    prompt = adding(2, 3)
    result = await drive.run(prompt, "metadata", metadata={"ground_truth": "5"})
    return expect_reward(result, prompt, 1.0, None)


@SCENARIOS.add
async def empty_metadata_is_graded(drive: Drive) -> dict[str, Any]:
    prompt = adding(2, 3)
    return expect_reward(await drive.run(prompt, "empty", metadata={}), prompt, 0.0, None)


@SCENARIOS.add
async def nothing_to_grade_with(drive: Drive) -> dict[str, Any]:
    result = await drive.run(adding(2, 3), "no-truth")
    expect("sample", result.sample, None)
    return expect_result(result, RolloutStatus.FAILURE)


@SCENARIOS.add
async def workflow_fails(drive: Drive) -> dict[str, Any]:
    result = await drive.run(asking(cases.PLEASE_FAIL), "fail", label="5")
    return expect_result(
        result,
        RolloutStatus.FAILURE,
        cases.holding(cases.WORKFLOW_FAILED),
        RolloutErrorCategory.AGENT_ERROR,
    )


@SCENARIOS.add
async def workflow_refuses(drive: Drive) -> dict[str, Any]:
    result = await drive.run(asking(cases.PLEASE_REFUSE), "refuse", label="5")
    return expect_result(
        result,
        RolloutStatus.FAILURE,
        cases.holding(cases.WORKFLOW_REFUSED),
        RolloutErrorCategory.VALIDATION_ERROR,
    )


@SCENARIOS.add
async def workflow_traps(drive: Drive) -> dict[str, Any]:
    """A crash is the agent's error and does not affect the next rollout."""
    result = await drive.run(asking(cases.PLEASE_TRAP), "trap", label="5")
    detail = expect_result(
        result, RolloutStatus.FAILURE, cases.some_text, RolloutErrorCategory.AGENT_ERROR
    )
    await wrong_label(drive)
    return detail


@SCENARIOS.add
async def workflow_returns_nothing(drive: Drive) -> dict[str, Any]:
    result = await drive.run(asking(cases.PLEASE_RETURN_NOTHING), "nothing", label="5")
    expect("sample", result.sample, None)
    return expect_result(
        result,
        RolloutStatus.FAILURE,
        cases.starting(cases.NO_SAMPLE_STARTS),
        RolloutErrorCategory.VALIDATION_ERROR,
    )


@SCENARIOS.add
async def nothing_ungraded_is_success(drive: Drive) -> dict[str, Any]:
    result = await drive.run(asking(cases.PLEASE_RETURN_NOTHING), "nothing", label="5", grade=False)
    expect("sample", result.sample, None)
    return expect_result(result, RolloutStatus.SUCCESS)


@SCENARIOS.add
async def workflow_times_out(drive: Drive) -> dict[str, Any]:
    result = await drive.run(asking(cases.PLEASE_SPIN), "spin", label="5", agent_timeout_sec=0.5)
    return expect_result(
        result,
        RolloutStatus.FAILURE,
        cases.starting("workflow exceeded its 0.5s deadline"),
        RolloutErrorCategory.TIMEOUT,
    )


@SCENARIOS.add
async def no_time_at_all(drive: Drive) -> dict[str, Any]:
    """Zero and negative values are expired deadlines, not invalid ones."""
    detail: dict[str, Any] = {}
    for seconds in (0, -1):
        result = await drive.run(adding(2, 3), "late", label="5", agent_timeout_sec=seconds)
        detail[str(seconds)] = expect_result(
            result,
            RolloutStatus.FAILURE,
            cases.starting(f"workflow exceeded its {seconds:.1f}s deadline"),
            RolloutErrorCategory.TIMEOUT,
        )
    return detail


@SCENARIOS.add
async def model_is_unreachable(drive: Drive) -> dict[str, Any]:
    """A failure with a message, at the latest at the deadline."""
    result = await drive.run(
        adding(2, 3),
        "no-model",
        label="5",
        chat_completions_url="http://127.0.0.1:9/v1",
        agent_timeout_sec=5,
    )
    known = cases.one_of(
        RolloutErrorCategory.AGENT_ERROR,
        RolloutErrorCategory.HTTP_ERROR,
        RolloutErrorCategory.TIMEOUT,
    )
    return expect_result(result, RolloutStatus.FAILURE, cases.some_text, known)


@SCENARIOS.add
async def grader_fails(drive: Drive) -> dict[str, Any]:
    """The sample is returned without a reward."""
    prompt = adding(2, 3)
    result = await drive.run(prompt, "grader-fail", label=cases.FAIL_GRADING)
    expect_answered(result.sample, prompt)
    return expect_result(
        result,
        RolloutStatus.FAILURE,
        cases.holding(cases.GRADER_FAILED),
        RolloutErrorCategory.AGENT_ERROR,
    )


@SCENARIOS.add
async def grader_times_out(drive: Drive) -> dict[str, Any]:
    prompt = adding(2, 3)
    result = await drive.run(
        prompt, "grader-spin", label=cases.SPIN_GRADING, grader_timeout_sec=0.5
    )
    expect_answered(result.sample, prompt)
    return expect_result(
        result,
        RolloutStatus.FAILURE,
        "grader exceeded its 0.5s deadline",
        RolloutErrorCategory.TIMEOUT,
    )


@SCENARIOS.add
async def grader_gives_no_reward(drive: Drive) -> dict[str, Any]:
    prompt = adding(2, 3)
    result = await drive.run(prompt, "no-reward", label=cases.GIVE_NO_REWARD)
    expect_answered(result.sample, prompt)
    return expect_result(
        result, RolloutStatus.FAILURE, cases.NO_REWARD, RolloutErrorCategory.VALIDATION_ERROR
    )


@SCENARIOS.add
async def sample_is_removed(drive: Drive) -> dict[str, Any]:
    """A success, without its reward."""
    prompt = adding(2, 3)
    result = await drive.run(prompt, "removed", label=cases.REMOVE_SAMPLE)
    detail = expect_result(result, RolloutStatus.SUCCESS)
    sample = expect_answered(result.sample, prompt)
    expect("remove_sample", sample.remove_sample, True)
    expect("reward", sample.reward, None)
    return detail


@SCENARIOS.add
async def states_are_told(drive: Drive) -> dict[str, Any]:
    """The client sees the phase of a rollout."""
    handle = await drive.start(adding(2, 3), "states", label=cases.SPIN_GRADING)
    expect("status after admission", handle.status, RolloutStatus.QUEUED)
    grading = await handle.wait_for_grading()
    expect("status while the grader runs", grading, RolloutStatus.GRADING)
    disposition = await drive.cancel(handle.rollout_id)
    return {
        "disposition": disposition,
        **expect_result(await handle, RolloutStatus.CANCELLED, cancel_message),
    }


def cancel_message(actual: Any) -> bool:
    """null or 'cancelled'"""
    return actual in (None, "cancelled")


@SCENARIOS.add
async def cancel(drive: Drive) -> dict[str, Any]:
    """The client learns immediately that the rollout runs, and that it was cancelled."""
    handle = await drive.start(asking(cases.PLEASE_SPIN), "cancel", label="5")
    # The original may answer only when its long poll ends.
    async with asyncio.timeout(35 if drive.args.original else 5):
        expect("status", await handle.wait_for_running(), RolloutStatus.RUNNING)
    expect("disposition", await drive.cancel(handle.rollout_id), "cancelled_running")
    async with asyncio.timeout(5):
        result = await handle
    expect("sample", result.sample, None)
    expect("disposition of a finished rollout", await drive.cancel(handle.rollout_id), "not_found")
    expect("disposition of an unknown rollout", await drive.cancel(fresh_id("nobody")), "not_found")
    return expect_result(result, RolloutStatus.CANCELLED, cancel_message)


@SCENARIOS.add
async def cancel_by_prefix(drive: Drive) -> dict[str, Any]:
    prefix = fresh_id("prefix")
    handles = [
        await drive.start(asking(cases.PLEASE_SPIN), "", rollout_id=f"{prefix}-{number}", label="5")
        for number in range(2)
    ]
    response = await drive.http.post("/rollout/cancel", json={"prefix": prefix + "-"})
    dispositions = response.json()["dispositions"]
    expect("ids cancelled", sorted(dispositions), sorted(h.rollout_id for h in handles))
    for handle in handles:
        expect_result(await handle, RolloutStatus.CANCELLED, cancel_message)
    return {"dispositions": sorted(set(dispositions.values()))}


@SCENARIOS.add
async def duplicate_id(drive: Drive) -> dict[str, Any]:
    """An id is refused while its rollout runs and while its result is stored; the rollout is not affected."""
    handle = await drive.start(asking(cases.PLEASE_SPIN), "twice", label="5")
    again = {"rollout_id": handle.rollout_id, "label": "5"}
    message = await expect_refused(drive.start(adding(2, 3), "", **again), 409)
    await drive.cancel(handle.rollout_id)
    expect_result(await handle, RolloutStatus.CANCELLED, cancel_message)
    await expect_refused(drive.start(adding(2, 3), "", **again), 409)
    return {"client_says": message}


@SCENARIOS.add
async def odd_ids(drive: Drive) -> dict[str, Any]:
    """Any single path segment is an id, if the client can put it into a path."""
    odd = ["with space", "colon:and;comma,", "tilde~plus+at@", "ünï-日本", "x" * 200]
    for rollout_id in (f"{fresh_id('odd')}-{name}" for name in odd):
        prompt = adding(2, 3)
        expect_reward(
            await drive.run(prompt, "", rollout_id=rollout_id, label="5"), prompt, 1.0, "5"
        )
    return {"ids": odd[:-1]}


@SCENARIOS.add
async def unknown_and_foreign(drive: Drive) -> dict[str, Any]:
    """404 for an unknown id, 403 for another rollout's lease, 422 without one."""
    unknown = await drive.http.get(
        f"/rollout/{fresh_id('nobody')}/result", headers={POLLING_LEASE_HEADER: "token"}
    )
    expect("unknown id", unknown.status_code, 404)
    request = cases.valid_request()
    admission = await drive.http.post("/rollout", json=request)
    expect("admission", admission.status_code, 202)
    path = f"/rollout/{request['rollout_id']}/result"
    foreign = await drive.http.get(path, headers={POLLING_LEASE_HEADER: "another"})
    expect("another's lease", foreign.status_code, 403)
    bare = await drive.http.get(path)
    expect("no lease", bare.status_code, 422)
    lease = {POLLING_LEASE_HEADER: admission.json()["polling_lease_token"]}
    while (result := await drive.http.get(path, headers=lease)).json()["status"] != "failure":
        expect("status", result.json()["status"], cases.one_of("queued", "running"))
    again = await drive.http.get(path, headers=lease)
    expect("the result of a second poll", again.json(), result.json())
    return {
        "admission": sorted(admission.json()),
        "404": unknown.json(),
        "403": foreign.json(),
        "422": bare.json(),
    }


@SCENARIOS.add
async def invalid_requests(drive: Drive) -> dict[str, Any]:
    for what, body in cases.invalid_bodies().items():
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
    await expect_id_required(drive)
    cancels: list[Any] = [
        {},
        {"ids": ["a"], "prefix": "a"},
        {"ids": [], "all": True},
        {"all": False},
        {"ids": "a"},
    ]
    for request in cancels:
        response = await drive.http.post("/rollout/cancel", json=request)
        expect(f"cancel with {request}", response.status_code, 422)
    empty = await drive.http.post("/rollout/cancel", json={"ids": []})
    expect("cancel of no ids", (empty.status_code, empty.json()), (200, {"dispositions": {}}))
    return {"bodies": len(cases.invalid_bodies()) + 2}


async def expect_id_required(drive: Drive) -> None:
    for without in (..., None):
        response = await drive.http.post("/rollout", json=cases.valid_request(rollout_id=without))
        expect(f"rollout_id {without}", response.status_code, 422)


@SCENARIOS.add
async def unknown_fields_are_ignored(drive: Drive) -> dict[str, Any]:
    """Unknown fields are ignored, and numbers as text are accepted, as by the original."""
    request = cases.valid_request(agent_timeout_sec="30", from_the_future={"a": 1})
    response = await drive.http.post("/rollout", json=request)
    expect("status code", response.status_code, 202)
    expect("media type", response.headers["content-type"], "application/json")
    return {"admission": {**response.json(), "polling_lease_token": "…"}}


@SCENARIOS.add
async def health(drive: Drive) -> dict[str, Any]:
    """The client can wait until nothing runs, and can recognize the process."""
    handle = await drive.start(asking(cases.PLEASE_SPIN), "busy", label="5")
    busy = await drive.health()
    expect("status", busy.get("status"), "ok")
    expect("instance_id", busy.get("instance_id"), cases.some_text)
    expect("active rollouts", busy["lifecycle"]["active_rollouts"] >= 1, True)
    expect("accepting", busy["lifecycle"]["accepting_rollouts"], True)
    await drive.cancel(handle.rollout_id)
    await handle
    idle = await drive.client.wait_idle(
        timeout_sec=10, poll_interval_sec=0.1, process_id=busy["process_id"]
    )
    return {"busy": busy, "idle": idle}


@SCENARIOS.add
async def server_key(drive: Drive) -> dict[str, Any]:
    if drive.args.api_key is None:
        raise NotRun("needs --api-key, with a server that demands it")
    detail = {}
    for what, key in {"wrong": "not-" + drive.args.api_key, "none": None}.items():
        client = drive.other_client(api_key=key)
        if key is None and "/p/" in drive.base_url:
            # The health of a server with many plugins needs no key.
            expect("health without a key", await client.health(), {"status": "ok"})
        else:
            await expect_refused(client.health(), 401)
        await expect_refused(client.cancel_rollout("nobody"), 401)
        detail[what] = await expect_refused(
            client.run_rollout_async(
                adding(2, 3), drive.model_url, fresh_id("intruder"), label="5"
            ),
            401,
        )
    for scheme in ("bearer", "Basic"):
        response = await httpx_get(drive, {"authorization": f"{scheme} {drive.args.api_key}"})
        expect(f"key after {scheme!r}", response.status_code, 401)
        expect("body", response.json(), {"detail": "unauthorized"})
    return detail


async def httpx_get(drive: Drive, headers: dict[str, str]) -> httpx.Response:
    """Requests the health report without the driver's own key."""
    async with httpx.AsyncClient(base_url=drive.base_url, trust_env=False) as http:
        return await http.get("/health", headers=headers)


@SCENARIOS.add
async def lease_expires(drive: Drive) -> dict[str, Any]:
    """A rollout that is not polled ends."""
    request = cases.valid_request(initial_messages=asking(cases.PLEASE_SPIN))
    admission = (await drive.http.post("/rollout", json=request)).json()
    lease_secs = admission["polling_lease_timeout_sec"]
    if lease_secs > 10:
        await drive.cancel(request["rollout_id"])
        raise NotRun(f"the server's lease is {lease_secs} s; give it one of 10 s at most")
    await drive.client.wait_idle(timeout_sec=lease_secs + 10, poll_interval_sec=0.1)
    response = await drive.http.get(
        f"/rollout/{request['rollout_id']}/result",
        headers={POLLING_LEASE_HEADER: admission["polling_lease_token"]},
    )
    result = RolloutResultResponse.model_validate(response.json())
    return expect_result(
        result, RolloutStatus.FAILURE, "polling lease expired", RolloutErrorCategory.LEASE_EXPIRED
    )


@SCENARIOS.add
async def queue_time_counts(drive: Drive) -> dict[str, Any]:
    """When every slot is in use, time in the queue counts for the agent, and a queued rollout can be cancelled."""
    if drive.args.slots is None:
        raise NotRun("needs --slots, the number of rollouts that the server runs at once")
    for _ in range(drive.args.slots):
        await drive.start(asking(cases.PLEASE_SPIN), "blocker", label="5", agent_timeout_sec=2)
    late = await drive.start(adding(2, 3), "late", label="5", agent_timeout_sec=0.5)
    unwanted = await drive.start(adding(2, 3), "unwanted", label="5")
    in_time = await drive.start(adding(2, 3), "in-time", label="5", agent_timeout_sec=30)
    disposition = await drive.cancel(unwanted.rollout_id)
    expect("disposition", disposition, cases.one_of("cancelled_queued", "cancelled_running"))
    expect_result(await unwanted, RolloutStatus.CANCELLED, cancel_message)
    detail = expect_result(
        await late,
        RolloutStatus.FAILURE,
        cases.holding("s of it spent queued)"),
        RolloutErrorCategory.TIMEOUT,
    )
    expect_reward(await in_time, adding(2, 3), 1.0, "5")
    return {"disposition": disposition, **detail}


@SCENARIOS.add
async def full_is_waited_out(drive: Drive) -> dict[str, Any]:
    """A full server sends a retry time, which the client respects."""
    if drive.args.full_at is None:
        raise NotRun("needs --full-at, with a server that refuses when it holds that many")
    spin = asking(cases.PLEASE_SPIN)
    for _ in range(drive.args.full_at):
        await drive.start(spin, "filler", label="5", agent_timeout_sec=2)
    refused = await drive.http.post("/rollout", json=cases.valid_request())
    expect("status code when full", refused.status_code, 429)
    retry_after = refused.headers.get("retry-after")
    expect("Retry-After", float(retry_after or "nan") > 0, True)
    prompt = adding(2, 3)
    detail = expect_reward(await drive.run(prompt, "patient", label="5"), prompt, 1.0, "5")
    return {"retry_after": retry_after, "body": refused.json(), **detail}


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    SCENARIOS.add_arguments(parser)
    parser.add_argument(
        "--slots", type=int, help="rollouts that the server runs at once, for queue-time-counts"
    )
    args = parser.parse_args()
    base_url = args.base_url.rstrip("/")
    async with AsyncExitStack() as stack:
        stand_in, model_url = None, args.model_url
        if model_url is None:
            stand_in = Model(record=True)
            model_url = (await stack.enter_async_context(Loopback(stand_in))).url + "/v1"
        headers = {"authorization": f"Bearer {args.api_key}"} if args.api_key else {}
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=base_url, headers=headers, timeout=45, trust_env=False)
        )
        client = RolloutClient(
            url=base_url,
            http_client=await stack.enter_async_context(
                httpx.AsyncClient(limits=httpx.Limits(max_connections=None), trust_env=False)
            ),
            api_key=args.api_key,
            admission_timeout_sec=args.timeout,
        )
        drive = Drive(args, base_url, model_url.rstrip("/"), client, http, stand_in, stack)
        return await SCENARIOS.run(drive, args)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
