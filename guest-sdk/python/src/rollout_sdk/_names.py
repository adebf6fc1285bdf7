"""Makes published packages' import names lead to the SDK's own shapes.

`osmosis_ai`, `strands` and `agents` depend on native code, and call a model themselves. If a component does not have the
package itself, imports of its name lead here, so that a workflow written for it builds unchanged. A name that the SDK does
not cover raises an ImportError that lists the available names. A project's own module of such a name takes precedence.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

# The available names, as "module" or "module:name"; a name without a colon is the same in both.
_CORE = "rollout_sdk"
_LOOP = "rollout_sdk.agent_loop"
_STRANDS = "rollout_sdk.strands"
_AGENTS = "rollout_sdk.openai_agents"
_APP = "rollout_sdk._app"


def _of(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names.split()}


_CONFIGS = _of(_CORE, "AgentWorkflowConfig AgentWorkflowOutput BaseConfig ConcurrencyConfig GraderConfig RolloutSample")
_LOOP_NAMES = _of(_LOOP, "CompletionsResult RolloutAgentLoop RolloutMetrics RolloutRequest RolloutResult")
_TOOL_HELPERS = _of(
    _LOOP,
    "ToolArgumentError create_tool_error_result create_tool_result execute_tool_calls get_tool_call_info "
    "parse_tool_arguments serialize_tool_result",
)
_SETTINGS = _of(_APP, "RolloutClientSettings RolloutServerSettings RolloutSettings")
_SCHEMAS = _of(
    _APP,
    "OpenAIFunctionParametersSchema OpenAIFunctionPropertySchema OpenAIFunctionSchema OpenAIFunctionToolSchema",
)
_CONTEXTS = {
    **_of(_CORE, "AgentWorkflowContext GraderContext RolloutContext get_rollout_context"),
    **_of("rollout_sdk.context", "SampleSource"),
}
_RUBRIC = _of(
    "rollout_sdk._rubric", "MissingAPIKeyError ModelNotFoundError ProviderRequestError RubricResult evaluate_rubric"
)
_OSMOSIS_STRANDS = _of(_STRANDS, "OsmosisRolloutModel OsmosisStrandsAgent")
_MESSAGES = {"MessageDict": f"{_CORE}:Message", "Messages": f"{_CORE}:Messages"}

_STRANDS_HOOKS = _of(
    _STRANDS,
    "AfterInvocationEvent AfterModelCallEvent AfterToolCallEvent AgentInitializedEvent BeforeInvocationEvent "
    "BeforeModelCallEvent BeforeToolCallEvent HookEvent HookProvider HookRegistry MessageAddedEvent",
)
_SLIDING = _of(_STRANDS, "SlidingWindowConversationManager")
_SUMMARIZING = _of(_STRANDS, "SummarizingConversationManager")
_MANAGERS = {**_of(_STRANDS, "ConversationManager NullConversationManager"), **_SLIDING, **_SUMMARIZING}
_HANDLERS = _of(_STRANDS, "CompositeCallbackHandler PrintingCallbackHandler null_callback_handler")
_EXECUTORS = _of(_STRANDS, "ConcurrentToolExecutor SequentialToolExecutor")
_DICT = "rollout_sdk._json:JsonObject"

_SESSIONS = {**_of(_AGENTS, "SessionABC SQLiteSession"), "Session": f"{_AGENTS}:SessionABC"}
_ITEMS = {
    **_of(
        _AGENTS,
        "HandoffCallItem HandoffOutputItem ItemHelpers MessageOutputItem ModelResponse RunItem ToolCallItem "
        "ToolCallOutputItem",
    ),
    "TResponseInputItem": _DICT,
}
_GUARDRAILS = _of(
    _AGENTS,
    "GuardrailFunctionOutput InputGuardrail InputGuardrailResult OutputGuardrail OutputGuardrailResult input_guardrail "
    "output_guardrail",
)
_AGENTS_ERRORS = _of(
    _AGENTS,
    "AgentsException InputGuardrailTripwireTriggered MaxTurnsExceeded ModelBehaviorError "
    "OutputGuardrailTripwireTriggered UserError",
)
_EVENTS = _of(_AGENTS, "AgentUpdatedStreamEvent RawResponsesStreamEvent RunItemStreamEvent")
_HOOKS = _of(_AGENTS, "AgentHooks RunHooks")
_RESULTS = _of(_AGENTS, "RunResult RunResultStreaming")
_CONTEXT = _of(_AGENTS, "RunContextWrapper")
_TRACING = _of(_AGENTS, "set_tracing_disabled trace")
_BEHAVIOR = _of(_AGENTS, "StopAtTools ToolsToFinalOutputResult")
_FUNCTION_TOOLS = _of(_AGENTS, "FunctionTool FunctionToolResult default_tool_error_function function_tool")

NAMES: Mapping[str, Mapping[str, str]] = {
    "osmosis_ai": {**_of("rollout_sdk.reward", "osmosis_reward osmosis_rubric"), **_RUBRIC},
    "osmosis_ai.eval": {},
    "osmosis_ai.eval.rubric": _RUBRIC,
    "osmosis_ai.rollout": {
        **_of(_CORE, "AgentWorkflow Grader"),
        **_CONTEXTS,
        **_CONFIGS,
        **_LOOP_NAMES,
        **_TOOL_HELPERS,
        **_SETTINGS,
        **_SCHEMAS,
        **_OSMOSIS_STRANDS,
        **_of(_APP, "LocalBackend create_app create_rollout_server"),
        **_MESSAGES,
    },
    "osmosis_ai.rollout.agent_workflow": _of(_CORE, "AgentWorkflow"),
    "osmosis_ai.rollout.backend": _of(_APP, "LocalBackend"),
    "osmosis_ai.rollout.backend.local": _of(_APP, "LocalBackend"),
    "osmosis_ai.rollout.config": _SETTINGS,
    "osmosis_ai.rollout.config.settings": _SETTINGS,
    "osmosis_ai.rollout.context": _CONTEXTS,
    "osmosis_ai.rollout.core": {**_LOOP_NAMES, **_SCHEMAS},
    "osmosis_ai.rollout.core.schemas": {**_SCHEMAS, **_of(_LOOP, "CompletionsResult RolloutMetrics RolloutRequest")},
    "osmosis_ai.rollout.core.base": {**_LOOP_NAMES, "RolloutContext": f"{_LOOP}:RolloutContext"},
    "osmosis_ai.rollout.grader": _of(_CORE, "Grader"),
    "osmosis_ai.rollout.integrations": _OSMOSIS_STRANDS,
    "osmosis_ai.rollout.integrations.agents": _OSMOSIS_STRANDS,
    "osmosis_ai.rollout.integrations.agents.openai_agents": _of(
        _AGENTS, "OsmosisAgent OsmosisMemorySession OsmosisRolloutModel"
    ),
    "osmosis_ai.rollout.integrations.agents.strands": _OSMOSIS_STRANDS,
    "osmosis_ai.rollout.server": _of(_APP, "create_app create_rollout_server"),
    "osmosis_ai.rollout.tools": _TOOL_HELPERS,
    "osmosis_ai.rollout.types": {**_CONFIGS, **_MESSAGES},
    "osmosis_ai.rollout.utils": {},
    "osmosis_ai.rollout.utils.messages": _of(_APP, "map_initial_messages_to_content_blocks"),
    "strands": {**_of(_STRANDS, "Agent ToolContext tool"), "AgentBase": f"{_STRANDS}:Agent"},
    "strands.agent": {**_of(_STRANDS, "Agent AgentResult"), **_MANAGERS},
    "strands.agent.agent": _of(_STRANDS, "Agent"),
    "strands.agent.agent_result": _of(_STRANDS, "AgentResult"),
    "strands.agent.conversation_manager": _MANAGERS,
    "strands.agent.conversation_manager.conversation_manager": _of(_STRANDS, "ConversationManager"),
    "strands.agent.conversation_manager.null_conversation_manager": _of(_STRANDS, "NullConversationManager"),
    "strands.agent.conversation_manager.sliding_window_conversation_manager": _SLIDING,
    "strands.agent.conversation_manager.summarizing_conversation_manager": _SUMMARIZING,
    "strands.agent.state": _of(_STRANDS, "AgentState"),
    "strands.handlers": _HANDLERS,
    "strands.handlers.callback_handler": _HANDLERS,
    "strands.hooks": _STRANDS_HOOKS,
    "strands.hooks.events": _STRANDS_HOOKS,
    "strands.hooks.registry": _of(_STRANDS, "HookEvent HookProvider HookRegistry"),
    "strands.telemetry": _of(_STRANDS, "EventLoopMetrics"),
    "strands.telemetry.metrics": _of(_STRANDS, "EventLoopMetrics ToolMetrics"),
    "strands.tools": _of(_STRANDS, "tool"),
    "strands.tools.decorator": _of(_STRANDS, "tool"),
    "strands.tools.executors": _EXECUTORS,
    "strands.types": {},
    "strands.types.content": {
        "ContentBlock": _DICT,
        "Message": _DICT,
        "Messages": f"{_CORE}:Messages",
        "SystemContentBlock": _DICT,
    },
    "strands.types.exceptions": _of(
        _STRANDS,
        "ConcurrencyException ContextWindowOverflowException MaxTokensReachedException StructuredOutputException",
    ),
    "strands.types.streaming": _of(_STRANDS, "StopReason"),
    "strands.types.tools": {
        **_of(_STRANDS, "ToolContext"),
        "AgentTool": f"{_CORE}:Tool",
        **dict.fromkeys(("ToolResult", "ToolResultContent", "ToolSpec", "ToolUse"), _DICT),
    },
    "agents": {
        **_of(_AGENTS, "Agent AgentOutputSchema Handoff HandoffInputData ModelSettings RunConfig Runner Usage handoff"),
        **_AGENTS_ERRORS,
        **_BEHAVIOR,
        **_CONTEXT,
        **_EVENTS,
        **_FUNCTION_TOOLS,
        **_GUARDRAILS,
        **_HOOKS,
        **_ITEMS,
        **_RESULTS,
        **_SESSIONS,
        **_TRACING,
        "AgentBase": f"{_AGENTS}:Agent",
        "Tool": f"{_CORE}:Tool",
    },
    "agents.agent": {**_of(_AGENTS, "Agent"), **_BEHAVIOR},
    "agents.agent_output": _of(_AGENTS, "AgentOutputSchema"),
    "agents.exceptions": _AGENTS_ERRORS,
    "agents.guardrail": _GUARDRAILS,
    "agents.handoffs": _of(_AGENTS, "Handoff HandoffInputData handoff"),
    "agents.items": _ITEMS,
    "agents.lifecycle": _HOOKS,
    "agents.memory": _SESSIONS,
    "agents.memory.session": {name: place for name, place in _SESSIONS.items() if name != "SQLiteSession"},
    "agents.model_settings": _of(_AGENTS, "ModelSettings"),
    "agents.result": _RESULTS,
    "agents.run": _of(_AGENTS, "RunConfig Runner"),
    "agents.run_context": _CONTEXT,
    "agents.stream_events": _EVENTS,
    "agents.tool": _FUNCTION_TOOLS,
    "agents.tool_context": _of(_AGENTS, "ToolContext"),
    "agents.tracing": _TRACING,
    "agents.usage": _of(_AGENTS, "Usage"),
    "uvicorn": _of(_APP, "run"),
}

_INSTEAD = {
    "osmosis_ai": "see PORTING.md of rollout-sdk",
    "strands": "models are the host's: OsmosisRolloutModel(params=…); see `rollout_sdk.strands`",
    "agents": "models are the host's: OsmosisRolloutModel(); see `rollout_sdk.openai_agents`",
    "uvicorn": "the host serves",
}

# Distributions that these names replace.
DISTRIBUTIONS = ("osmosis-ai", "strands-agents", "openai-agents")


def install() -> None:
    """Makes the names importable if there is no other module of that name."""
    sys.meta_path.append(_Finder())


def install_before_the_packages() -> None:
    """Makes the names take precedence over installed published packages, as in a component, which does not have them. A
    module of the project still takes precedence, and earlier imports stay."""
    if not any(isinstance(each, _Before) for each in sys.meta_path):
        sys.meta_path.insert(0, _Before())


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
        """Does nothing: names are looked up on access."""


class _Before(_Finder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if "." not in name and name in NAMES and not _is_of_package(name):
            return None
        return super().find_spec(name, path, target)


_DISTRIBUTION_OF = {
    "osmosis_ai": "osmosis_ai",
    "strands": "strands_agents",
    "agents": "openai_agents",
}


def _is_of_package(name: str) -> bool:
    """Returns whether this name finds the published package or nothing."""
    found = PathFinder.find_spec(name)
    if found is None or found.origin is None:
        return True
    if name not in _DISTRIBUTION_OF:
        return False
    beside = Path(found.origin).parent.parent
    return any(beside.glob(f"{_DISTRIBUTION_OF[name]}-*.dist-info"))


def _refusal(what: str, module: str) -> str:
    names = ", ".join(sorted(NAMES[module]))
    inner = ", ".join(name for name in NAMES if name.rpartition(".")[0] == module)
    there = "; ".join(each for each in (names and f"there are {names}", inner and f"and the modules {inner}") if each)
    return (
        f"a component has {what}: `{module}` leads to the shapes of rollout_sdk here; {there}; "
        f"{_INSTEAD[module.partition('.')[0]]}"
    )


class _Named(ModuleType):
    """A module whose names lead to other modules."""

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
