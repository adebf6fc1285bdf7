"""Makes the package's LocalEvalRunner start a server and evaluate it.

    python local_eval.py [--rows N] [--out DIR] -- COMMAND…

The release determines the generation: 0.3.7 polls (D), 0.3.2 receives callbacks (C).

This imitates `osmosis eval run`, with COMMAND instead of a Python entrypoint: in each of its words, `{port}`,
`{artifacts}` and `{instance}` are replaced by the runner's values (also in the environment). The runner waits for its
instance id in /health, sends rows, and waits up to 30 seconds for a `trajectory.json` for each. The model is a stand-in
inside this process.
Prints one line, {"scenario", "ok", "detail"}, like the drivers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from osmosis_ai.eval.local import runner
from osmosis_ai.eval.local.dataset import resolve_explicit_dataset_file, select_rows

import cases
import stand_in
from cases import expect

# The runner abandons a trajectory after 30 s; a server that writes them is much faster.
TRAJECTORY_SECS_MAX = 15.0

ENVIRONMENT = {
    "{port}": '"$_OSMOSIS_ROLLOUT_PORT"',
    "{artifacts}": '"$_OSMOSIS_ROLLOUT_ARTIFACT_ROOT"',
    "{instance}": '"$_OSMOSIS_ROLLOUT_INSTANCE_ID"',
}


class StandInBridge(runner.LiteLLMBridge):
    """The runner's model, without a provider behind it."""

    async def preflight_check(self) -> None:
        return None

    async def complete(self, body: dict[str, Any], *, rollout_id: str) -> Any:
        completion = stand_in.completion(self.model, stand_in.answer(body["messages"]))
        used = int(completion["usage"]["total_tokens"])
        self._tokens[rollout_id] = self._tokens.get(rollout_id, 0) + used
        return completion


class Hooks:
    """Answers the runner's questions with yes, and prints its notes to stderr."""

    def note(self, message: str) -> None:
        print(message, file=sys.stderr)

    warning = note
    stage = note

    def status(self, message: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    async def confirm_dispatch(self, *, pending: int, model_path: str) -> None:
        return None

    async def confirm_new_run(self, *, run_name: str, total: int) -> bool:
        return False

    def resolve_secrets(self, names: Sequence[str]) -> dict[str, str]:
        return {}

    def progress(self, snapshot: runner.ProgressSnapshot) -> None:
        return None


def entrypoint(command: Sequence[str]) -> str:
    """Returns a shell script that runs the command."""

    def word(text: str) -> str:
        quoted = shlex.quote(text)
        for placeholder, variable in ENVIRONMENT.items():
            quoted = quoted.replace(placeholder, f"'{variable}'")
        return quoted

    return "exec " + " ".join(map(word, command)) + "\n"


def dataset(rows: int) -> list[dict[str, Any]]:
    """Returns sums with the right label, and at the end one wrong, one removed and one failing."""
    made = [
        {"user_prompt": f"Calculate {number} + 3.", "ground_truth": str(number + 3)}
        for number in range(rows)
    ]
    return [
        *made,
        {"user_prompt": "Calculate 2 + 3.", "ground_truth": "6"},
        {"user_prompt": "Calculate 2 + 3.", "ground_truth": cases.REMOVE_SAMPLE},
        {"user_prompt": "Calculate 2 + 3.", "ground_truth": cases.FAIL_GRADING},
    ]


async def evaluate(command: Sequence[str], rows: int, out: Path) -> dict[str, Any]:
    project = out / "project"
    project.mkdir(parents=True, exist_ok=True)
    (project / "main.sh").write_text(entrypoint(command))
    data = out / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in dataset(rows)))
    run = runner.LocalEvalRunner(
        spec=runner.EvalRunSpec(
            rollout_name="external",
            entrypoint="main.sh",
            model_path="openai/stand-in",
            dataset_name="rows",
            batch_size=8,
            agent_timeout_sec=30.0,
            grader_timeout_sec=30.0,
        ),
        options=runner.LocalEvalOptions(
            name="conformance", server_interpreter="/bin/sh", fresh=True
        ),
        dataset=resolve_explicit_dataset_file(data),
        selection=select_rows(data),
        rollout_dir=project,
        output_root=out / "runs",
        hooks=Hooks(),
    )
    began = time.monotonic()
    summary = await run.run()
    took = time.monotonic() - began
    records = [
        json.loads(line) for line in (summary.run_dir / "events.jsonl").read_text().splitlines()
    ]
    outcomes = {
        record["row_index"]: (record["status"], record.get("reward"), record.get("error_type"))
        for record in records
    }
    wanted: dict[int, tuple[str, float | None, str | None]]
    wanted = {number: ("success", 1.0, None) for number in range(rows)}
    wanted |= {
        rows: ("success", 0.0, None),
        rows + 1: ("skipped", None, None),
        rows + 2: ("failed", None, "agent_error"),
    }
    expect("outcomes by row", outcomes, wanted)
    written = list((summary.run_dir / "rollout_trials").glob("*/trajectory.json"))
    expect("trajectories", len(written), rows + 3)
    expect("seconds, trajectories waited for", took < TRAJECTORY_SECS_MAX, True)
    return {"rows": rows + 3, "seconds": round(took, 1), "metrics": summary.metrics}


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20, help="rows with a right label")
    parser.add_argument("--out", type=Path, help="store the runner's files in this directory")
    parser.add_argument("command", nargs="+", help="the server; {port} in it is replaced")
    args = parser.parse_args()
    # The runner creates its bridge by this name, which is the only place for a replacement.
    vars(runner)["LiteLLMBridge"] = StandInBridge
    with tempfile.TemporaryDirectory(prefix="local-eval-") as scratch:
        out = args.out or Path(scratch)
        try:
            detail = await evaluate(args.command, args.rows, out)
            ok = True
        except (cases.Unexpected, runner.LocalEvalError) as error:
            detail, ok = {"unexpected": f"{type(error).__name__}: {error}"}, False
            for log in out.glob("runs/*/logs.txt"):
                print(log.read_text(), file=sys.stderr)
    print(json.dumps({"scenario": "local-eval", "ok": ok, "detail": detail}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
