"""Rehearses a rollout while the component is built.

The interpreter rewrites code as it runs, and fills caches. Memory that is rewritten before the component is finished is
shared by all of its instances; memory that is rewritten later belongs to each instance, and costs time in each rollout. So
the last step of a build runs an example workflow and grader a few times, with a simulated host.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import inspect
import json
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _discover, _episode, _export, _host, context
from ._json import dump
from .agent_loop import RolloutAgentLoop, RolloutRequest, RolloutResult
from .agent_loop import RolloutContext as LoopContext
from .config import AgentWorkflowConfig
from .context import AgentWorkflow, AgentWorkflowContext
from .environment import Environment, Turn
from .errors import Failed, RolloutError
from .grading import Grader, GraderContext
from .group import GroupContext, GroupGrader
from .tool import tool

if TYPE_CHECKING:
    from componentize_py_types import Ok
else:
    Ok = _host.Ok

_INSTANCES = 40

ANSWER = json.dumps({"role": "assistant", "content": "2 + 2 = 4\n#### 4"})
CALL = json.dumps(
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "double", "arguments": '{"number": 2}'}}
        ],
    }
)


@tool
def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


class OwnWorkflow(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> None:
        run = await ctx.agent("Be brief.", tools=[double], temperature=0.5).run()
        run.sample.metric("turns", run.turns)


class OwnLoop(RolloutAgentLoop):
    """Stands for the author's agent loop. `OwnWorkflow` is rehearsed for it."""

    name = "rehearsal"

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        return [double]

    async def run(self, ctx: LoopContext) -> RolloutResult:
        return ctx.complete([])


class OwnGrader(Grader):
    async def grade(self, ctx: GraderContext) -> float:
        return ctx.sample.answer_after("####") == ctx.require_label()


class OwnGroupGrader(GroupGrader):
    async def grade_group(self, ctx: GroupContext) -> list[float]:
        return [sample.answer_after("####") == member.label for member in ctx.members for sample in member.samples]


class OwnEnvironment(Environment[Any]):
    """Adds numbers."""

    def reset(self, task: dict[str, Any], seed: int | None = None) -> Turn[dict[str, Any]]:
        self.total = 0
        return Turn({"total": self.total, **task})

    def step(self, action: dict[str, Any]) -> Turn[dict[str, Any]]:
        return self.add(action["number"])

    def add(self, number: int) -> Turn[dict[str, Any]]:
        """Adds a number."""
        self.total += number
        return Turn({"total": self.total}, reward=0.5, metadata={"added": number})

    def state(self) -> dict[str, Any]:
        return {"total": self.total}


class _PlayedHost:
    """Simulates the host for the generated bindings. It answers every call of a rollout; its model calls a tool first
    and answers then."""

    def __init__(self, config: str | None) -> None:
        self._config = config
        self._chat_calls = 0

    def call_import(self, index: int, params: list[Any]) -> Any:
        here = inspect.currentframe()
        assert here is not None and here.f_back is not None
        caller = here.f_back.f_code.co_qualname
        # A name that is not interned would stay in the cache of attributes until a rollout drops it.
        answer = getattr(self, sys.intern(caller.replace(".", "_").lower()), None)
        if answer is None:
            raise Failed(f"the rehearsal has no answer to `{caller}`")
        for param in params:
            if isinstance(param, enum.Enum):
                # The bindings read it too.
                _ = param.value
        return answer(*params)

    def refused(self, *_: Any) -> None:
        """Does nothing: all refusals are from the import of modules."""

    def rollout_id(self) -> str:
        return "rehearsal"

    def attempt(self) -> int:
        return 1

    def config(self) -> str | None:
        return self._config

    def metadata(self) -> str | None:
        return '{"id": 1}'

    def sample_open(self, name: str | None) -> Any:
        return Ok(_handle(_generated("samples").Sample))

    def sample_id(self, sample: Any) -> str:
        return "rehearsed"

    def sample_push(self, *_: Any) -> Any:
        return Ok(None)

    sample_replace = sample_set_metric = sample_set_field = sample_push

    def start(self, *_: Any) -> Any:
        return Ok(_handle(_generated("calls").Call))

    def wait(self, under_way: list[Any], timeout_ms: int | None) -> list[int]:
        return list(range(len(under_way)))

    def finish(self, call: Any) -> Any:
        call.finalizer.detach()
        self._chat_calls += 1
        usage = _generated("types").Usage(prompt_tokens=1, completion_tokens=1)
        if self._chat_calls % 2:
            wanted = [_generated("types").ToolCall(id="1", name="double", arguments='{"number": 2}')]
            reply = _generated("models").Completion(CALL, "", wanted, "tool_calls", usage)
        else:
            reply = _generated("models").Completion(ANSWER, "#### 4", [], "stop", usage)
        return Ok(reply)


def _generated(interface: str) -> Any:
    """Returns the generated classes of an import."""
    return vars(_host)[interface]


def _handle(kind: Any) -> Any:
    """Returns a handle of a resource, as the bindings create it."""
    handle = kind.__new__(kind)
    handle.handle = 1
    handle.finalizer = weakref.finalize(handle, _dropped, 0, 1)
    return handle


def _dropped(index: int, handle: int) -> None:
    """Does nothing: the simulated host holds no resource."""


def parts(found: _discover.Found) -> list[Callable[[], None]]:
    """Returns the parts of a rollout that the component has. They leave no trace except in the interpreter's caches."""
    config, workflow_config, grader_config = _configuration(found)
    author = _discover.Found(
        OwnWorkflow, None, OwnGrader, workflow_config, grader_config, OwnEnvironment, found.environment_config,
        _episode.read(OwnEnvironment), OwnGroupGrader,
    )
    prompt = [json.dumps({"role": "user", "content": "What is 2 + 2?"})]
    host = _PlayedHost(config)
    runtime = vars(importlib.import_module("componentize_py_runtime"))

    def played(work: Callable[[], object]) -> None:
        kept = runtime["call_import"]
        # Like the real one it is neither a Python function nor a method, which the interpreter calls in other ways.
        runtime["call_import"] = functools.partial(host.call_import)
        try:
            _export.rehearse(author, work)
        finally:
            runtime["call_import"] = kept
            _export.leave_episode()
            context.leave_rollout()

    for kind in (found.workflow, found.environment, found.grader, found.group_grader):
        if kind is not None and inspect.getattr_static(kind, "config", None) is None:
            # The interpreter stores the attribute names of a class once for all instances, and during the first tens of
            # instances adjusts the space for more names. Classes that are created in another way are skipped.
            with contextlib.suppress(TypeError, AttributeError):
                for _ in range(_INSTANCES):
                    object.__setattr__(object.__new__(kind), "config", None)
    wanted: list[Callable[[], None]] = []
    if found.workflow:
        wanted.append(lambda: played(lambda: _export.Workflow().run(prompt)))
    elif found.agent_loop:
        # Avoids the contract's types of a workflow, which this component does not have.
        wanted.append(lambda: played(lambda: _export.run_workflow(prompt)))
    if found.environment:
        wanted.append(lambda: played(_episode_of_adding))
    if found.grader:
        graded: Any = _host.export("grader").GradedSample

        def graded_samples() -> list[Any]:
            return [graded(id="rehearsed", messages=[*prompt, ANSWER], metrics=[])]

        wanted.append(lambda: played(lambda: _export.Grader().grade("4", graded_samples())))
    if found.group_grader:
        wanted.append(lambda: played(lambda: _export.GroupGrader().grade_group(_group([*prompt, ANSWER]))))
    return wanted


def _group(messages: list[str]) -> Any:
    types: Any = _host.export("group_grader")
    samples = [types.GroupedSample(id="rehearsed", messages=messages, metrics=[], reward=1.0)]
    members = [types.Member(number=0, rollout_id="rehearsal", label="4", samples=samples)]
    failed = [types.FailedMember(number=1, reason="it failed")]
    return types.Group(id="rehearsal", size=2, members=members, failed=failed)


def _episode_of_adding() -> None:
    types: Any = _host.export("environment")
    exported = _export.Environment()
    exported.describe()
    exported.reset(types.ResetRequest(seed=1, episode_id=None, arguments='{"row": 1}'))
    exported.step(types.Action_Value('{"number": 2}'))
    exported.step(types.Action_Call(types.ToolAction(name="add", arguments='{"number": 2}')))
    exported.state()


def _configuration(
    found: _discover.Found,
) -> tuple[str | None, _discover.Declared | None, _discover.Declared | None]:
    """Returns the author's configuration with defaults, as the host gives it, unless a value has no default."""
    declared = (found.workflow_config, found.environment_config, found.grader_config)
    try:
        _, values = _export.declaration(found)
        for one in declared:
            if one is not None:
                one.with_values(values)
        return dump(values, "the defaults of the configuration"), found.workflow_config, found.grader_config
    except RolloutError:
        return None, None, None
