"""Runs a workflow, a grader or an environment in a test, in this machine's Python, with a model that replies from a script.

    from rollout_sdk.testing import calls, grade, run_workflow

    def test_it_uses_its_tool():
        run = run_workflow(Calculator, "What is 2 + 2?", replies=[calls("add", a=2, b=2), "#### 4"])
        assert run.sample.messages[-1]["content"] == "#### 4"
        assert grade(SameNumber, run, label="4").reward == 1.0

Only the component is served, so check it with `rollout-host validate` and `test` too.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias

from . import _discover, _episode, _export, _host, _loop, _names, _one_thread, context
from ._json import JsonObject
from .agent_loop import RolloutAgentLoop, RolloutResult
from .config import BaseConfig, EnvironmentConfig, GraderConfig
from .context import AgentWorkflow
from .environment import Environment, Turn
from .errors import ArtifactError, OpenError
from .grading import Grader, GraderContext, RolloutSample
from .message import Message, assistant, text_of, tool_calls_of, user

# As in a component, a workflow for the published packages uses this package's shapes, whether those are installed or
# not. Import this module before the workflow.
_names.install_before_the_packages()

Reply: TypeAlias = "str | Message | Exception | Callable[[JsonObject], str | Message]"
"""A reply of the model: a text, a whole message, an error that the call raises, or a function of the request that
returns one of the first two."""

Prompt: TypeAlias = "str | Iterable[Message]"


def calls(name: str, /, **arguments: Any) -> Message:
    """Returns a reply that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call-{name}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@dataclass
class PlayedSample:
    """A sample that a workflow registered."""

    id: str
    messages: list[Message] = field(default_factory=list[Message])
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    fields: JsonObject = field(default_factory=dict[str, Any])
    withdrawn: bool = False


@dataclass
class PlayedRun:
    """The result of a run."""

    samples: list[PlayedSample] = field(default_factory=list[PlayedSample])
    requests: list[JsonObject] = field(default_factory=list[JsonObject])
    """The model calls: messages, tools and parameters."""
    log: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Lines with their level, and events with their name."""
    artifacts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    result: RolloutResult | None = None
    """The result of an agent loop."""

    @property
    def sample(self) -> PlayedSample:
        """The only sample."""
        assert len(self.samples) == 1, f"there are {len(self.samples)} samples"
        return self.samples[0]


def run_workflow(
    workflow: type[AgentWorkflow[Any]],
    prompt: Prompt,
    replies: Iterable[Reply] = (),
    *,
    config: BaseConfig | Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> PlayedRun:
    """Runs a workflow. Raises its exceptions."""
    declared, values = _configuration(_discover.named_config(workflow, AgentWorkflow), config)
    found = _discover.Found(workflow, None, None, declared, None)
    with _played(replies, values, metadata) as run:
        texts, metrics = _rehearse(found, lambda: _export.run_workflow(_prompt_texts(prompt)))
        if texts is not None and not run.samples:
            run.samples.append(PlayedSample("main"))
        if texts is not None:
            run.sample.messages = [json.loads(text) for text in texts]
        if metrics:
            run.sample.metrics.update(metrics)
    return run


def run_agent_loop(
    loop: type[RolloutAgentLoop],
    prompt: Prompt,
    replies: Iterable[Reply] = (),
    *,
    max_turns: int = 10,
    metadata: Mapping[str, Any] | None = None,
) -> PlayedRun:
    """Runs an agent loop. Raises its exceptions."""
    found = _discover.Found(None, loop, None, None, None)
    request: Any = SimpleNamespace(
        messages=_prompt_texts(prompt), max_turns=max_turns, max_tokens_total=8192, completion_params="{}"
    )
    with _played(replies, None, metadata) as run:
        _, result = _rehearse(found, lambda: _export.run_loop(request))
        run.result = result
        run.sample.messages = result.final_messages
    return run


def grade(
    grader: type[Grader],
    what: PlayedRun | str | Iterable[Message],
    label: str | None = None,
    *,
    config: GraderConfig | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> GraderContext:
    """Grades a run, a conversation, or an answer. The returned context has the results: `reward`, and the samples with
    their rewards."""
    if isinstance(what, PlayedRun):
        samples = [RolloutSample(each.id, each.messages, each.metrics) for each in what.samples]
    else:
        messages = [assistant(what)] if isinstance(what, str) else list(what)
        samples = [RolloutSample("main", messages)]
    given = config or GraderConfig()
    ctx = GraderContext(label, samples, given, None if metadata is None else dict(metadata))
    with _played((), None, metadata):
        reward: Any = _one_thread.run_apart(lambda: _loop.loop.run_main(grader(given).grade(ctx)))
    if reward is not None:
        ctx.set_reward(reward)
    return ctx


class PlayedEpisode:
    """An episode of an environment. Its turns have observations as JSON values, as a caller receives them."""

    def __init__(self, kind: type[Environment[Any]], task: Mapping[str, Any], seed: int | None, config: Any) -> None:
        self._episode = _episode.Episode(_episode.read(kind), config)
        self.first = self._turn(lambda: self._episode.reset(seed, None, json.dumps(dict(task))))
        """The result of the reset."""

    def step(self, /, **action: Any) -> Turn[Any]:
        """Takes an action with these fields."""
        return self._turn(lambda: self._episode.step(json.dumps(action)))

    def call(self, name: str, /, **arguments: Any) -> Turn[Any]:
        """Calls a tool."""
        return self._turn(lambda: self._episode.call(name, json.dumps(arguments)))

    def state(self) -> JsonObject:
        """Returns the visible state."""
        state: JsonObject = json.loads(self._episode.state())
        return state

    def _turn(self, work: Callable[[], Coroutine[Any, Any, _episode.Outcome]]) -> Turn[Any]:
        with _played((), None, None):
            made = _one_thread.run_apart(lambda: _loop.loop.run_main(work()))
        return Turn(json.loads(made.observation), made.reward, made.done, json.loads(made.metadata or "{}"))


def play(
    environment: type[Environment[Any]],
    task: Mapping[str, Any] | None = None,
    *,
    seed: int | None = None,
    config: BaseConfig | Mapping[str, Any] | None = None,
) -> PlayedEpisode:
    """Begins an episode of an environment with these arguments of the reset. Raises its exceptions."""
    declared, values = _configuration(_discover.named_config(environment, Environment), config)
    own = declared or _discover.Declared(EnvironmentConfig)
    return PlayedEpisode(environment, task or {}, seed, own.with_values(dict(values or {})))


def _configuration(
    kind: type[BaseConfig] | None, config: BaseConfig | Mapping[str, Any] | None
) -> tuple[_discover.Declared | None, Mapping[str, Any] | None]:
    if isinstance(config, BaseConfig):
        return _discover.Declared(type(config), config), None
    return None if kind is None else _discover.Declared(kind), config


def _prompt_texts(prompt: Prompt) -> list[str]:
    messages = [user(prompt)] if isinstance(prompt, str) else prompt
    return [json.dumps(message) for message in messages]


def _rehearse(found: _discover.Found, work: Callable[[], Any]) -> Any:
    return _one_thread.run_apart(lambda: _export.rehearse(found, work))


# A simulated host.


class _PlayedCall:
    """A model call in progress."""

    def __init__(self, reply: Any, keep_for: Any) -> None:
        self.reply = reply
        self.keep_for = keep_for

    def __exit__(self, *_: object) -> None:
        """Does nothing: no call is in progress."""


class _Model:
    """Replies from the script, in the order of the calls."""

    Request = SimpleNamespace
    Role = SimpleNamespace(POLICY="policy", JUDGE="judge")

    def __init__(self, replies: Iterable[Reply], run: PlayedRun) -> None:
        self._replies = list(replies)
        self._run = run

    @staticmethod
    def Conversation_History(value: list[str]) -> tuple[bool, list[str]]:
        return True, value

    @staticmethod
    def Conversation_Messages(value: list[str]) -> tuple[bool, list[str]]:
        return False, value

    def start(self, role: str, sample: _Handle | None, request: Any) -> Any:
        assert role == "policy" and sample is not None, "the judge is not played"
        after_history, given = request.conversation
        messages = [json.loads(each) for each in given]
        if after_history:
            sample.push(given)
            messages = [*sample.played.messages]
        sent = {
            "messages": messages,
            "tools": [json.loads(each) for each in request.tools],
            **json.loads(request.params or "{}"),
        }
        place = len(self._run.requests)
        self._run.requests.append(sent)
        assert place < len(self._replies), f"the model was called more often than there are replies, {place}"
        reply: Any = self._replies[place]
        if callable(reply):
            reply = reply(sent)
        return _PlayedCall(reply, sample if request.keep_reply else None)

    def finish(self, call: Any) -> Any:
        if isinstance(call.reply, Exception):
            raise call.reply
        message = assistant(call.reply) if isinstance(call.reply, str) else call.reply
        text = json.dumps(message)
        if call.keep_for is not None:
            call.keep_for.push([text])
        wanted = tool_calls_of(message)
        reason = "tool_calls" if wanted else "stop"
        usage = SimpleNamespace(prompt_tokens=1, completion_tokens=1)
        return SimpleNamespace(
            message=text, text=text_of(message), tool_calls=wanted, finish_reason=reason, usage=usage
        )


class _Handle:
    """The handle of a sample."""

    def __init__(self, sample: PlayedSample) -> None:
        self.played = sample

    def id(self) -> str:
        return self.played.id

    def push(self, messages: list[str]) -> None:
        self.played.messages += map(json.loads, messages)

    def replace(self, messages: list[str]) -> None:
        self.played.messages = [json.loads(message) for message in messages]

    def set_metric(self, name: str, value: float) -> None:
        self.played.metrics[name] = value

    def set_field(self, name: str, value: str) -> None:
        self.played.fields[name] = json.loads(value)

    def withdraw(self) -> None:
        self.played.withdrawn = True


class _Levels:
    def __getitem__(self, name: str) -> str:
        return name.lower()


@contextlib.contextmanager
def _played(
    replies: Iterable[Reply], config: Mapping[str, Any] | None, metadata: Mapping[str, Any] | None
) -> Generator[PlayedRun, None, None]:
    """Simulates the host in a `with` block."""
    run = PlayedRun()

    def open_sample(name: str | None) -> _Handle:
        sample = PlayedSample(name or f"sample-{len(run.samples) + 1}")
        if any(sample.id == other.id for other in run.samples):
            raise OpenError("taken", f"the sample name `{name}` is taken")
        run.samples.append(sample)
        return _Handle(sample)

    def read(name: str) -> bytes:
        if name not in run.artifacts:
            raise ArtifactError("not-found", "there is no artifact of this name")
        return run.artifacts[name]

    def wait(under_way: list[Any], timeout_ms: int | None) -> list[int]:
        return list(range(len(under_way)))

    def write(about: str, text: str) -> None:
        run.log.append((about, text))

    played: dict[str, Any] = {
        "artifacts": SimpleNamespace(
            write=run.artifacts.__setitem__, read=read, names=lambda: sorted(run.artifacts)
        ),
        "calls": SimpleNamespace(wait=wait),
        "models": _Model(replies, run),
        "context": SimpleNamespace(
            rollout_id=lambda: "test",
            attempt=lambda: 1,
            config=lambda: None if config is None else json.dumps(dict(config)),
            metadata=lambda: None if metadata is None else json.dumps(dict(metadata)),
            time_left_ms=lambda: None,
        ),
        "log": SimpleNamespace(
            Level=_Levels(),
            line=write,
            event=write,
        ),
        "samples": SimpleNamespace(limit=lambda: 16, Sample=SimpleNamespace(open=open_sample)),
        "tools": SimpleNamespace(available=list),
    }
    host: dict[str, Any] = _host.__dict__
    kept = {name: host[name] for name in played}
    try:
        host.update(played)
        yield run
    finally:
        host.update(kept)
        context.leave_rollout()
