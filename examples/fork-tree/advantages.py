"""Computes an advantage for each turn of a rollout, from a tree of forks.

A rollout has one reward and several turns. To find the contribution of each turn, the script forks the rollout
before the first turn and after every turn. The mean reward of the forks is the value of the rollout at that
point, and the difference of the values after and before a turn is its advantage. The host repeats no call before
a fork.

    rollout-host serve calculator.wasm --listen 127.0.0.1:9000 &
    rollout-host mock-model --listen 127.0.0.1:9100 --error-rate 0.4 &
    python advantages.py rows.jsonl --host http://127.0.0.1:9000 --model http://127.0.0.1:9100/v1

The script writes one JSON object per row to standard output, and a table to standard error.
"""

import argparse
import json
import statistics
import sys
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor


class Host:
    """A client of the host that works as a trainer does: it sends a request and polls under the lease."""

    def __init__(self, url: str, model: str) -> None:
        self.url, self.model = url, model

    def rollout(self, row: dict, fork_of: dict | None = None) -> dict:
        """Runs a rollout of a row, or a fork of another rollout, and returns the result."""
        request = {
            "rollout_id": f"tree-{uuid.uuid4().hex[:12]}",
            "initial_messages": [
                {"role": "system", "content": row["system_prompt"]},
                {"role": "user", "content": row["user_prompt"]},
            ],
            "label": row["ground_truth"],
            "chat_completions_url": self.model,
            **({"fork_of": fork_of} if fork_of else {}),
        }
        lease = self._ask("/rollout", request)["polling_lease_token"]
        path = f"/rollout/{request['rollout_id']}/result"
        while True:
            result = self._ask(path, headers={"X-Osmosis-Rollout-Lease": lease})
            if result["status"] in ("success", "failure", "cancelled"):
                return result

    def _ask(self, path: str, body: dict | None = None, headers: dict | None = None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **(headers or {})}
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)


def reward(result: dict) -> float | None:
    """Returns the reward of a rollout, or none if it has no reward, which is not a reward of 0."""
    return (result.get("sample") or {}).get("reward") if result["status"] == "success" else None


def tree(host: Host, row: dict, forks: int, pool: ThreadPoolExecutor) -> dict:
    """Runs one rollout of a row, and computes its value after each turn."""
    trunk = host.rollout(row)
    end = reward(trunk)
    if end is None:
        return {"rollout_id": trunk["rollout_id"], "reward": None, "why": trunk["err_message"]}
    turns = sum(message["role"] == "assistant" for message in trunk["sample"]["messages"])

    def value(turn: int) -> float | None:
        """Returns the value of the rollout after this many calls of the model."""
        if turn == turns:
            return end
        fork_of = {"rollout_id": trunk["rollout_id"], "turn": turn}
        ended = pool.map(lambda _: reward(host.rollout(row, fork_of)), range(forks))
        return statistics.fmean(known) if (known := [one for one in ended if one is not None]) else None

    values = [value(turn) for turn in range(turns + 1)]
    pairs = zip(values, values[1:])
    advantages = [None if None in pair else pair[1] - pair[0] for pair in pairs]
    return {"rollout_id": trunk["rollout_id"], "reward": end, "values": values, "advantages": advantages}


def main() -> int:
    arguments = argparse.ArgumentParser(description="An advantage for each turn, by forks.")
    arguments.add_argument("rows", help="a data set, JSON Lines")
    arguments.add_argument("--host", default="http://127.0.0.1:9000", help="the server")
    arguments.add_argument("--model", default="http://127.0.0.1:9100/v1", help="the model's server")
    arguments.add_argument("--forks", type=int, default=8, help="rollouts from after each turn")
    arguments.add_argument("--limit", type=int, help="so many rows")
    given = arguments.parse_args()
    with open(given.rows, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file][: given.limit]
    host = Host(given.host, given.model)
    unscored = 0
    print(f"{'rollout':<18} {'reward':>6}  advantage of each turn", file=sys.stderr)
    with ThreadPoolExecutor(given.forks) as pool:
        for row in rows:
            node = tree(host, row, given.forks, pool)
            print(json.dumps(node), flush=True)
            if node["reward"] is None:
                unscored += 1
                print(f"{node['rollout_id']:<18} {'none':>6}  {node['why']}", file=sys.stderr)
                continue
            shown = " ".join("  none" if one is None else f"{one:+6.2f}" for one in node["advantages"])
            print(f"{node['rollout_id']:<18} {node['reward']:>6.2f}  {shown}", file=sys.stderr)
    return 1 if unscored else 0


if __name__ == "__main__":
    sys.exit(main())
