"""Guardrails of agents in the shape of the OpenAI Agents framework: they check an input before the model call, and an
output before it is returned."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from ._agents_items import (
    InputGuardrailTripwireTriggered,
    Item,
    OutputGuardrailTripwireTriggered,
    RunContextWrapper,
)

if TYPE_CHECKING:
    from .openai_agents import Agent


@dataclass
class GuardrailFunctionOutput:
    """The result of a guardrail function."""

    output_info: Any
    tripwire_triggered: bool
    """Whether the run must stop."""


@dataclass
class InputGuardrailResult:
    """The result of a guardrail for an input."""

    guardrail: InputGuardrail
    output: GuardrailFunctionOutput


@dataclass
class OutputGuardrailResult:
    """The result of a guardrail for an output."""

    guardrail: OutputGuardrail
    agent_output: Any
    agent: Agent[Any]
    output: GuardrailFunctionOutput


@dataclass
class InputGuardrail:
    """Checks the input of a run, before the first model call."""

    guardrail_function: Callable[..., Any]
    """The function that checks. Its arguments are the context, the agent and the input."""
    name: str | None = None
    run_in_parallel: bool = True
    """Whether the guardrail runs concurrently with other input guardrails."""

    def get_name(self) -> str:
        """Returns its name."""
        return self.name or self.guardrail_function.__name__

    async def run(
        self, agent: Agent[Any], input: str | list[Item], context: RunContextWrapper[Any]
    ) -> InputGuardrailResult:
        """Calls the guardrail function."""
        return InputGuardrailResult(self, await _checked(self.guardrail_function(context, agent, input)))


@dataclass
class OutputGuardrail:
    """Checks the output of the last agent."""

    guardrail_function: Callable[..., Any]
    """The function that checks. Its arguments are the context, the agent and its output."""
    name: str | None = None

    def get_name(self) -> str:
        """Returns its name."""
        return self.name or self.guardrail_function.__name__

    async def run(self, context: RunContextWrapper[Any], agent: Agent[Any], output: Any) -> OutputGuardrailResult:
        """Calls the guardrail function."""
        result = await _checked(self.guardrail_function(context, agent, output))
        return OutputGuardrailResult(self, output, agent, result)


async def _checked(given: Any) -> GuardrailFunctionOutput:
    result: Any = await given if inspect.isawaitable(given) else given
    if not isinstance(result, GuardrailFunctionOutput):
        raise TypeError(f"a guardrail returned {type(result).__name__}, not a GuardrailFunctionOutput")
    return result


@overload
def input_guardrail(function: Callable[..., Any], /) -> InputGuardrail: ...


@overload
def input_guardrail(
    *, name: str | None = None, run_in_parallel: bool = True
) -> Callable[[Callable[..., Any]], InputGuardrail]: ...


def input_guardrail(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, run_in_parallel: bool = True
) -> InputGuardrail | Callable[[Callable[..., Any]], InputGuardrail]:
    """Creates a guardrail from a function of the context, the agent and the input."""
    if function is not None:
        return InputGuardrail(function)
    return lambda function: InputGuardrail(function, name, run_in_parallel)


@overload
def output_guardrail(function: Callable[..., Any], /) -> OutputGuardrail: ...


@overload
def output_guardrail(*, name: str | None = None) -> Callable[[Callable[..., Any]], OutputGuardrail]: ...


def output_guardrail(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None
) -> OutputGuardrail | Callable[[Callable[..., Any]], OutputGuardrail]:
    """Creates a guardrail from a function of the context, the agent and its output."""
    if function is not None:
        return OutputGuardrail(function)
    return lambda function: OutputGuardrail(function, name)


async def check_input(
    guardrails: Iterable[InputGuardrail],
    agent: Agent[Any],
    input: str | list[Item],
    context: RunContextWrapper[Any],
) -> list[InputGuardrailResult]:
    """Returns the guardrails' results for an input. Raises if a guardrail rejects it."""
    listed = list(guardrails)
    results: list[InputGuardrailResult] = []
    for each in listed:
        if not each.run_in_parallel:
            results.append(await each.run(agent, input, context))
            _raise_if_triggered(results)
    together = (each.run(agent, input, context) for each in listed if each.run_in_parallel)
    results += await asyncio.gather(*together)
    _raise_if_triggered(results)
    return results


def _raise_if_triggered(results: list[InputGuardrailResult]) -> None:
    for each in results:
        if each.output.tripwire_triggered:
            raise InputGuardrailTripwireTriggered(each)


async def check_output(
    guardrails: Iterable[OutputGuardrail], context: RunContextWrapper[Any], agent: Agent[Any], output: Any
) -> list[OutputGuardrailResult]:
    """Returns the guardrails' results for an output. Raises if a guardrail rejects it."""
    results = await asyncio.gather(*(each.run(context, agent, output) for each in guardrails))
    for each in results:
        if each.output.tripwire_triggered:
            raise OutputGuardrailTripwireTriggered(each)
    return results
