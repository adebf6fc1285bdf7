"""An environment over arithmetic tasks: the model guesses the result and learns whether it is higher or lower, until it has
found it or used up its guesses. Fewer guesses earn a higher reward."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from rollout_sdk import Environment, EnvironmentConfig, Invalid, Split, Turn, parse_number

GUESSES_MAX = 8
"""The number of guesses in an episode."""

ROWS: list[dict[str, Any]] = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").read_text().splitlines()]

SPLITS = {"train": ROWS[:12], "test": ROWS[12:]}


@dataclass
class Guess:
    """A guess."""

    number: float


@dataclass
class Hint:
    """Answer to the model: the task, or the answer to the last guess."""

    text: str
    guesses_left: int


@dataclass
class Task:
    """Arguments of a reset: a row, or the name of a task."""

    user_prompt: str | None = None
    ground_truth: str | None = None
    split: str = "train"
    index: int | None = None


class Guesses(TypedDict):
    guesses: list[float]


class NumberHunt(Environment[EnvironmentConfig]):
    """Find the result of an arithmetic problem with hints: higher or lower."""

    name = "number-hunt"

    def reset(self, task: Task, seed: int | None = None) -> Turn[Hint]:
        prompt, label = task.user_prompt, task.ground_truth
        if label is None:
            # Without a task, the seed selects one.
            index = (seed or 0) % len(rows(task.split)) if task.index is None else task.index
            row = row_of(task.split, index)
            prompt, label = row["user_prompt"], row["ground_truth"]
        elif prompt is None:
            raise Invalid("a row needs user_prompt")
        hidden = parse_number(label)
        if hidden is None:
            raise Invalid("ground_truth: it is not a number")
        self.hidden = hidden
        self.guesses: list[float] = []
        return Turn(self._hint(str(prompt)))

    def step(self, action: Guess) -> Turn[Hint]:
        self.guesses.append(action.number)
        if abs(action.number - self.hidden) < 1e-9:
            return Turn(self._hint("That is it."), reward=1 / len(self.guesses), done=True)
        if len(self.guesses) == GUESSES_MAX:
            return Turn(self._hint("That was the last guess."), reward=0.0, done=True)
        return Turn(self._hint("The number is higher." if action.number < self.hidden else "The number is lower."))

    def state(self) -> Guesses:
        return {"guesses": self.guesses}

    def _hint(self, text: str) -> Hint:
        return Hint(text, GUESSES_MAX - len(self.guesses))

    @classmethod
    def splits(cls) -> list[Split]:
        return [Split(name, len(rows)) for name, rows in SPLITS.items()]

    @classmethod
    def task(cls, split: str, index: int) -> Mapping[str, Any]:
        # The label stays here: a reset finds it by the task's name.
        return {"split": split, "index": index, "user_prompt": row_of(split, index)["user_prompt"]}


def rows(split: str) -> list[dict[str, Any]]:
    """Returns the rows of a split."""
    if split not in SPLITS:
        raise Invalid(f"there is no split '{split}'; there are: {', '.join(SPLITS)}")
    return SPLITS[split]


def row_of(split: str, index: int) -> dict[str, Any]:
    """Returns a row of a split."""
    found = rows(split)
    if not 0 <= index < len(found):
        raise Invalid(f"the split '{split}' has no task {index}; it has {len(found)}")
    return found[index]
