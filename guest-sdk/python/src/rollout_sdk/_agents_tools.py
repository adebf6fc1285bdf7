"""Tools of agents in the shape of the OpenAI Agents framework."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints, overload

from ._agents_items import RunContextWrapper, ToolCallOutputItem, ToolContext
from ._json import JsonObject, is_object
from .tool import Tool, explain

if TYPE_CHECKING:
    from .openai_agents import Agent

Enabled = bool | Callable[..., Any]
"""Whether something is offered: a constant, or a function of the context and the agent."""


async def is_enabled(given: Enabled, context: RunContextWrapper[Any], agent: Agent[Any]) -> bool:
    """Returns whether something is offered to this agent's model."""
    if not callable(given):
        return given
    result: Any = given(context, agent)
    return bool(await result if inspect.isawaitable(result) else result)


def default_tool_error_function(ctx: RunContextWrapper[Any], error: Exception) -> str:
    """Returns the text for the model if a tool raises."""
    return f"An error occurred while running the tool. Please try again. Error: {explain(error)}"


class FunctionTool(Tool[..., Any]):
    """A function that the model may call, with a strict schema. `function_tool` creates one from a function; one
    created directly receives the context and the model's JSON."""

    def __init__(
        self,
        name: str,
        description: str,
        params_json_schema: JsonObject,
        on_invoke_tool: Callable[[ToolContext[Any], str], Awaitable[Any]],
        strict_json_schema: bool = True,
        is_enabled: Enabled = True,
    ) -> None:
        self.name = name
        self.description = description
        self.params_json_schema = strict(params_json_schema) if strict_json_schema else params_json_schema
        self.on_invoke_tool = on_invoke_tool
        self.strict_json_schema = strict_json_schema
        self.is_enabled = is_enabled
        self.function: Callable[..., Any] = on_invoke_tool
        self.__name__ = name
        self.__doc__ = description

    @property
    def parameters(self) -> JsonObject:
        """The JSON schema of the arguments."""
        return self.params_json_schema

    @property
    def schema(self) -> JsonObject:
        """The definition for the model, in the form of OpenAI's function tools."""
        schema = super().schema
        if self.strict_json_schema:
            schema["function"]["strict"] = True
        return schema

    async def run(self, arguments: str, context: dict[str, Any] | None = None) -> Any:
        """Calls the tool outside of a run of agents, without a context."""
        given: ToolContext[Any] = ToolContext(None, tool_name=self.name, tool_arguments=arguments)
        return await self.on_invoke_tool(given, arguments)


@dataclass
class FunctionToolResult:
    """The result of a tool call, for the function that decides whether it is the final output."""

    tool: FunctionTool
    output: Any
    run_item: ToolCallOutputItem


def strict(schema: JsonObject, title: str | None = None) -> JsonObject:
    """Returns the schema for strict mode: every property is required, no other is allowed."""
    made: JsonObject = {}
    for key, value in schema.items():
        if key == "properties":
            made[key] = {name: strict(one, _title_of(name)) for name, one in value.items()}
        elif key in ("items", "additionalProperties") and is_object(value):
            made[key] = strict(value)
        elif key in ("anyOf", "prefixItems"):
            made[key] = [strict(one) for one in value]
        elif key == "$defs":
            made[key] = {name: strict(one) for name, one in value.items()}
        elif key != "default":
            made[key] = value
    if "properties" in made:
        made["required"] = list(made["properties"])
        made["additionalProperties"] = False
    if title is not None:
        made["title"] = title
    return made


def _title_of(name: str) -> str:
    return name.replace("_", " ").title()


@overload
def function_tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def function_tool(
    *,
    name_override: str | None = None,
    description_override: str | None = None,
    use_docstring_info: bool = True,
    failure_error_function: Callable[..., Any] | None = default_tool_error_function,
    strict_mode: bool = True,
    is_enabled: Enabled = True,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def function_tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name_override: str | None = None,
    description_override: str | None = None,
    use_docstring_info: bool = True,
    failure_error_function: Callable[..., Any] | None = default_tool_error_function,
    strict_mode: bool = True,
    is_enabled: Enabled = True,
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Creates a tool from a function, `async` or not. A first parameter that is hinted as a `RunContextWrapper` or a
    `ToolContext` receives the run's context and is hidden from the model. If the function raises, the model receives
    the text of `failure_error_function`; if that is None, the run fails."""

    def make(function: Callable[..., Any]) -> FunctionTool:
        described = description_override if use_docstring_info else description_override or ""
        names = _context_names(function)
        inner = Tool(function, name=name_override, description=described, context_names=names)

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            try:
                return await inner.run(arguments, {name: context for name in names})
            except Exception as error:
                if failure_error_function is None:
                    raise
                text: Any = failure_error_function(context, error)
                return await text if inspect.isawaitable(text) else text

        schema = strict(inner.parameters, f"{inner.name}_args") if strict_mode else inner.parameters
        made = FunctionTool(inner.name, inner.description, schema, invoke, strict_mode, is_enabled)
        made.function = function
        made.__doc__ = function.__doc__
        return made

    return make if function is None else make(function)


def _context_names(function: Callable[..., Any]) -> frozenset[str]:
    first = next(iter(inspect.signature(function).parameters), None)
    hint = get_type_hints(function).get(first) if first is not None else None
    if first is not None and (get_origin(hint) or hint) in (RunContextWrapper, ToolContext):
        return frozenset([first])
    return frozenset()
