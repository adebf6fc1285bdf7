"""Tests `rollout_host.verifiers` with the command `vf-eval` of verifiers, against real servers.

    ROLLOUT_HOST_BIN=… ROLLOUT_GUESTS_DIR=… python drive_verifiers.py [--scenario NAME]…

Every scenario prints one line, {"scenario", "ok", "detail"}. The exit code is 1 if one failed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import hosting
from cases import Scenarios, asking, expect, holding

SCENARIOS = Scenarios({})

KEY = "secret-of-the-server"


def vf_eval(model: str, server: str, *options: str) -> str:
    """Returns the command of an evaluation of `rows.jsonl`."""
    fixed = [
        *("vf-eval", "rollout-host-env", "-m", "mock", "--no-push", "-o", "out"),
        *("--env.taskset.data", "rows.jsonl", "--env.agent.runtime.type", "subprocess"),
        *("--env.agent.harness.id", "rollout-host-env", "--env.agent.harness.url", server),
        *("--client.base-url", model, "--client.api-key-var", "MODEL_KEY"),
    ]
    return " ".join([*fixed, *options])


def traces(directory: Path) -> list[dict[str, Any]]:
    """Returns the traces of an evaluation, in the order of its tasks."""
    [file] = directory.glob("out/*/traces.jsonl")
    found = [json.loads(line)["traces"][0] for line in file.read_text().splitlines()]
    return sorted(found, key=lambda trace: trace["task"]["data"]["idx"])


def write_rows(directory: Path, rows: list[dict[str, Any]]) -> None:
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@SCENARIOS.add
async def the_page_leads_to_rewards(_: None) -> dict[str, Any]:
    commands = hosting.blocks("## verifiers", "sh")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        async with hosting.mock_model() as model, hosting.serve("example_one_turn", directory=directory) as server:
            code, output = await hosting.shell(hosting.page_script(commands, server.url, model.url), directory)
        expect("exit code", (code, output), lambda ran: ran[0] == 0)
        found = traces(directory)
        # Three rows twice; the label of the last one is wrong.
        rewards = [trace["rewards"]["rollout_host"]["score"] for trace in found]
        expect("rewards", rewards, [1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
        for trace in found:
            expect("errors", trace["errors"], [])
            expect("calls that verifiers recorded", len(trace["calls"]), 1)
            expect("end", trace["stop_condition"], "agent_completed")
            expect("removed", trace["info"]["rollout_host"]["remove_sample"], False)
            expect("reward", trace["info"]["rollout_host"]["reward"], trace["rewards"]["rollout_host"]["score"])
        expect("system prompt", found[2]["task"]["data"]["system_prompt"], "Be brief.")
        roles = [node["message"]["role"] for node in found[2]["nodes"]]
        expect("roles of a row with a system prompt", roles, ["system", "user", "assistant"])
    return {"episodes": len(found)}


@SCENARIOS.add
async def a_failure_is_an_error_and_no_reward(_: None) -> dict[str, Any]:
    rows = [
        {"prompt": asking("please fail"), "label": "5"},
        {"prompt": asking("Calculate 2 + 3."), "label": "please fail"},
        {"prompt": asking("Calculate 2 + 3."), "label": "please remove"},
        {"prompt": asking("Calculate 2 + 3.")},
        {"prompt": asking("Calculate 2 + 3."), "metadata": {"ground_truth": "5"}},
    ]
    expected = [
        ("HarnessError", "the workflow was told to fail"),
        ("HarnessError", "the grader was told to fail"),
        ("TaskError", "withdrew its sample"),
        ("HarnessError", "nothing to grade with"),
        None,
    ]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        write_rows(directory, rows)
        options = ("--server-key-env", "KEY")
        async with (
            hosting.mock_model() as model,
            hosting.serve("conform", *options, directory=directory, KEY=KEY) as server,
        ):
            command = vf_eval(model.url, server.url, "--env.agent.harness.key-var", "HOST_KEY")
            _, output = await hosting.shell(command, directory, HOST_KEY=KEY, MODEL_KEY="m")
        for trace, wanted in zip(traces(directory), expected, strict=True):
            if wanted is None:
                expect("reward", trace["rewards"]["rollout_host"]["score"], 1.0)
                continue
            kind, text = wanted
            expect("errors", [error["type"] for error in trace["errors"]], [kind])
            expect("message", trace["errors"][0]["message"], holding(text))
            expect("rewards", trace["rewards"].get("rollout_host"), None)
        return {"output": output[-200:]}


@SCENARIOS.add
async def a_wrong_key_and_a_wrong_row_are_named(_: None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        write_rows(directory, [{"user_prompt": "2 + 3", "label": 5}])
        options = ("--server-key-env", "KEY")
        async with (
            hosting.mock_model() as model,
            hosting.serve("conform", *options, directory=directory, KEY=KEY) as server,
        ):
            await hosting.shell(vf_eval(model.url, server.url), directory, MODEL_KEY="m")
            [trace] = traces(directory)
            expect("message", trace["errors"][0]["message"], holding("401"))
            (directory / "rows.jsonl").write_text('{"user_prompt": "2 + 3"}\n{"question": "?"}\n')
            code, output = await hosting.shell(vf_eval(model.url, server.url), directory, MODEL_KEY="m")
            expect("exit code", code, lambda code: code != 0)
            expect("output", " ".join(output.split()), holding("line 2: no `user_prompt` and no `prompt`"))
    return {}


if __name__ == "__main__":
    sys.exit(asyncio.run(SCENARIOS.run(None, hosting.arguments(SCENARIOS, __doc__, 180.0))))
