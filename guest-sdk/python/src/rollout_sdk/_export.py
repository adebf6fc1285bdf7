"""Implements the contract's exports with the author's classes.

The classes here have the names of the contract's exports, by which componentize-py finds them. Only this module and `_host`
use generated types, and only this module converts exceptions to the host's errors.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from . import _chance, _discover, _episode, _failure, _host, _loop, _one_thread, _refused, _unawaited, log
from ._json import JsonObject, as_number, dump, dump_messages, is_a, load_messages, load_object
from ._older import Never
from .agent_loop import RolloutAgentLoop, RolloutRequest, RolloutResult, tool_schemas
from .agent_loop import RolloutContext as LoopContext
from .config import AgentWorkflowConfig, BaseConfig, EnvironmentConfig, GraderConfig
from .context import AgentWorkflowContext, AgentWorkflowOutput, RolloutContext, enter_rollout
from .errors import Failed, Invalid
from .grading import GraderContext, RolloutSample
from .group import FailedMember, GroupContext, GroupMember, GroupSample

if TYPE_CHECKING:
    from _rollout_wit.exports import agent_loop as agent_loop_types
    from _rollout_wit.exports import environment as environment_types
    from _rollout_wit.exports import grader as grader_types
    from _rollout_wit.exports import group_grader as group_grader_types
    from _rollout_wit.exports import settings as settings_types
    from _rollout_wit.exports import workflow as workflow_types
    from _rollout_wit.imports import types
    from componentize_py_types import Err
else:
    Err, types = _host.Err, _host.types
    agent_loop_types = _host.export("agent_loop")
    environment_types = _host.export("environment")
    grader_types = _host.export("grader")
    group_grader_types = _host.export("group_grader")
    settings_types = _host.export("settings")
    workflow_types = _host.export("workflow")

T = TypeVar("T")

_found: _discover.Found | None = None

# Set if the author's module comes with the instance (`_quick.py`): the function that loads it, and the functions that
# are rehearsed instead of the author's.
_load: Callable[[], _discover.Found] | None = None
_stand_ins: Callable[[], list[Callable[[], None]]] | None = None


class OtherExports(Exception):
    """The module has other exports than the component. The build starts again with them."""

    def __init__(self, exports: list[str]) -> None:
        super().__init__(f"the module has the exports {', '.join(exports)}")
        self.exports = exports


def load(module: ModuleType, *, only_grader: bool, exports: list[str], roots: list[tuple[str, str]]) -> None:
    """Loads the author's module while the component is built. Raises `OtherExports`."""
    global _found
    _failure.set_roots(roots)
    _found = _discover.discover(module, only_grader=only_grader)
    if _found.exports != exports:
        raise OtherExports(_found.exports)
    _failure.keep_sources()


def load_later(load: Callable[[], _discover.Found], stand_ins: Callable[[], list[Callable[[], None]]]) -> None:
    """Makes each instance load the author's module when it starts."""
    global _load, _stand_ins
    _load, _stand_ins = load, stand_ins


def pack() -> None:
    """Packs the files of the build, which a finished component does not have."""
    from . import _archive

    _archive.pack(_failure.directories())


def pack_base() -> None:
    """Packs the files of a base, and leaves no traces of the time in it."""
    from . import _image

    pack()
    _forget_times()
    _image.clear_gaps()


def settle() -> None:
    """Runs the last step of a build: the present state is the initial state of every instance."""
    from . import _finalize, _image, _rehearse

    _failure.warn_with_authors_paths()
    _forget_times()
    _finalize.install()
    for export in (Workflow, Grader, GroupGrader, AgentLoop, Environment, Settings):
        export()
    parts = _stand_ins() if _stand_ins is not None else _rehearse.parts(_plugin())
    _image.settle(parts, _failure.is_authors, _failure.is_close, (_finalize.renew, _loop.renew))
    _chance.built()


def _forget_times() -> None:
    """Removes the times of the build, which would differ in every build."""
    module: Any = logging
    module._startTime = 0
    _failure.forget_times()


def rehearse(found: _discover.Found, work: Callable[[], T]) -> T:
    """Runs the work as if these classes were the author's."""
    global _found
    previous, _found = _found, found
    try:
        return work()
    finally:
        _found = previous


def _load_module() -> None:
    """Loads the author's module if it comes with the instance."""
    global _found
    if _found is None and _load is not None:
        _found = _load()


def _is_loaded() -> bool:
    """Returns whether the author's module could be loaded. If not, the run reports the reason."""
    with contextlib.suppress(Exception):
        _load_module()
    return _found is not None


def _has_settings() -> bool:
    return _load is None or (_is_loaded() and "settings" in _plugin().exports)


def _plugin() -> _discover.Found:
    if _found is None:
        raise Failed("the component was built without an entry module")
    return _found


def _guarded(
    work: Callable[[], T], text_of: Callable[[BaseException], str] = _failure.describe, *, begins: bool = True
) -> T:
    """Runs the author's code and reports its exceptions to the host. With `begins`, a rollout or an episode begins;
    otherwise an episode continues."""
    _refused.begin()
    try:
        _load_module()
        if begins:
            _chance.begin_rollout()
        done = work()
        _unawaited.check()
        _one_thread.note_timers()
        return done
    except BaseException as error:
        _raise_reported(error, text_of(error))
    finally:
        _refused.end()


def _raise_reported(error: BaseException, message: str) -> Never:
    text = _host.text(message)
    for line in _failure.lines(error):
        log.error(line)
    raise Err(_as_failure(_failure.sort_of(error), text)) from None


def _as_failure(sort: _failure.Sort, text: str) -> Any:
    match sort:
        case _failure.Sort.FAILED:
            return types.Failure_Failed(text)
        case _failure.Sort.INVALID:
            return types.Failure_Invalid(text)
        case _failure.Sort.TIMED_OUT:
            return types.Failure_TimedOut(text)


def _run(main: Coroutine[Any, Any, T]) -> T:
    return _loop.loop.run_main(main)


def _coroutine(given: Any, name: str) -> Coroutine[Any, Any, Any]:
    if not inspect.iscoroutine(given):
        raise Failed(f"`{name}` must be `async def`; it returned {type(given).__name__} instead of a coroutine")
    return given


def _metadata() -> JsonObject | None:
    text = _host.metadata()
    return None if text is None else load_object(text, "metadata")


def _config(
    declared: _discover.Declared | None, plain: type[BaseConfig], other: _discover.Declared | None
) -> Any:
    values = load_object(_host.config(), "config")
    try:
        own = declared or _discover.Declared(plain)
        # An operator writes one configuration for the workflow and the grader.
        return own.with_values(dict(own.kind.own_of(values, other.kind if other is not None else None)))
    except Invalid as error:
        raise Invalid(f"config: {error}") from None


class _Exported:
    """The single instance of each export, which is part of the component. The bindings create one after everything
    else, and count references to objects that are created then."""

    _instances: dict[type[Any], Any] = {}

    def __new__(cls) -> Any:
        if cls not in _Exported._instances:
            _Exported._instances[cls] = object.__new__(cls)
        return _Exported._instances[cls]


class Workflow(_Exported):
    """Implements the contract's `workflow`."""

    def run(self, prompt: list[str]) -> workflow_types.Outcome:
        messages, metrics = _guarded(lambda: run_workflow(prompt))
        measured = [types.Metric(name, value) for name, value in metrics.items()]
        return workflow_types.Outcome(messages=messages, metrics=measured)


Output: TypeAlias = "tuple[list[str] | None, dict[str, float]]"
"""The messages of the single sample, if the workflow returned them, and its metrics."""


def run_workflow(prompt: list[str]) -> Output:
    rollout = enter_rollout()
    kind = _plugin().workflow
    assert kind is not None
    messages = load_messages(prompt, "prompt")
    config = _config(_plugin().workflow_config, AgentWorkflowConfig, _plugin().grader_config)
    ctx = AgentWorkflowContext(messages, config, _metadata(), rollout)
    output = _run(_coroutine(kind(config).run(ctx), f"{kind.__name__}.run"))
    for finish in rollout.at_end:
        finish()
    return _take_output(output, rollout)


def _take_output(output: Any, rollout: RolloutContext) -> Output:
    if output is None:
        return None, {}
    if is_a(output, list):
        output = AgentWorkflowOutput(messages=output)
    if not isinstance(output, AgentWorkflowOutput):
        raise Failed(
            f"`run` returned {type(output).__name__}; return messages, an AgentWorkflowOutput or None"
        )
    if output.info and len(rollout.samples) > 1:
        raise Failed("`run` returned values beside messages, and several samples are open: set them on the samples")
    if output.info or (output.metrics and output.messages is None):
        sample = rollout.samples[0] if rollout.samples else rollout.open_sample()
        for name, value in output.info.items():
            sample.field(name, value)
    metrics = {_host.text(name): as_number(value, f"metric `{name}`") for name, value in output.metrics.items()}
    return None if output.messages is None else dump_messages(output.messages), metrics


class Grader(_Exported):
    """Implements the contract's `grader`."""

    def grade(
        self, label: str | None, samples: list[grader_types.GradedSample]
    ) -> list[grader_types.Verdict]:
        return _guarded(lambda: run_grader(label, samples))


def run_grader(label: str | None, samples: list[grader_types.GradedSample]) -> list[grader_types.Verdict]:
    kind = _plugin().grader
    assert kind is not None
    read = [
        RolloutSample(
            sample.id,
            load_messages(sample.messages, f"sample `{sample.id}`:"),
            {metric.name: metric.value for metric in sample.metrics},
        )
        for sample in samples
    ]
    config = _config(_plugin().grader_config, GraderConfig, _plugin().workflow_config)
    ctx = GraderContext(label, read, config, _metadata())
    reward: Any = _run(_coroutine(kind(config).grade(ctx), f"{kind.__name__}.grade"))
    if reward is not None:
        ctx.set_reward(reward)
    return [_verdict(sample) for sample in read if sample.is_rated]


def _verdict(sample: RolloutSample) -> grader_types.Verdict:
    return grader_types.Verdict(
        sample_id=sample.id,
        reward=sample.reward,
        metrics=[types.Metric(_host.text(name), value) for name, value in sample.verdict_metrics.items()],
        withdraw=sample.remove_sample,
    )


class GroupGrader(_Exported):
    """Implements the contract's `group-grader`."""

    def grade_group(self, group: group_grader_types.Group) -> list[group_grader_types.Rating]:
        return _guarded(lambda: run_group_grader(group))


def run_group_grader(group: group_grader_types.Group) -> list[group_grader_types.Rating]:
    kind = _plugin().group_grader
    assert kind is not None
    config = _config(_plugin().grader_config, GraderConfig, _plugin().workflow_config)
    members = [
        GroupMember(
            member.number,
            member.rollout_id,
            member.label,
            [_group_sample(member.number, sample) for sample in member.samples],
        )
        for member in group.members
    ]
    failed = [FailedMember(one.number, one.reason) for one in group.failed]
    ctx = GroupContext(group.id, group.size, members, failed, config, _metadata())
    samples = list(ctx.samples)
    rewards: Any = _run(_coroutine(kind(config).grade_group(ctx), f"{kind.__name__}.grade_group"))
    if rewards is not None:
        rewards = list(rewards)
        if len(rewards) != len(samples):
            raise Failed(f"`grade_group` returned {len(rewards)} rewards, and there are {len(samples)} samples")
        for sample, reward in zip(samples, rewards, strict=True):
            sample.rate(reward)
    return [_rating(sample) for sample in samples]


def _group_sample(member: int, sample: group_grader_types.GroupedSample) -> GroupSample:
    return GroupSample(
        member,
        sample.id,
        load_messages(sample.messages, f"sample `{sample.id}` of member {member}:"),
        {metric.name: metric.value for metric in sample.metrics},
        sample.reward,
    )


def _rating(sample: GroupSample) -> group_grader_types.Rating:
    if sample.rating is None:
        raise Failed(f"`grade_group` did not rate sample `{sample.id}` of member {sample.member}")
    metrics = [types.Metric(_host.text(name), value) for name, value in sample.verdict_metrics.items()]
    return group_grader_types.Rating(member=sample.member, sample_id=sample.id, reward=sample.rating, metrics=metrics)


class AgentLoop(_Exported):
    """Implements the contract's `agent-loop`."""

    def name(self) -> str:
        _is_loaded()
        kind = _found.agent_loop if _found is not None else RolloutAgentLoop
        assert kind is not None
        return _host.text(kind.name or kind.__name__)

    def get_tools(self, request: agent_loop_types.Request) -> list[str]:
        return _guarded(lambda: _loop_tools(request))

    def run(self, request: agent_loop_types.Request) -> agent_loop_types.Outcome:
        return _guarded(lambda: _run_loop(request), _failure.text_of)


def _loop_request(request: agent_loop_types.Request) -> RolloutRequest:
    return RolloutRequest(
        _host.rollout_id(),
        load_messages(request.messages, "prompt"),
        request.max_turns,
        request.max_tokens_total,
        load_object(request.completion_params, "completion parameters"),
        _metadata() or {},
    )


def _loop_tools(request: agent_loop_types.Request) -> list[str]:
    kind = _plugin().agent_loop
    assert kind is not None
    return [dump(schema, "the schema of a tool") for schema in tool_schemas(kind(), _loop_request(request))]


def run_loop(raw: agent_loop_types.Request) -> tuple[LoopContext, RolloutResult]:
    """Runs the author's loop on the host's request."""
    rollout = enter_rollout()
    kind = _plugin().agent_loop
    assert kind is not None
    request = _loop_request(raw)
    loop = kind()
    ctx = LoopContext(request, tool_schemas(loop, request), rollout.open_sample("main"))
    result: Any = _run(_coroutine(loop.run(ctx), f"{kind.__name__}.run"))
    if not isinstance(result, RolloutResult):
        raise Failed(f"`run` returned {type(result).__name__}; return ctx.complete(…) or ctx.error(…)")
    return ctx, result


def _run_loop(raw: agent_loop_types.Request) -> agent_loop_types.Outcome:
    ctx, result = run_loop(raw)
    status: Any = (
        agent_loop_types.Status_Completed()
        if result.status == "COMPLETED"
        else agent_loop_types.Status_Error(_host.text(result.error_message or "the loop gave no error message"))
    )
    return agent_loop_types.Outcome(
        status=status,
        messages=dump_messages(result.final_messages),
        finish_reason=_host.text(result.finish_reason),
        reward=result.reward,
        metrics=[types.Metric(_host.text(name), as_number(value, f"metric `{name}`")) for name, value in result.metrics.items()],
        tool_calls=ctx.metrics.num_tool_calls,
        tool_time_ms=ctx.metrics.tool_latency_ms,
    )


class Environment(_Exported):
    """Implements the contract's `environment`."""

    def describe(self) -> environment_types.Description:
        _load_module()
        described = facts().description()
        splits = [
            environment_types.Split(split["name"], environment_types.SplitKind[split["kind"].upper()], split["tasks"])
            for split in described["splits"]
        ]
        action, state = described["action"], described["state"]
        return environment_types.Description(
            name=_host.text(described["name"]),
            description=_host.text(described["description"]),
            version=None if described["version"] is None else _host.text(described["version"]),
            action=None if action is None else dump(action, "the schema of an action"),
            observation=dump(described["observation"], "the schema of an observation"),
            state=None if state is None else dump(state, "the schema of the state"),
            tools=[dump(tool, "the schema of a tool") for tool in described["tools"]],
            splits=splits,
        )

    def task(self, split: str, index: int) -> str:
        return _guarded(lambda: dump(dict(facts().kind.task(split, index)), "a task"))

    def reset(self, request: environment_types.ResetRequest) -> environment_types.Outcome:
        return _turn(_guarded(lambda: begin_episode(request.seed, request.episode_id, request.arguments)))

    def step(self, action: environment_types.Action) -> environment_types.Outcome:
        value: Any = action.value
        if isinstance(action, environment_types.Action_Call):
            return _turn(_guarded(lambda: _run(_current_episode().call(value.name, value.arguments)), begins=False))
        return _turn(_guarded(lambda: _run(_current_episode().step(value)), begins=False))

    def state(self) -> str:
        return _guarded(lambda: _current_episode().state(), begins=False)


_episode_of_instance: _episode.Episode | None = None


def facts() -> _episode.Facts:
    """Returns the facts about the author's environment."""
    found = _plugin().facts
    assert found is not None
    return found


def begin_episode(seed: int | None, episode_id: str | None, arguments: str) -> _episode.Outcome:
    """Begins the episode of this instance."""
    global _episode_of_instance
    enter_rollout()
    config = _config(_plugin().environment_config, EnvironmentConfig, _plugin().grader_config)
    episode = _episode.Episode(facts(), config)
    outcome = _run(episode.reset(seed, episode_id, arguments))
    _episode_of_instance = episode
    return outcome


def leave_episode() -> None:
    """Forgets the episode."""
    global _episode_of_instance
    _episode_of_instance = None


def _current_episode() -> _episode.Episode:
    if _episode_of_instance is None:
        raise Failed("the episode was not reset")
    return _episode_of_instance


def _turn(outcome: _episode.Outcome) -> environment_types.Outcome:
    return environment_types.Outcome(
        observation=outcome.observation, reward=outcome.reward, done=outcome.done, metadata=outcome.metadata
    )


ANY: JsonObject = {"type": "object", "additionalProperties": True}
"""The schema if the plugin declares no configuration."""


class Settings(_Exported):
    """Implements the contract's `settings`."""

    def declare(self) -> settings_types.Declaration:
        schema, defaults = declaration(_plugin()) if _has_settings() else (ANY, {})
        return settings_types.Declaration(
            schema=dump(schema, "the schema of the configuration"),
            defaults=dump(defaults, "the defaults of the configuration"),
        )


def declaration(found: _discover.Found) -> tuple[JsonObject, JsonObject]:
    """Returns the schema of the configuration and its defaults: the workflow's and the grader's together, because an
    operator writes one."""
    schema: JsonObject = {"type": "object", "properties": {}}
    defaults: JsonObject = {}
    allowed, forbidden = False, False
    for declared in (found.grader_config, found.environment_config, found.workflow_config):
        if declared is None:
            continue
        one = declared.kind.schema()
        schema["properties"].update(one["properties"])
        defaults.update(declared.defaults())
        allowed = allowed or one["additionalProperties"]
        forbidden = forbidden or declared.kind.is_closed()
    agent = found.workflow or found.agent_loop or found.environment or found.grader
    if agent is not None and not defaults.get("name"):
        defaults["name"] = agent.__name__
    required = [
        name
        for declared in (found.workflow_config, found.environment_config, found.grader_config)
        # An instance has values for everything, including types that JSON does not have.
        if declared is not None and declared.instance is None
        for name in declared.kind.schema().get("required", [])
        if name not in defaults
    ]
    if required:
        schema["required"] = sorted(set(required))
    # Values that the author added to an instance are declared by their presence.
    for name in defaults:
        schema["properties"].setdefault(name, {})
    schema["additionalProperties"] = allowed and not forbidden
    return schema, defaults
