"""Trains a tiny model by GRPO with a plugin on a running host: its workflow, or its environment through OpenEnv.

    rollout-host serve calculator.wasm --listen 127.0.0.1:9000 &
    python train.py --url http://127.0.0.1:9000 --seeds 1 2 3 --plot rewards.svg

    rollout-host serve sums.wasm --listen 127.0.0.1:9001 &
    python train.py --mode openenv --url http://127.0.0.1:9001

Prints the mean reward of each step, and for each seed one line of JSON with the first and the last ones. The exit code is 1
if a seed did not learn.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import tiny_model
import torch
from transformers import TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

from rollout_host.trl import HostRollouts, load_rows, rollout_reward

HERE = Path(__file__).resolve().parent

# Number of steps at the beginning and at the end whose means are compared.
COMPARED = 5
RISE_MIN = 0.3


class Printed(TrainerCallback):
    """Prints one line for each step."""

    def on_log(self, args, state, control, logs=None, **_):
        if logs and "reward" in logs:
            print(f"step {state.global_step:3}  reward {float(logs['reward']):.2f}", flush=True)


class Sums:
    """An episode of the plugin's environment, played by OpenEnv's own client.

    TRL makes an instance for each rollout of a batch, resets it for every rollout, and offers its public methods to the
    model as tools."""

    def __init__(self, url: str) -> None:
        # OpenEnv is needed in this mode only.
        from openenv.core.generic_client import GenericEnvClient

        key = os.environ.get("ROLLOUT_HOST_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client: Any = GenericEnvClient(base_url=f"{url}/openenv", headers=headers).sync()
        self._client.connect()
        self._reward: float | None = None

    def reset(self, prompt: list[dict[str, Any]], label: str, **_: Any) -> None:
        # The label goes to the plugin's grader. The question is in the prompt already.
        self._reward = self._client.reset(user_prompt=prompt[-1]["content"], ground_truth=label).reward

    def calculator(self, expression: str) -> str:
        """Works out a sum.

        Args:
            expression: Whole numbers with `+` and `-` between them.
        """
        return str(self._call("calculator", expression=expression))

    def _call(self, name: str, **arguments: str) -> Any:
        taken = self._client.step({"type": "call_tool", "tool_name": name, "arguments": arguments})
        self._reward = taken.reward
        error = taken.observation.get("error")
        if error:
            # TRL reports it to the model.
            raise ValueError(error["message"])
        return taken.observation["result"]

    def _rated(self, answer: str) -> float | None:
        """Returns the reward, after the answer if the episode has not ended yet."""
        if self._reward is None:
            self._call("answer", answer=answer)
        return self._reward


def episode_reward(completions: list[Any], environments: list[Sums], **_: Any) -> list[float | None]:
    """Gives the last text of each conversation as the answer, which ends its episode."""

    def answer(messages: list[dict[str, Any]]) -> str:
        last = messages[-1] if messages else {}
        return str(last.get("content") or "") if last.get("role") == "assistant" else ""

    pairs = zip(completions, environments, strict=True)
    return [environment._rated(answer(messages)) for messages, environment in pairs]


def train(url: str, seed: int, arguments: argparse.Namespace) -> list[float]:
    """Pre-trains a model and trains it by rewards; returns the mean reward of each step."""
    set_seed(seed)
    rows = load_rows(arguments.rows)
    facts = []
    for row in rows:
        prompt = row["prompt"][-1]["content"]
        facts.append((prompt, prompt.rpartition(": ")[2].removesuffix(" ="), row["label"]))
    words = tiny_model.tokenizer()
    net = tiny_model.model(words)
    began = time.monotonic()
    habit = tiny_model.habit(facts, calls=0.3)
    loss = tiny_model.pretrain(net, words, habit, steps=arguments.pretrain_steps, batch=32, seed=seed)
    print(f"seed {seed}: pre-trained in {time.monotonic() - began:.0f} s, loss {loss:.2f}", flush=True)
    host = HostRollouts(url, api_key=os.environ.get("ROLLOUT_HOST_KEY"))
    by_mode: dict[str, dict[str, Any]] = {
        "workflow": {"rollout_func": host, "reward_funcs": rollout_reward},
        "openenv": {"environment_factory": lambda: Sums(url), "reward_funcs": episode_reward},
    }
    trainer = GRPOTrainer(
        model=net,
        processing_class=words,
        **by_mode[arguments.mode],
        train_dataset=rows,
        callbacks=[Printed()],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(prefix="train-grpo-"),
            seed=seed,
            max_steps=arguments.steps,
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=64,
            learning_rate=4e-4,
            lr_scheduler_type="constant",
            beta=0.0,
            logging_steps=1,
            disable_tqdm=True,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
        ),
    )
    try:
        trainer.train()
    finally:
        host.close()
    return [float(entry["reward"]) for entry in trainer.state.log_history if "reward" in entry]


def plot(rewards: dict[int, list[float]], path: Path) -> None:
    """Draws the curve of each seed."""
    import matplotlib

    matplotlib.use("svg")
    # The same figure gives the same file.
    matplotlib.rcParams["svg.hashsalt"] = "train-grpo"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.2))
    for seed, values in rewards.items():
        axes.plot(range(1, len(values) + 1), values, label=f"seed {seed}")
    axes.set(xlabel="step", ylabel="mean reward", ylim=(0, 1.02))
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:9000", help="the host, with the plugin of the mode")
    parser.add_argument(
        "--mode",
        choices=["workflow", "openenv"],
        default="workflow",
        help="workflow: the host runs the plugin `calculator`; openenv: TRL acts in the environment of this example",
    )
    parser.add_argument("--rows", type=Path, default=HERE / "rows.jsonl")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pretrain-steps", type=int, default=400)
    parser.add_argument("--threads", type=int, default=1, help="threads of the model; more are slower where others use the cores")
    parser.add_argument("--plot", type=Path, help="an image of the curves, such as rewards.svg")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    # TRL calls both interfaces experimental; its version is pinned.
    warnings.filterwarnings("ignore", message="You are using '(rollout_func|environment_factory)'")
    warnings.filterwarnings("ignore", category=FutureWarning)
    rewards: dict[int, list[float]] = {}
    failed = False
    for seed in arguments.seeds:
        began = time.monotonic()
        values = rewards[seed] = train(arguments.url, seed, arguments)
        first, last = (sum(part) / len(part) for part in (values[:COMPARED], values[-COMPARED:]))
        failed |= last - first < RISE_MIN
        secs = round(time.monotonic() - began)
        print(json.dumps({"seed": seed, "first": round(first, 3), "last": round(last, 3), "secs": secs}), flush=True)
    if arguments.plot:
        plot(rewards, arguments.plot)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
