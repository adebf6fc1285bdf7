"""Trains a tiny model by GRPO with a plugin on a running host: its workflow, or its environment through OpenEnv.

    rollout-host serve calculator.wasm --journal journal --listen 127.0.0.1:9000 &
    python train.py --url http://127.0.0.1:9000 --seeds 1 2 3 --plot rewards.svg

Independent generations are compared with branches by the number of tokens that the model generates:

    python train.py --mode workflow branches --tokens 25000 --seeds 1 2 3 --plot branches.svg

    rollout-host serve sums.wasm --listen 127.0.0.1:9001 &
    python train.py --mode openenv --url http://127.0.0.1:9001

Prints the mean reward of each step, and for each seed and mode one line of JSON with the first and the last ones. The exit
code is 1 if one did not learn.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_model
import torch
from transformers import TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

from rollout_host.trl import Branches, HostRollouts, load_rows

HERE = Path(__file__).resolve().parent

# Number of steps at the beginning and at the end whose means are compared.
COMPARED = 5
RISE_MIN = 0.3


@dataclass
class Step:
    """A step of a training."""

    reward: float
    """Mean reward of the rollouts from the beginning. Branches are not samples of the model: their beginnings are chosen."""
    tokens: int
    """Number of tokens that the model has generated so far."""


class Progress(TrainerCallback):
    """Prints one line for each step, and ends the training when the model has generated enough tokens."""

    def __init__(self, host: HostRollouts, tokens_max: int | None) -> None:
        self._host = host
        self._tokens_max = tokens_max
        self.steps: list[Step] = []
        self.reward: float | None = None
        """Mean reward of the rollouts from the beginning in this step, if it is not that of all."""

    def rewards(
        self, rollout_rewards: list[float | None], rollout_shared_turns: list[int | None], **_: Any
    ) -> list[float | None]:
        """Is the reward function for rollouts of the host."""
        pairs = zip(rollout_rewards, rollout_shared_turns, strict=True)
        sampled = [reward for reward, shared in pairs if shared is None and reward is not None]
        self.reward = sum(sampled) / len(sampled) if sampled else None
        return rollout_rewards

    def on_log(self, args, state, control, logs=None, **_):
        if logs and "reward" in logs:
            reward = float(logs["reward"]) if self.reward is None else self.reward
            tokens = self._host.generated_tokens
            self.steps.append(Step(reward, tokens))
            print(f"step {state.global_step:3}  reward {reward:.2f}  tokens {tokens}", flush=True)
            if self._tokens_max is not None and tokens >= self._tokens_max:
                control.should_training_stop = True


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


def pretrained(seed: int, rows: Any, arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Returns a pre-trained model and its tokenizer."""
    set_seed(seed)
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
    return net, words


def train(mode: str, seed: int, rows: Any, net: Any, words: Any, arguments: argparse.Namespace) -> list[Step]:
    """Trains a model by rewards; returns the steps."""
    url = arguments.url
    branches = Branches(arguments.turn, arguments.per_parent) if mode == "branches" else None
    host = HostRollouts(url, api_key=os.environ.get("ROLLOUT_HOST_KEY"), branches=branches)
    progress = Progress(host, arguments.tokens)
    own: dict[str, Any] = {"rollout_func": host, "reward_funcs": progress.rewards}
    if mode == "openenv":
        own = {"environment_factory": lambda: Sums(url), "reward_funcs": episode_reward}
    trainer = GRPOTrainer(
        model=net,
        processing_class=words,
        **own,
        train_dataset=rows,
        callbacks=[progress],
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
    return progress.steps


def plot(runs: dict[tuple[str, int], list[Step]], path: Path) -> None:
    """Draws a curve for each seed and mode: over steps, or over tokens if modes are compared."""
    import matplotlib

    matplotlib.use("svg")
    # The same figure gives the same file.
    matplotlib.rcParams["svg.hashsalt"] = "train-grpo"
    from matplotlib import pyplot

    modes = list(dict.fromkeys(mode for mode, _ in runs))
    seeds = list(dict.fromkeys(seed for _, seed in runs))
    figure, axes = pyplot.subplots(figsize=(6, 3.2))
    for (mode, seed), steps in runs.items():
        rewards = [step.reward for step in steps]
        if len(modes) == 1:
            axes.plot(range(1, len(steps) + 1), rewards, label=f"seed {seed}")
            continue
        # Means of a few steps, because a step has as many parents as branches only.
        last = range(len(steps))
        smooth = [rewards[max(at - COMPARED + 1, 0) : at + 1] for at in last]
        label = {"workflow": "independent"}.get(mode, mode) if seed == seeds[0] else None
        means = [sum(part) / len(part) for part in smooth]
        axes.plot([step.tokens for step in steps], means, label=label, color=f"C{modes.index(mode)}")
    of_modes = len(modes) > 1
    axes.set(xlabel="generated tokens" if of_modes else "step", ylabel="mean reward", ylim=(0, 1.02))
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:9000", help="the host, with the plugin of the mode")
    parser.add_argument(
        "--mode",
        choices=["workflow", "branches", "openenv"],
        nargs="+",
        default=["workflow"],
        help="workflow: the host runs the plugin `calculator`; branches: the same, and some generations of a prompt continue "
        "others; openenv: TRL acts in the environment of this example. Several modes begin with the same model",
    )
    parser.add_argument("--rows", type=Path, default=HERE / "rows.jsonl")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tokens", type=int, help="train until the model has generated this number of tokens, at most --steps")
    parser.add_argument("--turn", type=int, default=1, help="number of calls of the model that a branch shares")
    parser.add_argument("--per-parent", type=int, default=1, help="number of branches of each rollout from the beginning")
    parser.add_argument("--pretrain-steps", type=int, default=400)
    parser.add_argument("--threads", type=int, default=1, help="threads of the model; more are slower where others use the cores")
    parser.add_argument("--plot", type=Path, help="an image of the curves, such as rewards.svg")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    # TRL calls both interfaces experimental; its version is pinned.
    warnings.filterwarnings("ignore", message="You are using '(rollout_func|environment_factory)'")
    warnings.filterwarnings("ignore", category=FutureWarning)
    rows = load_rows(arguments.rows)
    runs: dict[tuple[str, int], list[Step]] = {}
    failed = False
    for seed in arguments.seeds:
        began = time.monotonic()
        net, words = pretrained(seed, rows, arguments)
        for mode in arguments.mode:
            steps = runs[mode, seed] = train(mode, seed, rows, copy.deepcopy(net), words, arguments)
            rewards = [step.reward for step in steps]
            first, last = (sum(part) / len(part) for part in (rewards[:COMPARED], rewards[-COMPARED:]))
            failed |= last - first < RISE_MIN
            secs, began = round(time.monotonic() - began), time.monotonic()
            summary = {"mode": mode, "seed": seed, "first": round(first, 3), "last": round(last, 3), "steps": len(steps)}
            print(json.dumps({**summary, "tokens": steps[-1].tokens, "secs": secs}), flush=True)
    if arguments.plot:
        plot(runs, arguments.plot)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
