"""Reward functions: graders that are one function of the answer and the ground truth.

    @osmosis_reward
    def exact(solution_str: str, ground_truth: str, extra_info: dict | None = None, **kwargs) -> float:
        return float(solution_str.strip() == ground_truth)

A module with one such function and no `Grader` has it as its grader. Its first parameters are `solution_str`, the text
of the model's last message, and `ground_truth`; or `messages`, all messages, and `ground_truth`, with the row's
metadata as `metadata`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from .errors import Failed
from .grading import Grader, GraderContext

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "_rollout_reward"

_METADATA_OF = {"solution_str": "extra_info", "messages": "metadata"}
"""The name of the parameter for the row's metadata, by the first parameter."""


def osmosis_reward(function: F) -> F:
    """Marks a function as the reward function."""
    names = list(inspect.signature(function).parameters)
    if names[:2] not in [[first, "ground_truth"] for first in _METADATA_OF]:
        raise TypeError(
            f"the reward function `{function.__name__}` takes {', '.join(names) or 'nothing'}; "
            "its first parameters are solution_str and ground_truth, or messages and ground_truth"
        )
    setattr(function, _MARK, True)
    return function


def osmosis_rubric(function: F) -> F:
    """Marks a function that calls a judge as the reward function. Its parameters are `solution_str`, `ground_truth`,
    which is None if the row has none, and `extra_info`."""
    names = list(inspect.signature(function).parameters)
    if names[:3] != ["solution_str", "ground_truth", "extra_info"]:
        raise TypeError(
            f"the rubric function `{function.__name__}` takes {', '.join(names) or 'nothing'}; "
            "its first parameters are solution_str, ground_truth and extra_info"
        )
    setattr(function, _MARK, False)
    return function


def is_reward(value: Any) -> bool:
    """Returns whether this is a reward function."""
    return inspect.isfunction(value) and hasattr(value, _MARK)


def grader_of(function: Callable[..., Any]) -> type[Grader]:
    """Returns a grader class for a reward function."""
    parameters = inspect.signature(function).parameters
    first = next(iter(parameters))
    needs_label: bool = getattr(function, _MARK)
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    named = _METADATA_OF[first]

    class Reward(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            for sample in ctx.samples.values():
                more = {named: ctx.metadata} if named in parameters or takes_any else {}
                given = sample.messages if first == "messages" else sample.text
                label = ctx.require_label() if needs_label else ctx.label
                reward: Any = function(given, label, **more)
                reward = await reward if inspect.isawaitable(reward) else reward
                if reward is None:
                    raise Failed(f"the reward function `{function.__name__}` returned nothing")
                sample.reward = reward

    Reward.__name__ = Reward.__qualname__ = getattr(function, "__name__", "Reward")
    return Reward
