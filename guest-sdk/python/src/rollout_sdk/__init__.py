"""Write workflows, graders and environments for rollout-host in Python.

A *workflow* is an agent loop: it receives a prompt, calls the model, runs tools and registers its work as samples.
A *grader* is a reward function: it receives the samples and the label, and returns rewards. Both are compiled to one
WebAssembly component, which the host runs in a new instance for each rollout.

    from rollout_sdk import *

    class Arithmetic(AgentWorkflow):
        async def run(self, ctx):
            await ctx.agent().run()

    class SameNumber(Grader):
        async def grade(self, ctx):
            return same_number(ctx.sample.answer_after("####") or "", ctx.require_label())

Waiting for the model costs nothing: a call suspends the instance. Several calls run concurrently with the usual tools
of `asyncio`: `gather`, tasks and timeouts.
"""

from . import artifact, host_tools, judge, log, message
from .agent import Agent, AgentRun, Stop
from .agent_loop import RolloutAgentLoop
from .answer import answer_after, parse_number, same_number
from .config import AgentWorkflowConfig, BaseConfig, ConcurrencyConfig, EnvironmentConfig, GraderConfig
from .context import (
    AgentWorkflow,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    Messages,
    RolloutContext,
    get_rollout_context,
)
from .environment import Environment, Split, Turn
from .errors import (
    ArtifactError,
    ChatError,
    Failed,
    Invalid,
    JudgeError,
    NotAPlugin,
    OpenError,
    OutsideOfHost,
    RecordError,
    RolloutError,
    TimedOut,
    ToolError,
)
from .grading import Exchange, Grader, GraderContext, RolloutSample
from .group import FailedMember, GroupContext, GroupGrader, GroupMember, GroupSample
from .message import Message, ToolCall, ToolResult, last_assistant_text, text_of, tool_calls_of
from .sample import Completion, Sample, Usage
from .tool import Tool, tool
from .toolbox import Toolbox

__all__ = [
    "Agent",
    "AgentRun",
    "AgentWorkflow",
    "AgentWorkflowConfig",
    "AgentWorkflowContext",
    "AgentWorkflowOutput",
    "ArtifactError",
    "BaseConfig",
    "ChatError",
    "Completion",
    "ConcurrencyConfig",
    "Environment",
    "EnvironmentConfig",
    "Exchange",
    "Failed",
    "FailedMember",
    "Grader",
    "GraderConfig",
    "GraderContext",
    "GroupContext",
    "GroupGrader",
    "GroupMember",
    "GroupSample",
    "Invalid",
    "JudgeError",
    "Message",
    "Messages",
    "NotAPlugin",
    "OpenError",
    "OutsideOfHost",
    "RecordError",
    "RolloutAgentLoop",
    "RolloutContext",
    "RolloutError",
    "RolloutSample",
    "Sample",
    "Split",
    "Stop",
    "TimedOut",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "Toolbox",
    "Turn",
    "Usage",
    "answer_after",
    "artifact",
    "get_rollout_context",
    "judge",
    "last_assistant_text",
    "host_tools",
    "log",
    "message",
    "parse_number",
    "same_number",
    "text_of",
    "tool",
    "tool_calls_of",
]
