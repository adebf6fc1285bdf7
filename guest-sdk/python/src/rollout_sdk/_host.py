"""The host's functions as plain Python functions.

Only this module and `_export` use the generated bindings, which exist only inside a component. Elsewhere, for example in a
native test, any use of the host raises `OutsideOfHost`. Errors of the contract become exceptions here, so that the modules
above see no generated type.
"""

# An `except` cannot state the type parameter of the bindings' `Err`.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeAlias

from ._json import whole
from ._older import Never
from .errors import ArtifactError, ChatError, JudgeError, OpenError, OutsideOfHost, RecordError

if TYPE_CHECKING:
    from _rollout_wit.imports import (
        artifacts,
        calls,
        context,
        log,
        models,
        observations,
        samples,
        tools,
        types,
    )
    from componentize_py_types import Err
    from componentize_py_types import Ok as Ok

    Call: TypeAlias = calls.Call
    SampleHandle: TypeAlias = samples.Sample
else:

    class _Absent:
        """An interface that this component does not import."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, item: str) -> Never:
            raise OutsideOfHost(f"{self._name}.{item}")

    def _interface(name: str) -> Any:
        try:
            return importlib.import_module(f"_rollout_wit.imports.{name}")
        except ModuleNotFoundError:
            return _Absent(name)

    artifacts = _interface("artifacts")
    calls = _interface("calls")
    context = _interface("context")
    log = _interface("log")
    models = _interface("models")
    observations = _interface("observations")
    samples = _interface("samples")
    tools = _interface("tools")
    types = _interface("types")
    Call = SampleHandle = Any
    try:
        from componentize_py_types import Err, Ok
    except ModuleNotFoundError:

        class Err(Exception):
            """Never raised: there is no host."""

            value: Any

        class Ok:
            """Never created: there is no host."""

            value: Any


def text(value: object) -> str:
    """Returns the value's text as valid Unicode."""
    return whole(str(value))


# The rollout.


def rollout_id() -> str:
    return context.rollout_id()


def attempt() -> int:
    return context.attempt()


def config() -> str | None:
    return context.config()


def metadata() -> str | None:
    return context.metadata()


def time_left_ms() -> int | None:
    return context.time_left_ms()


# Samples.


def samples_max() -> int:
    return samples.limit()


def open_sample(name: str | None) -> SampleHandle:
    try:
        return samples.Sample.open(None if name is None else text(name))
    except Err as error:
        _raise_open_error(error)


def _raise_open_error(error: Any) -> Never:
    match error.value:
        case samples.OpenError_TooMany(value=most):
            raise OpenError("too-many", f"this rollout's caller takes {most} samples") from None
        case samples.OpenError_Taken(value=name):
            raise OpenError("taken", f"the sample name `{name}` is taken") from None
        case other:
            raise OpenError("invalid", f"not a sample name: {other.value}") from None


def _raise_record_error(error: Any) -> Never:
    match error.value:
        case samples.RecordError_OverLimit(value=limit):
            raise RecordError("over-limit", f"not recorded, a limit is reached: {limit}") from None
        case other:
            raise RecordError("invalid", f"not recorded: {other.value}") from None


def push(sample: SampleHandle, messages: list[str]) -> None:
    try:
        sample.push(messages)
    except Err as error:
        _raise_record_error(error)


def replace(sample: SampleHandle, messages: list[str]) -> None:
    try:
        sample.replace(messages)
    except Err as error:
        _raise_record_error(error)


def set_metric(sample: SampleHandle, name: str, value: float) -> None:
    try:
        sample.set_metric(text(name), value)
    except Err as error:
        _raise_record_error(error)


def set_field(sample: SampleHandle, name: str, value: str) -> None:
    try:
        sample.set_field(text(name), value)
    except Err as error:
        _raise_record_error(error)


# Calls in progress.


def wait(under_way: list[Call], timeout_ms: int | None) -> list[int]:
    return calls.wait(under_way, timeout_ms)


def abandon(call: Call) -> None:
    """Drops the call; its result is discarded."""
    call.__exit__(None, None, None)


# The model.


class RawCompletion:
    """The model's reply in the host's form: the message is JSON text."""

    __slots__ = ("finish_reason", "message", "text", "tool_calls", "usage")

    def __init__(self, completion: models.Completion) -> None:
        self.message = completion.message
        self.text = completion.text
        self.tool_calls = [(call.id, call.name, call.arguments) for call in completion.tool_calls]
        self.finish_reason = completion.finish_reason
        usage = completion.usage
        self.usage = None if usage is None else (usage.prompt_tokens, usage.completion_tokens)


def start_chat(
    sample: SampleHandle,
    messages: list[str],
    offered: list[str],
    params: str | None,
    *,
    after_history: bool,
    keep_reply: bool,
) -> Call:
    """Starts a model call with these messages, or with the sample's history and these, which are pushed."""
    conversation = (
        models.Conversation_History(messages) if after_history else models.Conversation_Messages(messages)
    )
    request = models.Request(conversation=conversation, tools=offered, params=params, keep_reply=keep_reply)
    try:
        return models.start(models.Role.POLICY, sample, request)
    except Err as error:
        _raise_chat_error(error)


def finish_chat(call: Call) -> RawCompletion:
    try:
        return RawCompletion(models.finish(call))
    except Err as error:
        _raise_chat_error(error)


def _raise_chat_error(error: Any) -> Never:
    match error.value:
        case models.Error_InvalidRequest(value=reason):
            raise ChatError("invalid-request", f"wrong chat request: {reason}") from None
        case models.Error_BudgetSpent(value=budget):
            raise ChatError("budget-spent", f"a budget is spent: {budget}") from None
        case models.Error_Refused(value=(status, answer)):
            raise ChatError(
                "refused", f"the model's server refused with {status}: {answer}", status, answer
            ) from None
        case other:
            raise ChatError("unavailable", f"the model's server is unavailable: {other.value}") from None


# Tools of the host.


def available_tools() -> list[str]:
    return tools.available()


def start_tool(call_id: str, name: str, arguments: str) -> Call:
    return tools.start(types.ToolCall(id=text(call_id), name=text(name), arguments=text(arguments)))


def finish_tool(call: Call) -> tuple[str, str, bool]:
    result = tools.finish(call)
    return result.call_id, result.content, result.is_error


# The judge.


def start_judge(messages: list[str], params: str | None) -> Call:
    conversation = models.Conversation_Messages(messages)
    request = models.Request(conversation=conversation, tools=[], params=params, keep_reply=False)
    try:
        return models.start(models.Role.JUDGE, None, request)
    except Err as error:
        _raise_judge_error(error)


def finish_judge(call: Call) -> RawCompletion:
    try:
        return RawCompletion(models.finish(call))
    except Err as error:
        _raise_judge_error(error)


def _raise_judge_error(error: Any) -> Never:
    match error.value:
        case models.Error_NotProvided():
            raise JudgeError("not-provided", "the operator provides this plugin no judge") from None
        case models.Error_InvalidRequest(value=reason):
            raise JudgeError("invalid-request", f"wrong judge request: {reason}") from None
        case models.Error_BudgetSpent(value=budget):
            raise JudgeError("budget-spent", f"a budget is spent: {budget}") from None
        case models.Error_Refused(value=(status, answer)):
            raise JudgeError("refused", f"the judge's server refused with {status}: {answer}") from None
        case other:
            raise JudgeError("unavailable", f"the judge's server is unavailable: {other.value}") from None


# Artifacts.


def write_artifact(name: str, content: bytes) -> None:
    try:
        artifacts.write(text(name), content)
    except Err as error:
        _raise_artifact_error(error)


def read_artifact(name: str) -> bytes:
    try:
        return artifacts.read(text(name))
    except Err as error:
        _raise_artifact_error(error)


def artifact_names() -> list[str]:
    return artifacts.names()


def _raise_artifact_error(error: Any) -> Never:
    match error.value:
        case artifacts.Error_NotFound():
            raise ArtifactError("not-found", "there is no artifact of this name") from None
        case artifacts.Error_OverLimit(value=limit):
            raise ArtifactError("over-limit", f"artifact not kept, a limit is reached: {limit}") from None
        case other:
            raise ArtifactError("invalid-name", f"not a name of an artifact: {other.value}") from None


# The log.


def log_line(level: str, line: object) -> None:
    log.line(log.Level[level.upper()], text(line))


def log_event(name: str, data: str) -> None:
    log.event(text(name), data)


def refused(kind: str, count: int, place: str) -> None:
    """Reports refused uses to the host."""
    log.refused(log.RefusedUse[kind.upper()], min(count, 0xFFFF_FFFF), text(place))


# Observations of the host.


def exchanges(sample_id: str) -> list[tuple[str, str | None, str | None]]:
    """Returns requests with their replies, or with the reason if there was none."""
    found: list[tuple[str, str | None, str | None]] = []
    for exchange in observations.exchanges(text(sample_id)):
        reply: Any = exchange.reply
        # A reply is a result: `Ok` with the body, `Err` with the reason.
        failed = isinstance(reply, Err)
        found.append((exchange.request, None if failed else reply.value, reply.value if failed else None))
    return found


def export(name: str) -> Any:
    """Returns the generated types of one of the contract's exports."""
    try:
        return importlib.import_module(f"_rollout_wit.exports.{name}")
    except ModuleNotFoundError:
        return None
