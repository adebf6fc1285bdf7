"""An environment of many turns: the model walks through a text word by word, takes notes, and answers how often a letter
appears. The label goes to the grader only."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rollout_sdk import (
    Environment,
    EnvironmentConfig,
    Grader,
    GraderContext,
    Invalid,
    Split,
    Turn,
    same_number,
    text_of,
)

T = TypeVar("T")

STEPS_MAX = 60
"""The number of steps of an episode."""

ROWS: list[dict[str, Any]] = [json.loads(line) for line in Path(__file__).with_name("rows.jsonl").read_text().splitlines()]

SPLITS = {"train": ROWS[:16], "test": ROWS[16:]}


@dataclass
class Task:
    """The arguments of a reset: a row. The host has taken its label out."""

    user_prompt: str


@dataclass
class Opening:
    """The first observation: the task, and the number of words of the text."""

    text: str
    words: int


@dataclass
class Word:
    """A word of the text, its place from 0, and the model's note about it."""

    place: int
    word: str
    note: int | None


class WordWalk(Environment[EnvironmentConfig]):
    """Walk through a text word by word, and answer how often a letter appears in it."""

    name = "word-walk"

    def reset(self, task: Task) -> Turn[Opening]:
        # How many times does the letter "p" appear in the text: "to the poles"?
        parts = task.user_prompt.split('"')
        if len(parts) != 5:
            raise Invalid("user_prompt: it has no letter and text in quotation marks")
        self.letter, self.words = parts[1], parts[3].split()
        if not self.words:
            raise Invalid("user_prompt: its text is empty")
        self.notes: list[int | None] = [None] * len(self.words)
        self.place = self.steps = 0
        text = f'How many times does the letter "{self.letter}" appear in the text? Read its words one by one.'
        return Turn(Opening(text, len(self.words)))

    def go(self, place: int) -> Turn[Word]:
        """Goes to a word and reads it.

        Args:
            place: The place of a word, from 0.
        """
        if not 0 <= place < len(self.words):
            raise Invalid(f"there is no word {place}; the text has {len(self.words)}")
        self.place = place
        return self._turn(self._word())

    def spell(self) -> Turn[list[str]]:
        """Lists the letters of the current word."""
        return self._turn(list(self.words[self.place]))

    def note(self, count: int) -> Turn[Word]:
        """Notes how often the letter is in the current word.

        Args:
            count: How often the letter appears.
        """
        self.notes[self.place] = count
        return self._turn(self._word())

    def sum(self) -> Turn[int]:
        """Returns the sum of the notes."""
        return self._turn(sum(count or 0 for count in self.notes))

    def answer(self, count: int) -> Turn[dict[str, int]]:
        """Answers, which ends the episode.

        Args:
            count: How often the letter appears.
        """
        self.steps += 1
        return Turn({"answer": count}, done=True)

    def _turn(self, value: T) -> Turn[T]:
        self.steps += 1
        return Turn(value, done=self.steps >= STEPS_MAX)

    def _word(self) -> Word:
        return Word(self.place, self.words[self.place], self.notes[self.place])

    def state(self) -> dict[str, Any]:
        return {"letter": self.letter, "place": self.place, "notes": self.notes, "steps": self.steps}

    @classmethod
    def splits(cls) -> list[Split]:
        return [Split(name, len(rows)) for name, rows in SPLITS.items()]

    @classmethod
    def task(cls, split: str, index: int) -> Mapping[str, Any]:
        if split not in SPLITS:
            raise Invalid(f"there is no split '{split}'; there are: {', '.join(SPLITS)}")
        if index >= len(SPLITS[split]):
            raise Invalid(f"the split '{split}' has no task {index}; it has {len(SPLITS[split])}")
        row = SPLITS[split][index]
        return {"user_prompt": row["user_prompt"], "ground_truth": row["ground_truth"]}


class RightAnswer(Grader):
    """Rewards the right answer with 1. An episode without an answer counts as wrong. If the model called several tools at once,
    results of other tools may follow the answer."""

    async def grade(self, ctx: GraderContext) -> float:
        label = ctx.require_label()
        for message in reversed(ctx.sample.messages):
            if message["role"] != "tool":
                continue
            try:
                return same_number(str(json.loads(text_of(message))["answer"]), label)
            except (ValueError, TypeError, KeyError):
                continue
        return 0.0
