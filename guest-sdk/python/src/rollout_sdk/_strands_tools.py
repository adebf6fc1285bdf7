"""Tools of agents in the shape of the Strands framework."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from ._json import JsonObject, is_a
from .tool import Tool, as_tool

if TYPE_CHECKING:
    from .strands import Agent

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class ToolContext:
    """The context of a tool call, for tools with a parameter for it."""

    tool_use: JsonObject
    agent: Agent
    invocation_state: JsonObject


_AGENT = "agent"
"""The name of the parameter for the agent."""


class AgentTool(Tool[P, R]):
    """A tool that may receive the agent and the call's context, and may have its own schema."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        context: bool | str = False,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        names = inspect.signature(function).parameters
        wanted = "tool_context" if context is True else context or None
        if wanted is not None and wanted not in names:
            raise ValueError(f"tool `{name or function.__name__}` has no parameter `{wanted}` for its context")
        self._context = wanted
        given = {_AGENT, *([wanted] if wanted else [])}
        super().__init__(function, name=name, description=description, context_names=frozenset(given & set(names)))
        self._schema = schema

    @property
    def parameters(self) -> JsonObject:
        if self._schema is None:
            return super().parameters
        inner: Any = self._schema.get("json", self._schema)
        return dict(inner)

    def beside(self, context: ToolContext) -> JsonObject:
        """Returns the arguments that the model does not choose."""
        return {_AGENT: context.agent, **({self._context: context} if self._context else {})}


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    inputSchema: Mapping[str, Any] | None = None,
    context: bool | str = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    inputSchema: Mapping[str, Any] | None = None,  # noqa: N803
    context: bool | str = False,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Creates a tool from a function, `async` or not. A parameter `agent` receives the agent; with `context`, the
    parameter of that name (`tool_context`) receives a `ToolContext`. Both are hidden from the model."""

    def make(function: Callable[P, R]) -> Tool[P, R]:
        return AgentTool(function, name=name, description=description, context=context, schema=inputSchema)

    return make if function is None else make(function)


def tools_of(item: Any) -> list[Tool[..., Any]]:
    """Returns the tools that an item of `tools` stands for."""
    if is_a(item, list, tuple, set):
        return [each for inner in item for each in tools_of(inner)]
    if hasattr(item, "as_tool"):
        # Another agent.
        return [item.as_tool()]
    if is_a(item, str, Mapping):
        raise TypeError(f"a component loads no tools by name or path; give the function itself in place of {item!r}")
    if is_a(item, ModuleType):
        return [_of_module(item)]
    return [item if is_a(item, Tool) else as_tool(item)]


def _of_module(module: Any) -> Tool[..., Any]:
    """Returns the tool of a module with `TOOL_SPEC` and a function of that name, which receives the call."""
    spec: Any = getattr(module, "TOOL_SPEC", {})
    function: Any = getattr(module, spec.get("name", ""), None)
    if function is None:
        raise TypeError(f"module `{module.__name__}` is not a tool: it has no TOOL_SPEC, or no function of its name")

    async def called(tool_context: ToolContext, **arguments: Any) -> Any:
        use = {**tool_context.tool_use, "input": arguments}
        result = function(use, **tool_context.invocation_state)
        return await result if inspect.isawaitable(result) else result

    return AgentTool(
        called, name=spec["name"], description=spec["description"], context=True, schema=spec["inputSchema"]
    )


class ConcurrentToolExecutor:
    """Runs the tools of one reply concurrently."""

    at_once = True


class SequentialToolExecutor:
    """Runs the tools of one reply one after another."""

    at_once = False
