"""Discovery of a module's workflow, loop, environment, grader and configurations by their classes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import GenericAlias, ModuleType
from typing import Any, TypeGuard, get_args, get_origin

from . import _episode
from ._app import App
from ._json import JsonObject
from .agent_loop import RolloutAgentLoop
from .config import AgentWorkflowConfig, BaseConfig, ConcurrencyConfig, EnvironmentConfig, GraderConfig
from .context import AgentWorkflow
from .environment import Environment
from .errors import NotAPlugin as NotAPlugin
from .grading import Grader
from .group import GroupGrader
from .reward import grader_of, is_reward


@dataclass(frozen=True)
class Declared:
    """A configuration as the author wrote it: a class, or an instance with values."""

    kind: type[BaseConfig]
    instance: BaseConfig | None = None

    def with_values(self, values: JsonObject) -> BaseConfig:
        """Returns the configuration with an operator's values. Raises `Invalid`."""
        return self.kind.read(values) if self.instance is None else self.instance.updated(values)

    def defaults(self) -> JsonObject:
        """Returns the default values that JSON can represent."""
        return self.kind.default_values() if self.instance is None else self.instance.plain_values()


@dataclass(frozen=True)
class Found:
    """The plugin classes of an entry module."""

    workflow: type[AgentWorkflow[Any]] | None
    agent_loop: type[RolloutAgentLoop] | None
    grader: type[Grader] | None
    workflow_config: Declared | None
    grader_config: Declared | None
    """The configurations with their defaults, if there are any."""
    environment: type[Environment[Any]] | None = None
    environment_config: Declared | None = None
    facts: _episode.Facts | None = None
    """The facts about the environment."""
    group_grader: type[GroupGrader] | None = None

    @property
    def exports(self) -> list[str]:
        """The interfaces that the component exports."""
        agent = ["workflow"] if self.workflow else ["agent-loop"] if self.agent_loop else []
        environment = ["environment"] if self.environment else []
        grader = ["grader"] if self.grader else []
        group_grader = ["group-grader"] if self.group_grader else []
        settings = ["settings"] if self.workflow_config or self.environment_config or self.grader_config else []
        return agent + environment + grader + group_grader + settings


def discover(module: ModuleType, *, only_grader: bool = False) -> Found:
    """Finds the classes and configurations. Raises `NotAPlugin` with their names if there are too few or too many."""
    workflows = _concrete(module, AgentWorkflow)
    loops = _concrete(module, RolloutAgentLoop)
    environments = _concrete(module, Environment)
    graders = _concrete(module, Grader) or _rewards(module)
    group_graders = _concrete(module, GroupGrader)
    if only_grader:
        workflows, loops, environments = [], [], []
        if not graders:
            raise NotAPlugin(f"module `{module.__name__}` has no grader{_hint(module, Grader, 'grade')}")
    elif not workflows and not loops and not environments:
        if _abstract(module, Environment):
            raise NotAPlugin(f"module `{module.__name__}` has no environment{_hint(module, Environment, 'reset')}")
        raise NotAPlugin(
            f"module `{module.__name__}` has no workflow{_hint(module, AgentWorkflow, 'run')}"
            + ("; for a component that only grades, set `only-grader = true`" if graders else "")
        )
    if len(workflows) + len(loops) > 1:
        raise NotAPlugin(_too_many(module, "workflow", [*workflows, *loops]))
    if len(environments) > 1:
        raise NotAPlugin(_too_many(module, "environment", environments))
    if len(graders) > 1:
        raise NotAPlugin(_too_many(module, "grader", graders))
    if len(group_graders) > 1:
        raise NotAPlugin(_too_many(module, "group grader", group_graders))
    workflow = workflows[0] if workflows else None
    grader = graders[0] if graders else None
    group_grader = group_graders[0] if group_graders else None
    # Both have the configuration of a grader.
    grades = grader or group_grader
    environment = environments[0] if environments else None
    return Found(
        workflow,
        loops[0] if loops else None,
        grader,
        _config(module, workflow, AgentWorkflow, AgentWorkflowConfig) if workflow else _app_config(module, loops),
        _config(module, grades, Grader, GraderConfig) if grades else None,
        environment,
        _config(module, environment, Environment, EnvironmentConfig) if environment else None,
        _episode.read(environment) if environment else None,
        group_grader,
    )


def _is_class(value: Any) -> TypeGuard[type[Any]]:
    # Python 3.10 regards `list[int]` as a class in some checks and not in others.
    return isinstance(value, type) and not isinstance(value, GenericAlias)


def _concrete(module: ModuleType, base: type) -> list[type[Any]]:
    """Returns the module's concrete subclasses of the base; a class with two names counts once."""
    found: list[type[Any]] = []
    for value in vars(module).values():
        if _is_class(value) and issubclass(value, base) and value is not base:
            if not inspect.isabstract(value) and value not in found:
                found.append(value)
    return found


def _abstract(module: ModuleType, base: type) -> bool:
    """Returns whether the module has a subclass of the base that lacks a method."""
    return any(_is_class(value) and issubclass(value, base) and value is not base for value in vars(module).values())


def _rewards(module: ModuleType) -> list[type[Any]]:
    """Returns the module's reward functions, as graders."""
    found = [value for value in vars(module).values() if is_reward(value)]
    return [grader_of(value) for value in dict.fromkeys(found)]


def _app_config(module: ModuleType, loops: list[type[Any]]) -> Declared | None:
    """Returns the settings for the published package's server, as the loop's configuration."""
    limits = [value.max_concurrent for value in vars(module).values() if isinstance(value, App)]
    most = next((each for each in limits if each), None)
    if not loops or most is None:
        return None
    name = loops[0].name or loops[0].__name__
    config = AgentWorkflowConfig(name=name, concurrency=ConcurrencyConfig(max_concurrent=most))
    return Declared(AgentWorkflowConfig, config)


def _hint(module: ModuleType, base: type, method: str) -> str:
    """Returns a hint for the error message about the class that is almost a subclass of the base."""
    for value in vars(module).values():
        if _is_class(value) and issubclass(value, base) and value is not base:
            missing = ", ".join(sorted(getattr(value, "__abstractmethods__", ())))
            return f": `{value.__name__}` lacks {missing}"
    for value in vars(module).values():
        if _is_class(value) and value.__module__ == module.__name__ and hasattr(value, method):
            return f": `{value.__name__}` has `{method}` and is no subclass of `{base.__name__}`"
    return f": write one class that derives from `{base.__name__}` and has `async def {method}(self, ctx)`"


def _too_many(module: ModuleType, what: str, classes: list[type[Any]]) -> str:
    names = ", ".join(
        f"`{one.__name__}`" + ("" if one.__module__ == module.__name__ else f" (from `{one.__module__}`)")
        for one in classes
    )
    return (
        f"module `{module.__name__}` has {len(classes)} {what}s: {names}; keep one in it, and import the others "
        "as parts of their module"
    )


def _config(
    module: ModuleType, user: type[Any], base: type, config_base: type[BaseConfig]
) -> Declared | None:
    """Returns the module's instance of the configuration, or one of the class that the user names in brackets."""
    instances: list[BaseConfig] = []
    for value in vars(module).values():
        if isinstance(value, config_base) and not any(value is one for one in instances):
            instances.append(value)
    if len(instances) > 1:
        raise NotAPlugin(
            f"module `{module.__name__}` has {len(instances)} instances of `{config_base.__name__}`; keep one"
        )
    if instances:
        return Declared(type(instances[0]), instances[0])
    named = named_config(user, base)
    return None if named is None else Declared(named)


def named_config(user: type[Any], base: type) -> type[BaseConfig] | None:
    for one in user.__mro__:
        for generic in getattr(one, "__orig_bases__", ()):
            origin = get_origin(generic)
            if isinstance(origin, type) and issubclass(origin, base):
                for arg in get_args(generic):
                    if isinstance(arg, type) and issubclass(arg, BaseConfig):
                        return arg
    return None
