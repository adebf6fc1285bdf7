"""Reads the author's environment by its type hints, and runs an episode of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin, get_type_hints

from ._json import JsonObject, as_number, dump, is_a, is_object, load_object
from ._schema import Mismatch, as_json, fields_of, read_value, schema_of
from .environment import Environment, Split, Turn
from .errors import Failed, Invalid, NotAPlugin, RolloutError
from .tool import Tool, read_docstring

OWN = frozenset({"reset", "step", "state", "splits", "task"})
"""Public methods that are not tools."""

_OF_RESET = ("seed", "episode_id")
_KINDS = ("train", "validation", "test")
_TEXT: JsonObject = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@dataclass(frozen=True)
class Facts:
    """The facts about an environment's class."""

    kind: type[Environment[Any]]
    tools: dict[str, Tool[..., Any]]
    own_names: dict[str, str]
    """The name of the first parameter, `self`, of each tool."""
    task: tuple[str, Any] | None
    """Name and hint of the parameter for the arguments of a reset."""
    reset_names: tuple[str, ...]
    """The other parameters of `reset`."""
    action: Any
    """The hint of an action; None if only tools are called."""

    @property
    def name(self) -> str:
        return self.kind.name or self.kind.__name__

    def description(self) -> JsonObject:
        """Returns the members of the contract's description. Tools and schemas are JSON values."""
        hints = [_observation_hint(self.kind, name) for name in ("reset", "step")]
        hint = next((each for each in hints if each is not Any), Any)
        return {
            "name": self.name,
            # Not inherited, as `inspect.getdoc` would: the base class describes itself.
            "description": read_docstring(inspect.cleandoc(self.kind.__doc__ or ""))[0],
            "version": self.kind.version,
            "action": None if self.action is None else _action_schema(self.action),
            "observation": dict(_TEXT) if hint is str else _object_schema(hint),
            "state": _state_schema(self.kind),
            "tools": [tool.schema for tool in self.tools.values()],
            "splits": [_split(self.kind, each) for each in self.kind.splits()],
        }


def read(kind: type[Environment[Any]]) -> Facts:
    """Reads a class. Raises `NotAPlugin` with the place of the first mistake."""
    tools: dict[str, Tool[..., Any]] = {}
    own_names: dict[str, str] = {}
    for name in _public_methods(kind):
        method = getattr(kind, name)
        tools[name], own_names[name] = _tool(kind, name, method)
    for name in ("splits", "task"):
        if not isinstance(inspect.getattr_static(kind, name), (classmethod, staticmethod)):
            raise NotAPlugin(f"`{kind.__name__}.{name}` needs `@classmethod`: tasks are listed without an episode")
    if kind.splits.__func__ is not Environment.splits.__func__ and not _overrides(kind, "task"):  # type: ignore[attr-defined]
        raise NotAPlugin(f"`{kind.__name__}` has splits and no `task`: write `@classmethod def task(cls, split, index)`")
    if not tools and not hasattr(kind, "step"):
        raise NotAPlugin(
            f"`{kind.__name__}` cannot be acted in: write public methods, which are its tools, or `def step(self, action: Action)`"
        )
    task, reset_names = _reset_parameters(kind)
    return Facts(kind, tools, own_names, task, reset_names, _action_hint(kind))


def _overrides(kind: type[Environment[Any]], name: str) -> bool:
    return inspect.getattr_static(kind, name) is not inspect.getattr_static(Environment, name)


def _public_methods(kind: type[Environment[Any]]) -> list[str]:
    """Returns the names of the tools in the order of their definition, base classes first."""
    names: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        if base in (object, Environment) or base in Environment.__mro__:
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name in OWN:
                continue
            if isinstance(value, Tool):
                raise NotAPlugin(f"`{kind.__name__}.{name}`: every public method is a tool, so remove `@tool`")
            if inspect.isfunction(value):
                names[name] = None
    return [name for name in names if inspect.isfunction(inspect.getattr_static(kind, name))]


def _tool(kind: type[Environment[Any]], name: str, method: Any) -> tuple[Tool[..., Any], str]:
    where = f"`{kind.__name__}.{name}`"
    private = f"; if it is no tool, let its name begin with `_`: `_{name}`"
    if not inspect.getdoc(method):
        raise NotAPlugin(f"{where} is a tool and has no docstring, which tells the model what it does{private}")
    parameters = list(inspect.signature(method).parameters.values())
    if not parameters:
        raise NotAPlugin(f"{where} has no `self`{private}")
    first, *others = parameters
    hints = _hints(kind, name)
    for parameter in others:
        if parameter.name not in hints and parameter.kind is not parameter.VAR_KEYWORD:
            raise NotAPlugin(
                f"{where}: the parameter `{parameter.name}` has no type hint, from which the model learns what to give{private}"
            )
    try:
        made: Tool[..., Any] = Tool(method, name=name, context_names=frozenset({first.name}))
        dump(made.schema, f"the schema of {where}")
    except (RolloutError, Mismatch) as error:
        raise NotAPlugin(f"{where}: {error}") from None
    return made, first.name


def _hints(kind: type[Environment[Any]], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(getattr(kind, name), include_extras=True)
    except (NameError, TypeError) as error:
        raise NotAPlugin(f"the type hints of `{kind.__name__}.{name}` cannot be read: {error}") from None


def _reset_parameters(kind: type[Environment[Any]]) -> tuple[tuple[str, Any] | None, tuple[str, ...]]:
    _, *parameters = inspect.signature(kind.reset).parameters.values()
    task: tuple[str, Any] | None = None
    if parameters and parameters[0].name not in _OF_RESET and parameters[0].kind is parameters[0].POSITIONAL_OR_KEYWORD:
        task = parameters[0].name, _hints(kind, "reset").get(parameters[0].name, Any)
        parameters = parameters[1:]
    for parameter in parameters:
        if parameter.name not in _OF_RESET:
            raise NotAPlugin(
                f"`{kind.__name__}.reset` has a parameter `{parameter}`; it has the task first, and then `seed` and `episode_id` "
                "where it needs them. Make other arguments fields of the task's type"
            )
    return task, tuple(parameter.name for parameter in parameters)


def _action_hint(kind: type[Environment[Any]]) -> Any:
    if not hasattr(kind, "step"):
        return None
    step: Any = getattr(kind, "step")
    parameters = list(inspect.signature(step).parameters.values())
    if len(parameters) != 2:
        raise NotAPlugin(f"`{kind.__name__}.step` has one parameter besides `self`, the action")
    hint = _hints(kind, "step").get(parameters[1].name, Any)
    if _action_schema(hint).get("type") != "object":
        raise NotAPlugin(
            f"`{kind.__name__}.step` takes an action that is no object: give `{parameters[1].name}` a dataclass or a "
            "TypedDict as its hint"
        )
    return hint


def _action_schema(hint: Any) -> JsonObject:
    schema = _object_schema(hint)
    if fields_of(hint):
        schema["additionalProperties"] = False
    return schema


def _object_schema(hint: Any) -> JsonObject:
    """Returns the schema of an object, with the name of its type as its title."""
    schema = schema_of(hint)
    if not schema or "type" not in schema:
        return {"type": "object", **schema}
    title = getattr(hint, "__name__", None)
    return {"title": title, **schema} if title and fields_of(hint) else schema


def _observation_hint(kind: type[Environment[Any]], name: str) -> Any:
    if not hasattr(kind, name):
        return Any
    hint = _hints(kind, name).get("return", Any)
    if get_origin(hint) is Turn:
        return get_args(hint)[0]
    return Any if hint is Turn else hint


def _state_schema(kind: type[Environment[Any]]) -> JsonObject | None:
    hint = _hints(kind, "state").get("return", Any)
    return None if hint is Any else _object_schema(hint)


def _split(kind: type[Environment[Any]], split: Split) -> JsonObject:
    if not isinstance(split, Split):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Failed(f"`{kind.__name__}.splits` returned {type(split).__name__}; return Split(name, tasks)")
    purpose = split.kind or split.name
    if purpose not in _KINDS:
        raise Failed(
            f"the split '{split.name}' needs a kind, {', '.join(_KINDS)}: Split({split.name!r}, {split.tasks}, kind=\"test\")"
        )
    return {"name": split.name, "kind": purpose, "tasks": split.tasks}


@dataclass(frozen=True)
class Outcome:
    """The result of a reset or a step, as JSON texts."""

    observation: str
    reward: float | None
    done: bool
    metadata: str | None


class Episode:
    """An episode of an environment."""

    def __init__(self, facts: Facts, config: Any) -> None:
        self._facts = facts
        self._environment = facts.kind(config)

    async def reset(self, seed: int | None, episode_id: str | None, arguments: str) -> Outcome:
        """Begins the episode."""
        facts = self._facts
        given: JsonObject = {"seed": seed, "episode_id": episode_id}
        values = {name: given[name] for name in facts.reset_names}
        task = load_object(arguments, "the arguments of the reset")
        if facts.task is not None:
            values[facts.task[0]] = _read(facts.task[1], task, "the arguments of the reset")
        return _outcome(await _result_of(self._environment.reset(**values)), f"{facts.kind.__name__}.reset")

    async def step(self, action: str) -> Outcome:
        """Takes an action."""
        facts = self._facts
        if facts.action is None:
            raise Invalid(f"actions in this environment are calls of its tools: {', '.join(facts.tools)}")
        value = load_object(action, "the action")
        known = [field.name for field in fields_of(facts.action)]
        unknown = [name for name in value if known and name not in known]
        if unknown:
            raise Invalid(f"the action: unknown field `{unknown[0]}`, expected {', '.join(f'`{name}`' for name in known)}")
        environment: Any = self._environment
        return _outcome(
            await _result_of(environment.step(_read(facts.action, value, "the action"))), f"{facts.kind.__name__}.step"
        )

    async def call(self, name: str, arguments: str) -> Outcome:
        """Calls a tool."""
        facts = self._facts
        tool = facts.tools.get(name)
        if tool is None:
            raise Invalid(f"there is no tool '{name}' here; there are: {', '.join(facts.tools) or 'none'}")
        result = await tool.run(arguments, {facts.own_names[name]: self._environment})
        return _outcome(result, f"{facts.kind.__name__}.{name}", is_tool=True)

    def state(self) -> str:
        """Returns the visible state."""
        state = as_json(self._environment.state())
        what = f"{self._facts.kind.__name__}.state"
        if not is_object(state):
            raise Failed(f"`{what}` returned {type(state).__name__}; return a dataclass or a dict")
        return dump(state, f"the result of `{what}`")


async def _result_of(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _read(hint: Any, value: JsonObject, what: str) -> Any:
    try:
        return read_value(hint, value)
    except Mismatch as mismatch:
        raise Invalid(f"{what}: {mismatch}") from None


def _outcome(result: Any, what: str, *, is_tool: bool = False) -> Outcome:
    turn: Turn[Any] = result if is_a(result, Turn) else Turn(result)
    observation = as_json(turn.observation)
    if not is_tool and isinstance(observation, str):
        observation = {"text": observation}
    if not is_tool and not is_object(observation):
        raise Failed(
            f"`{what}` returned {type(turn.observation).__name__} as its observation; return a dataclass, a dict or a text, "
            "alone or in a Turn"
        )
    reward = None if turn.reward is None else as_number(turn.reward, f"the reward of `{what}`")
    metadata = as_json(turn.metadata) if turn.metadata else None
    if metadata is not None and not is_a(metadata, Mapping):
        raise Failed(f"the metadata of `{what}` is {type(turn.metadata).__name__}; it is a dict")
    return Outcome(
        dump(observation, f"the observation of `{what}`"),
        reward,
        bool(turn.done),
        None if metadata is None else dump(metadata, f"the metadata of `{what}`"),
    )
