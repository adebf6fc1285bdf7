"""Tests `rollout_host.client` against real servers.

    ROLLOUT_HOST_BIN=… ROLLOUT_GUESTS_DIR=… python drive_client.py [--scenario NAME]…

Every scenario prints one line, {"scenario", "ok", "detail"}. The exit code is 1 if one failed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import hosting
from cases import Scenarios, adding, asking, expect, holding

from rollout_host.client import (
    AdmissionLost,
    AsyncClient,
    Client,
    HostRefused,
    HostUnreachable,
    LeaseLost,
    NoReward,
    ProtocolError,
    RolloutCancelled,
    RolloutExists,
    RolloutFailed,
    RolloutHostError,
    RolloutRequest,
    RolloutTimeout,
)

SCENARIOS = Scenarios({})

# A model that never answers.
HANGS = '{"hang": true}\n'


async def rejected(awaitable: Any, kind: type[BaseException], *texts: str) -> Any:
    """Checks that a call fails with an error of this kind that has these texts."""
    try:
        got = await awaitable
    except kind as error:
        for text in texts:
            expect("error", str(error), holding(text))
        return error
    raise AssertionError(f"expected {kind.__name__}, got {got!r}")


@asynccontextmanager
async def serving(component: str = "conform", *options: Any, script: str | None = None, **variables: str) -> Any:
    """Runs a model and a server with a journal; yields the server and a request that adds 2 and 3."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        scripted = ()
        if script is not None:
            (directory / "script.jsonl").write_text(script)
            scripted = ("--script", directory / "script.jsonl")
        async with hosting.mock_model(*scripted) as model:
            port = hosting.free_port()
            async with hosting.serve(component, *options, port=port, directory=directory, **variables) as server:
                yield server, RolloutRequest(adding(2, 3), chat_completions_url=model.url, label="5")


async def active(host: AsyncClient) -> int:
    return int((await host.health())["active_rollouts"])


async def idle(host: AsyncClient, when: str) -> None:
    """Waits until no rollout runs: a rollout that was cancelled stops a moment later. Its lease would last longer."""
    try:
        async with asyncio.timeout(10):
            while await active(host):
                await asyncio.sleep(0)
    except TimeoutError:
        expect(when, await active(host), 0)


@SCENARIOS.add
async def a_rollout_has_the_reward_of_its_grader(_: None) -> dict[str, Any]:
    async with serving() as (server, request):

        def blocking() -> tuple[float, float, str]:
            with Client(server.url) as host:
                handle = host.start(request)
                right = handle.result().reward
                wrong = host.run(replace(request, label="6"))
                expect("last message", wrong.sample.messages[-1]["content"], holding("#### 5"))
                expect("session", host.trajectory(wrong.rollout_id)["session_id"], wrong.rollout_id)
                # A result can be read again, and is the same.
                return right, wrong.reward, handle.poll().status

        expect("rewards and status", await asyncio.to_thread(blocking), (1.0, 0.0, "success"))
        async with AsyncClient(server.url) as host:
            expect("reward", (await host.run(request)).reward, 1.0)
            expect("text as prompt", (await host.run(replace(request, initial_messages="2 + 3"))).reward, 1.0)
            truth = replace(request, label=None, metadata={"ground_truth": "5"})
            expect("label in metadata", (await host.run(truth)).reward, 1.0)
    return {}


@SCENARIOS.add
async def many_rollouts_run_at_once(_: None) -> dict[str, Any]:
    async with serving() as (server, request), AsyncClient(server.url) as host:
        sums = [(left, right) for left in range(12) for right in range(10)]
        requests = [
            replace(request, initial_messages=adding(left, right), label=str(left + right if right else -1))
            for left, right in sums
        ]
        began = time.monotonic()
        results = await host.run_many(requests)
        rewards = [result.reward for result in results]
        expect("rewards, in order", rewards, [float(bool(right)) for _, right in sums])
        expect("ids", len({result.rollout_id for result in results}), len(sums))
        return {"rollouts": len(sums), "secs": round(time.monotonic() - began, 2)}


@SCENARIOS.add
async def a_failure_is_an_exception_and_never_a_reward(_: None) -> dict[str, Any]:
    async with serving() as (server, request), AsyncClient(server.url) as host:
        fails = replace(request, initial_messages=asking("please fail"))
        error = await rejected(host.run(fails), RolloutFailed, "the workflow was told to fail", "agent_error")
        expect("category", error.category, "agent_error")
        await rejected(host.run(replace(request, label="please fail")), RolloutFailed, "the grader was told to fail")
        await rejected(host.run(replace(request, label=None)), RolloutFailed, "nothing to grade with")
        slow = replace(request, initial_messages=asking("please spin"), agent_timeout_sec=0.2)
        expect("category", (await rejected(host.run(slow), RolloutFailed)).category, "timeout")
        dead = replace(request, chat_completions_url=f"http://127.0.0.1:{hosting.free_port()}/v1", agent_timeout_sec=2)
        await rejected(host.run(dead), RolloutFailed)
        removed = await host.run(replace(request, label="please remove"))
        expect("removed", (removed.sample.remove_sample, removed.sample.reward), (True, None))
        try:
            raise AssertionError(f"a withdrawn sample has the reward {removed.reward}")
        except NoReward as reason:
            expect("reason", str(reason), holding("withdrew"))
        ungraded = await host.run(replace(request, grade=False))
        try:
            raise AssertionError(f"an ungraded sample has the reward {ungraded.reward}")
        except NoReward as reason:
            expect("reason", str(reason), holding("not graded"))
        mixed = await host.run_many([request, fails])
        expect("kinds", [type(one).__name__ for one in mixed], ["RolloutResult", "RolloutFailed"])
    return {}


@SCENARIOS.add
async def a_wrong_request_or_key_is_explained(_: None) -> dict[str, Any]:
    key = "secret-of-the-server"
    async with serving("conform", "--server-key-env", "KEY", KEY=key) as (server, request):
        async with AsyncClient(server.url) as host:
            error = await rejected(host.run(request), HostRefused, "401", "is the key right?")
            expect("status", error.status, 401)
        async with AsyncClient(server.url, api_key=key) as host:
            expect("reward", (await host.run(request)).reward, 1.0)
            wrong = replace(request, initial_messages=[], agent_timeout_sec=float("1e308") * 10)
            await rejected(host.run(replace(request, rollout_id="a/b")), HostRefused, "422", "body.rollout_id")
            await rejected(host.run(replace(request, llm_api_key="")), HostRefused, "body.llm_api_key")
            await rejected(host.run(wrong), ValueError)
            expect("shown", key in repr(replace(request, llm_api_key=key)), False)
        async with AsyncClient(server.url.replace("//", f"//trainer:{key}@")) as host:
            expect("reward", (await host.run(request)).reward, 1.0)
            error = await rejected(host.run(replace(request, rollout_id="..")), HostRefused)
            expect("key in the error", key in str(error), False)
    try:
        AsyncClient("127.0.0.1:9000")
        raise AssertionError("an address without a scheme is accepted")
    except ValueError as reason:
        expect("reason", str(reason), holding("begins with http://"))
    return {}


@SCENARIOS.add
async def a_plugin_of_a_catalog_is_used_with_the_key_of_its_tenant(_: None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        async with (
            hosting.mock_model() as model,
            hosting.running("serve", "--catalog", "catalog", "--listen", "127.0.0.1:0", directory=directory) as server,
        ):
            operator = next(line for line in server.lines if line.startswith("operator key ")).split()[2]
            of = {"directory": directory, "ROLLOUT_HOST_URL": server.url}

            async def command(*arguments: Any, key: str) -> str:
                return (await hosting.command(*arguments, **of, ROLLOUT_HOST_KEY=key)).strip()

            await command("tenant", "create", "red", "--allow", "127.0.0.1", key=operator)
            author = await command("key", "create", "--tenant", "red", "--rights", "author", key=operator)
            caller = await command("key", "create", "--tenant", "red", "--rights", "caller", key=operator)
            await command("push", hosting.guest("conform"), "--name", "calc", "--activate", key=author)
            request = RolloutRequest(adding(2, 3), chat_completions_url=model.url, label="5")
            async with AsyncClient(f"{server.url}/p/calc", api_key=caller) as host:
                expect("reward", (await host.run(request)).reward, 1.0)
            async with AsyncClient(f"{server.url}/p/calc/", api_key="wrong") as host:
                await rejected(host.run(request), HostRefused, "401")
            async with AsyncClient(f"{server.url}/p/none", api_key=caller) as host:
                await rejected(host.run(request), HostRefused, "404")
    return {}


@SCENARIOS.add
async def rollouts_are_cancelled(_: None) -> dict[str, Any]:
    async with serving(script=HANGS) as (server, request), AsyncClient(server.url) as host:
        handle = await host.start(request)
        expect("status", (await handle.poll()).status, "running")
        await rejected(handle.result(timeout=0.2), RolloutTimeout)
        expect("after the timeout of a handle", await active(host), 1)
        expect("disposition", await handle.cancel(), "cancelled_running")
        await rejected(handle.result(), RolloutCancelled)
        expect("unknown", await host.cancel("none", "of these"), {"none": "not_found", "of these": "not_found"})

        await rejected(host.run(request, timeout=0.5), RolloutTimeout)
        await idle(host, "after the timeout of `run`")

        running = asyncio.ensure_future(host.run_many([request] * 3))
        while await active(host) < 3:
            await asyncio.sleep(0)
        running.cancel()
        await rejected(running, asyncio.CancelledError)
        await idle(host, "after a task was cancelled")

        def blocking() -> None:
            with Client(server.url) as host:
                try:
                    host.run(request, timeout=0.5)
                except RolloutTimeout:
                    return
            raise AssertionError("no timeout")

        await asyncio.to_thread(blocking)
        await idle(host, "after the timeout of a blocking `run`")
    return {}


@SCENARIOS.add
async def a_full_host_is_waited_for(_: None) -> dict[str, Any]:
    options = ("--max-concurrent", 1, "--queue-max", 1)
    slow = '{"delay_ms": 300, "message": {"content": "#### 5"}}\n'
    async with serving("conform", *options, script=slow) as (server, request), AsyncClient(server.url) as host:
        refused = 0
        send = host._http.request

        async def counting(**arguments: Any) -> Any:
            nonlocal refused
            reply = await send(**arguments)
            refused += reply.status_code == 429
            return reply

        host._http.request = counting  # type: ignore[method-assign, assignment]
        results = await host.run_many([request] * 5)
        expect("rewards", [result.reward for result in results], [1.0] * 5)
        expect("refusals", refused > 0, True)
        return {"refused": refused}


@SCENARIOS.add
async def a_lost_admission_is_repeated_without_a_second_result(_: None) -> dict[str, Any]:
    async with serving() as (server, request), AsyncClient(server.url) as direct:
        posts = 0

        def first_post(data: bytes) -> bool:
            nonlocal posts
            posts += data.startswith(b"POST /rollout ")
            return posts == 1 and data.startswith(b"POST /rollout ")

        before = (await direct.health())["completed_rollouts"]
        async with hosting.Proxy(server.url, first_post) as proxy, AsyncClient(proxy.url) as host:
            result = await host.run(request)
            expect("reward", result.reward, 1.0)
            # Posted; posted again and told that it exists; posted under another id.
            expect("posts and lost answers", (posts, proxy.dropped), (3, 1))
            health = await direct.health()
            expect("running", health["active_rollouts"], 0)
            expect("rollouts", health["completed_rollouts"] - before, 2)

        posts = 0
        async with hosting.Proxy(server.url, first_post) as proxy, AsyncClient(proxy.url) as host:
            named = replace(request, rollout_id="chosen")
            await rejected(host.run(named), RolloutExists, "whose answer was lost")
    return {}


@SCENARIOS.add
async def a_member_whose_admission_is_lost_fails_and_the_others_are_rated(_: None) -> dict[str, Any]:
    async with serving("grouped") as (server, request):
        posts = 0

        def first_post(data: bytes) -> bool:
            nonlocal posts
            posts += data.startswith(b"POST /rollout ")
            return posts == 1 and data.startswith(b"POST /rollout ")

        members = [replace(request, initial_messages=adding(number, 0), label="2") for number in (1, 2, 3)]
        async with hosting.Proxy(server.url, first_post) as proxy, AsyncClient(proxy.url) as host:
            results = await host.run_group(members)
        lost = [number for number, one in enumerate(results) if isinstance(one, AdmissionLost)]
        expect("lost members", len(lost), 1)
        others = [one for number, one in enumerate(results) if number not in lost]
        # It may have arrived before it was cancelled.
        rewards = [one.reward for one in others]
        expect("rewards", rewards, lambda rewards: rewards[0] < rewards[1])
        expect("graded", [one.group.graded for one in others], [True, True])
        # Posted; posted again and told that it exists.
        expect("posts and lost answers", (posts, proxy.dropped), (4, 1))
    return {}


@SCENARIOS.add
async def a_lost_result_is_read_again(_: None) -> dict[str, Any]:
    async with serving() as (server, request):
        polls = 0

        def every_other_poll(data: bytes) -> bool:
            nonlocal polls
            polls += b"/result " in data[:200]
            return b"/result " in data[:200] and polls % 2 == 1

        async with hosting.Proxy(server.url, every_other_poll) as proxy, AsyncClient(proxy.url) as host:
            for _ in range(5):
                expect("reward", (await host.run(request)).reward, 1.0)
            expect("lost answers", proxy.dropped >= 5, True)
            return {"lost": proxy.dropped}


@SCENARIOS.add
async def a_rollout_survives_a_kill_of_the_host(_: None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        directory, port = Path(folder), hosting.free_port()
        (directory / "slow.jsonl").write_text('{"delay_ms": 1500, "message": {"content": "#### 5"}}\n')
        async with hosting.mock_model("--script", directory / "slow.jsonl") as model:
            request = RolloutRequest(adding(2, 3), chat_completions_url=model.url, label="5")
            url = f"http://127.0.0.1:{port}"
            async with AsyncClient(url, reconnect_timeout=60) as host:
                async with hosting.serve("conform", port=port, directory=directory) as first:
                    running = [asyncio.ensure_future(host.run(request)) for _ in range(8)]
                    while await active(host) < 8:
                        await asyncio.sleep(0)
                    await first.kill()
                async with hosting.serve("conform", port=port, directory=directory):
                    results = await asyncio.gather(*running)
                    expect("rewards", [result.reward for result in results], [1.0] * 8)
                    expect("ids", len({result.rollout_id for result in results}), 8)
                options = ("--journal", "off")
                async with hosting.serve("conform", *options, port=port, directory=directory) as first:
                    handle = await host.start(request)
                    await first.kill()
                async with hosting.serve("conform", *options, port=port, directory=directory):
                    await rejected(handle.result(), LeaseLost, "without a journal")
    return {}


@SCENARIOS.add
async def a_fork_continues_another_rollout(_: None) -> dict[str, Any]:
    async with serving("example_calculator") as (server, request), AsyncClient(server.url) as host:
        request = replace(request, initial_messages="What is 17 + 25? Give the final answer after ####.", label="42")
        first = await host.run(request)
        expect("reward", first.reward, 1.0)
        calls = sum(message["role"] == "assistant" for message in first.sample.messages)
        expect("calls of the model", calls, 2)
        fork = await host.fork(request, of=first.rollout_id, turn=1)
        forked = await fork.result()
        expect("reward", forked.reward, 1.0)
        expect("shared part", forked.sample.messages[:2], first.sample.messages[:2])
        many = await host.run_many([request.fork(first.rollout_id, 1)] * 4)
        expect("rewards", [one.reward for one in many], [1.0] * 4)
        origin = (await host.trajectory(forked.rollout_id))["extra"]["rollout_host"]["fork_of"]
        expect("origin", origin["rollout_id"], first.rollout_id)
        await rejected(host.fork(request, of="none", turn=1), HostRefused, "body.fork_of")
    return {}


@SCENARIOS.add
async def a_group_is_rated_at_once_and_names_its_failed_members(_: None) -> dict[str, Any]:
    async with serving("grouped") as (server, request), AsyncClient(server.url) as host:
        members = [replace(request, initial_messages=adding(number, 0), label="2") for number in (1, 2, 3)]
        results = await host.run_group(members)
        expect("rewards", [one.reward for one in results], [0.0, 0.5, 1.0])
        expect("own rewards", [one.group.own_reward for one in results], [0.0, 1.0, 0.0])
        failing = replace(request, initial_messages="please fail")
        first, failed, last = await host.run_group([members[2], failing, members[0]])
        expect("kind", isinstance(failed, RolloutFailed), True)
        expect("rewards", [first.reward, last.reward], [1.0, 0.0])
        expect("failed members", [one.member for one in first.group.failed], [1])
        taken = await host.start(members[0].in_group("g", 2, 0))
        await rejected(host.start(members[1].in_group("g", 2, 0)), HostRefused, "body.group", "member 0 of group 'g'")
        await taken.cancel()
    return {}


@SCENARIOS.add
async def a_tree_has_branches_of_one_prefix(_: None) -> dict[str, Any]:
    async with serving("example_calculator") as (server, request), AsyncClient(server.url) as host:
        request = replace(request, initial_messages="What is 17 + 25? Give the final answer after ####.", label="42")
        first = await host.run(request)
        branches = await host.tree(request, of=first.rollout_id, turn=1, count=3)
        results = [await branch.result() for branch in branches]
        expect("rewards", [one.reward for one in results], [1.0] * 3)
        expect("prefixes", {(one.fork_of.rollout_id, one.fork_of.turn) for one in results}, {(first.rollout_id, 1)})
        expect("members", [one.group.member for one in results], [0, 1, 2])
        expect("groups", len({one.group.id for one in results}), 1)
        await rejected(host.tree(request, of="none", turn=1, count=2), HostRefused, "body.fork_of")
        with Client(server.url) as blocking:
            again = await asyncio.to_thread(blocking.tree, request, first.rollout_id, 1, 2)
            expect("a tree", [(await asyncio.to_thread(one.result)).reward for one in again], [1.0] * 2)
    return {}


@SCENARIOS.add
async def a_host_that_is_no_host_is_named(_: None) -> dict[str, Any]:
    request = RolloutRequest("2 + 3", chat_completions_url="http://127.0.0.1:9/v1", label="5")
    url = f"http://127.0.0.1:{hosting.free_port()}"
    async with AsyncClient(url, reconnect_timeout=0.5) as host:
        await rejected(host.run(request), HostUnreachable, url, "no answer of the host for 0.5 s")

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(page, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}"
    async with other, AsyncClient(url) as host:
        await rejected(host.run(request), ProtocolError, "not JSON")
    return {}


@SCENARIOS.add
async def the_page_leads_to_a_reward(_: None) -> dict[str, Any]:
    sources = hosting.blocks("## Python", "python")
    async with serving("example_one_turn") as (server, request):
        rewards = []
        for source in sources:
            source = hosting.page_script([source], server.url, request.chat_completions_url)
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "page.py").write_text(source)
                code, output = await hosting.shell("python page.py", Path(folder))
            expect("exit code", (code, output), lambda ran: ran[0] == 0)
            rewards.append(output.split())
        # A rollout; eight rollouts at once, one of which has a wrong label.
        expect("rewards", rewards, [["1.0"], ["1.0"] * 7 + ["0.0"]])
    return {"programs": len(sources)}


if __name__ == "__main__":
    sys.exit(asyncio.run(SCENARIOS.run(None, hosting.arguments(SCENARIOS, __doc__, 90.0))))
