"""Environments: a caller's model acts, and the plugin answers with observations and rewards.

    class Hunt(Environment):
        '''Guess the hidden number.'''

        def reset(self, task: Task) -> str:
            self.hidden = task.hidden
            return "Guess a number between 0 and 99."

        def guess(self, number: int) -> Turn[str]:
            '''Guesses a number.'''
            if number == self.hidden:
                return Turn("Found.", reward=1.0, done=True)
            return Turn("Higher." if number < self.hidden else "Lower.")

An object is one episode, in an instance of its own: `reset` begins it, and each public method is a tool that the caller's
model may call in a step. A class with `step` accepts actions too, which are values of the type of its parameter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from ._json import JsonObject
from .config import EnvironmentConfig
from .errors import Invalid

ObservationT = TypeVar("ObservationT")
EnvironmentConfigT = TypeVar("EnvironmentConfigT", bound=EnvironmentConfig)


@dataclass
class Turn(Generic[ObservationT]):
    """The result of a reset, a step or a tool. An observation alone is a turn without a reward that does not end the
    episode."""

    observation: ObservationT
    """The observation, which the caller reads: it must not contain the label. That of a reset or a step is an object (a
    dataclass or a dict) or a text, which becomes `{"text": …}`. That of a tool is any JSON value."""
    reward: float | None = None
    """The reward of this step, a finite number. A grader replaces it."""
    done: bool = False
    """Whether the episode has ended."""
    metadata: JsonObject = field(default_factory=dict[str, Any])
    """Values for people and logs."""


SplitKind = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Split:
    """A named part of an environment's tasks."""

    name: str
    tasks: int
    """The number of tasks."""
    kind: SplitKind | None = None
    """The purpose. By default it is that of the name, which is then `train`, `validation` or `test`."""


class Environment(ABC, Generic[EnvironmentConfigT]):
    """An environment. The entry module has at most one subclass with `reset`.

    Public methods of the subclass are tools. Their type hints and docstrings make the schemas, and a method whose name
    begins with `_` is not a tool. `reset`, `step` and tools may be `async`."""

    name: str = ""
    """The environment's name; if empty, the class's name."""

    version: str | None = None
    """The environment's own version."""

    def __init__(self, config: EnvironmentConfigT | None = None) -> None:
        self.config = config

    @abstractmethod
    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Begins the episode and returns the first observation. It is called once for each object.

        The first parameter receives the arguments of the reset, such as a row of a data set, as the type of its hint.
        Parameters `seed` and `episode_id`, if the method has them, receive the caller's values, or None. With a grader
        in the plugin the label is not among the arguments. An exception ends the reset, and no episode begins."""

    def state(self) -> Any:
        """Returns the part of the state that the caller may see: a dataclass or a dict, which must not contain the
        label."""
        return {}

    @classmethod
    def splits(cls) -> Sequence[Split]:
        """Returns the splits of the tasks."""
        return ()

    @classmethod
    def task(cls, split: str, index: int) -> Mapping[str, Any]:
        """Returns a task of a split, which a caller passes to a reset as its arguments. Raises `Invalid` if there is no
        such task."""
        raise Invalid(f"there is no task {index} of the split '{split}'")
