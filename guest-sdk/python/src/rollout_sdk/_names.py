"""The names under which published packages are imported, for this SDK's own shapes.

`osmosis_ai`, `strands` and `agents` are native code below, and ask a model of their own.
Where a component does not have the package itself, its name leads here, so that a
workflow that was written for it is built as it is. What a name does not cover raises an
ImportError that says what is there instead. A project's own module of such a name goes
first.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# What is there, as "module" or "module:name"; a name without more is the same in both.
_CORE = "rollout_sdk"
_LOOP = "rollout_sdk.agent_loop"
_STRANDS = "rollout_sdk.strands"
_AGENTS = "rollout_sdk.openai_agents"
_APP = "rollout_sdk._app"


def _of(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names.split()}


_CONFIGS = _of(_CORE, "AgentWorkflowConfig AgentWorkflowOutput BaseConfig ConcurrencyConfig GraderConfig RolloutSample")
_LOOP_NAMES = _of(_LOOP, "RolloutAgentLoop RolloutMetrics RolloutRequest RolloutResult")
_TOOL_HELPERS = _of(
    _LOOP, "create_tool_error_result create_tool_result execute_tool_calls get_tool_call_info serialize_tool_result"
)
_SETTINGS = _of(_APP, "RolloutClientSettings RolloutServerSettings RolloutSettings")
_SCHEMAS = _of(
    _APP,
    "OpenAIFunctionParametersSchema OpenAIFunctionPropertySchema OpenAIFunctionSchema OpenAIFunctionToolSchema",
)
_OSMOSIS_STRANDS = _of(_STRANDS, "OsmosisRolloutModel OsmosisStrandsAgent")
_STRANDS_HOOKS = _of(
    _STRANDS,
    "AfterInvocationEvent AfterModelCallEvent AfterToolCallEvent BeforeInvocationEvent BeforeModelCallEvent "
    "BeforeToolCallEvent HookProvider HookRegistry MessageAddedEvent",
)
_MANAGERS = _of(_STRANDS, "ConversationManager NullConversationManager SlidingWindowConversationManager")

NAMES: Mapping[str, Mapping[str, str]] = {
    "osmosis_ai": _of("rollout_sdk.reward", "osmosis_reward"),
    "osmosis_ai.rollout": {
        **_of(_CORE, "AgentWorkflow AgentWorkflowContext Grader GraderContext RolloutContext get_rollout_context"),
        **_CONFIGS,
        **_LOOP_NAMES,
        **_TOOL_HELPERS,
        **_SETTINGS,
        **_SCHEMAS,
        **_OSMOSIS_STRANDS,
        **_of(_APP, "LocalBackend create_app create_rollout_server"),
        "MessageDict": f"{_CORE}:Message",
        "Messages": f"{_CORE}:Messages",
    },
    "osmosis_ai.rollout.agent_workflow": _of(_CORE, "AgentWorkflow"),
    "osmosis_ai.rollout.backend": _of(_APP, "LocalBackend"),
    "osmosis_ai.rollout.backend.local": _of(_APP, "LocalBackend"),
    "osmosis_ai.rollout.config": _SETTINGS,
    "osmosis_ai.rollout.config.settings": _SETTINGS,
    "osmosis_ai.rollout.context": _of(
        _CORE, "AgentWorkflowContext GraderContext RolloutContext get_rollout_context"
    ),
    "osmosis_ai.rollout.core": {**_LOOP_NAMES, **_SCHEMAS},
    "osmosis_ai.rollout.core.schemas": {**_SCHEMAS, **_of(_LOOP, "RolloutMetrics RolloutRequest")},
    "osmosis_ai.rollout.core.base": {**_LOOP_NAMES, "RolloutContext": f"{_LOOP}:RolloutContext"},
    "osmosis_ai.rollout.grader": _of(_CORE, "Grader"),
    "osmosis_ai.rollout.integrations": {},
    "osmosis_ai.rollout.integrations.agents": {},
    "osmosis_ai.rollout.integrations.agents.openai_agents": _of(
        _AGENTS, "OsmosisAgent OsmosisMemorySession OsmosisRolloutModel"
    ),
    "osmosis_ai.rollout.integrations.agents.strands": _OSMOSIS_STRANDS,
    "osmosis_ai.rollout.server": _of(_APP, "create_app create_rollout_server"),
    "osmosis_ai.rollout.tools": _TOOL_HELPERS,
    "osmosis_ai.rollout.types": {**_CONFIGS, "MessageDict": f"{_CORE}:Message", "Messages": f"{_CORE}:Messages"},
    "osmosis_ai.rollout.utils": {},
    "strands": {**_of(_STRANDS, "Agent tool")},
    "strands.agent": {**_of(_STRANDS, "Agent AgentResult"), **_MANAGERS},
    "strands.agent.agent": _of(_STRANDS, "Agent"),
    "strands.agent.agent_result": _of(_STRANDS, "AgentResult"),
    "strands.agent.conversation_manager": _MANAGERS,
    "strands.hooks": _STRANDS_HOOKS,
    "strands.tools": _of(_STRANDS, "tool"),
    "strands.tools.decorator": _of(_STRANDS, "tool"),
    "strands.types": {},
    "strands.types.exceptions": _of(_STRANDS, "MaxTokensReachedException"),
    "agents": _of(
        _AGENTS,
        "Agent FunctionTool Handoff MaxTurnsExceeded ModelSettings RunConfig RunContextWrapper RunHooks "
        "RunResult Runner function_tool handoff set_tracing_disabled trace",
    ),
    "agents.exceptions": _of(_AGENTS, "MaxTurnsExceeded"),
    "agents.model_settings": _of(_AGENTS, "ModelSettings"),
    "uvicorn": _of(_APP, "run"),
}

_INSTEAD = {
    "osmosis_ai": "see PORTING.md of rollout-sdk; a judge is `rollout_sdk.judge`",
    "strands": "models are the host's: OsmosisRolloutModel(params=…); see `rollout_sdk.strands`",
    "agents": "models are the host's: OsmosisRolloutModel(); see `rollout_sdk.openai_agents`",
    "uvicorn": "the host serves",
}

# Distributions whose place these names take.
DISTRIBUTIONS = ("osmosis-ai", "strands-agents", "openai-agents")


def install() -> None:
    """Has the names be found where nothing else of that name is."""
    sys.meta_path.append(_Finder())


class _Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in NAMES:
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        parent = name.rpartition(".")[0]
        if getattr(sys.modules.get(parent), "__loader__", None) is self:
            raise ImportError(_refusal(f"no module `{name}`", parent), name=name)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Named(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: a name is looked up when it is asked for."""


def _refusal(what: str, module: str) -> str:
    names = ", ".join(sorted(NAMES[module]))
    inner = ", ".join(name for name in NAMES if name.rpartition(".")[0] == module)
    there = "; ".join(each for each in (names and f"there are {names}", inner and f"and the modules {inner}") if each)
    return (
        f"a component has {what}: `{module}` leads to the shapes of rollout_sdk here; {there}; "
        f"{_INSTEAD[module.partition('.')[0]]}"
    )


class _Named(ModuleType):
    """A module whose names lead elsewhere."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        inner = f"{self.__name__}.{name}"
        if inner in NAMES:
            return importlib.import_module(inner)
        place = NAMES[self.__name__].get(name)
        if place is None:
            raise ImportError(_refusal(f"no `{name}`", self.__name__), name=self.__name__)
        module, _, attribute = place.partition(":")
        value = getattr(importlib.import_module(module), attribute)
        setattr(self, name, value)
        return value

    @property
    def __all__(self) -> list[str]:
        return sorted(NAMES[self.__name__])

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *NAMES[self.__name__]]
