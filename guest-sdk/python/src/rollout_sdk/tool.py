"""Tools: functions that the model may call.

`@tool` creates a `Tool` from a function. Its definition for the model comes from the signature's type hints and the
docstring. An error in a call is reported to the model as text, and never fails the rollout.

The tools that the operator provides are in `rollout_sdk.host_tools`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints, overload

from ._json import JsonObject, dump, is_a, load_object
from ._schema import MISSING, Field, Mismatch, read_fields, schema_of_fields
from .errors import Failed, Invalid, RolloutError
from .message import ToolCall, ToolResult

P = ParamSpec("P")
R = TypeVar("R")


class Tool(Generic[P, R]):
    """A function that the model may call. Calling it calls the function."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        context_names: frozenset[str] = frozenset(),
    ) -> None:
        self.function = function
        self.name: str = name or getattr(function, "__name__", None) or type(function).__name__
        summary, described = read_docstring(inspect.getdoc(function) or "")
        self.description = summary if description is None else description
        self._context_names = context_names
        self._fields, self._takes_rest = _parameters(function, self.name, described, context_names)
        self.__doc__ = function.__doc__
        self.__name__ = self.name

    @property
    def parameters(self) -> JsonObject:
        """The JSON schema of the arguments."""
        return schema_of_fields(self._fields)

    @property
    def schema(self) -> JsonObject:
        """The definition for the model, in the form of OpenAI's function tools."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    async def run(self, arguments: str, context: dict[str, Any] | None = None) -> Any:
        """Calls the function with the arguments that the model wrote as JSON text. `context` has the framework's
        additional arguments. Raises `Invalid` for invalid arguments, and the function's exceptions."""
        # Models write an empty text for a function without parameters.
        given = load_object(arguments if arguments.strip() else None, "the arguments")
        try:
            values = read_fields(self._fields, given)
        except Mismatch as mismatch:
            raise Invalid(f"the arguments: {mismatch}") from None
        if self._takes_rest:
            values.update((name, value) for name, value in given.items() if name not in values)
        for name in self._context_names:
            if context and name in context:
                values[name] = context[name]
        result: Any = self.function(**values)  # type: ignore[call-arg]
        return await result if inspect.isawaitable(result) else result

    async def call(self, call: ToolCall) -> ToolResult:
        """Makes a tool call. A returned text goes to the model unchanged, any other value as JSON, and an exception as
        `error: …`."""
        try:
            return ToolResult(call.id, as_text(await self.run(call.arguments)))
        except Exception as error:
            return failed(call, error)


def as_text(result: Any) -> str:
    """Returns the text of a tool's result for the model."""
    return result if isinstance(result, str) else dump(result, "the result")


def failed(call: ToolCall, error: Exception | str) -> ToolResult:
    """Returns the result of a failed call."""
    return ToolResult(call.id, f"error: {explain(error)}", is_error=True)


def explain(error: Exception | str) -> str:
    """Returns the text of an exception for the model."""
    if isinstance(error, (str, RolloutError)):
        return str(error)
    text = str(error)
    # The text of these exceptions is only the key, or empty.
    named = isinstance(error, KeyError) or not text
    return f"{type(error).__name__}: {text}".removesuffix(": ") if named else text


def as_tool(item: Any) -> Tool[..., Any]:
    """Returns a tool as it is, or creates one from a plain function."""
    made: Tool[..., Any] = item if is_a(item, Tool) else Tool(item)
    return made


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None, /, *, name: str | None = None, description: str | None = None
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Creates a `Tool` from a function, `async` or not.

        @tool
        def add(a: float, b: float) -> float:
            \"\"\"Adds two numbers.

            Args:
                a: The first.
                b: The second.
            \"\"\"
            return a + b
    """
    if function is not None:
        return Tool(function)
    return lambda function: Tool(function, name=name, description=description)


def _parameters(
    function: Callable[..., Any], name: str, described: dict[str, str], context_names: frozenset[str]
) -> tuple[list[Field], bool]:
    """Returns the parameters for the model, and whether others are accepted."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise Failed(f"the type hints of tool `{name}` cannot be read: {error}") from error
    fields: list[Field] = []
    takes_rest = False
    for parameter in inspect.signature(function).parameters.values():
        match parameter.kind:
            case parameter.VAR_KEYWORD:
                takes_rest = True
            case parameter.POSITIONAL_ONLY | parameter.VAR_POSITIONAL:
                raise Failed(f"tool `{name}`: parameter `{parameter}` has no name that the model could use")
            case _ if parameter.name not in context_names:
                default = MISSING if parameter.default is parameter.empty else parameter.default
                hint = hints.get(parameter.name, Any)
                fields.append(Field(parameter.name, hint, default, described.get(parameter.name)))
            case _:
                # The context, which does not come from the model.
                pass
    return fields, takes_rest


_HEADING = re.compile(r"(Args|Arguments|Parameters|Params|Returns?|Yields?|Raises|Examples?|Notes?):\s*")
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Returns the description before the first heading, and the text about each argument under `Args:`, in Google's
    style."""
    section = ""
    summary: list[str] = []
    arguments: dict[str, str] = {}
    margin = 0
    current = ""
    for line in doc.splitlines():
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if heading := _HEADING.fullmatch(text) if indent == 0 else None:
            section, margin, current = heading[1], 0, ""
        elif not section:
            summary.append(text)
        elif section[0] in "AP" and text:
            margin = margin or indent
            entry = _ARGUMENT.fullmatch(text) if indent <= margin else None
            if entry:
                current = entry[1]
                arguments[current] = entry[2]
            elif current:
                arguments[current] = f"{arguments[current]} {text}".strip()
    return "\n".join(summary).strip(), arguments
