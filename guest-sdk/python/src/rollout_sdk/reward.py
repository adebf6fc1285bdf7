"""Reward functions: a grader that is one function of the answer and the truth.

    @osmosis_reward
    def exact(solution_str: str, ground_truth: str, extra_info: dict | None = None, **kwargs) -> float:
        return float(solution_str.strip() == ground_truth)

A module with one such function, and no `Grader`, has it as its grader.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from .grading import Grader, GraderContext

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "_rollout_reward"


def osmosis_reward(function: F) -> F:
    """Marks a function as the reward function. It takes the text of the model's last
    message, the row's ground truth, and, where it has a parameter for it, the row's
    metadata."""
    names = list(inspect.signature(function).parameters)
    if names[:2] != ["solution_str", "ground_truth"]:
        raise TypeError(
            f"the reward function `{function.__name__}` takes {', '.join(names) or 'nothing'}; "
            "its first parameters are solution_str and ground_truth"
        )
    setattr(function, _MARK, True)
    return function


def is_reward(value: Any) -> bool:
    """Whether this is such a function."""
    return inspect.isfunction(value) and getattr(value, _MARK, False)


def grader_of(function: Callable[..., Any]) -> type[Grader]:
    """The grader that a reward function is."""
    parameters = inspect.signature(function).parameters
    takes_info = "extra_info" in parameters or any(
        each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()
    )

    class Reward(Grader):
        async def grade(self, ctx: GraderContext) -> None:
            for sample in ctx.samples.values():
                info = {"extra_info": ctx.metadata} if takes_info else {}
                reward: Any = function(sample.text, ctx.require_label(), **info)
                sample.reward = await reward if inspect.isawaitable(reward) else reward

    Reward.__name__ = Reward.__qualname__ = getattr(function, "__name__", "Reward")
    return Reward
