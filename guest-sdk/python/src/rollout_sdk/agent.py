"""The ready-made tool loop.

An `Agent` calls the model, runs the tools that the reply calls, appends the results and calls the model again, until the
model stops or a limit is reached. Every message is pushed to the sample immediately, so a rollout that is interrupted still
has its history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ._older import StrEnum
from .errors import ChatError
from .message import Message, last_assistant_text, system, text_of
from .sample import Completion, Sample, Usage
from .tool import Tool
from .toolbox import Toolbox

TURNS_MAX = 16
"""Default of `max_turns`: the maximum number of model calls in a run."""


class Stop(StrEnum):
    """The reason why an agent stopped."""

    STOPPED = "stopped"
    """The model answered without calling a tool."""
    TURN_LIMIT = "turn-limit"
    """The model still called tools after the maximum number of turns."""
    LENGTH = "length"
    """The model's reply was cut off at its token limit."""
    BUDGET_SPENT = "budget-spent"
    """A budget of this rollout is spent."""


@dataclass(frozen=True)
class AgentRun:
    """The result of a run."""

    agent: Agent
    """The agent, which can be given more messages and run again."""
    stop: Stop
    """The reason why the agent stopped."""
    turns: int
    """Number of replies of the model in this run."""
    tool_calls: int
    """Number of tool calls in this run."""
    usage: Usage
    """Tokens of this run, as far as the server reports them."""

    @property
    def text(self) -> str:
        """The text of the model's last message; empty if it has none."""
        return last_assistant_text(self.agent.messages)

    @property
    def messages(self) -> list[Message]:
        """The whole conversation, the prompt included."""
        return self.agent.messages

    @property
    def sample(self) -> Sample:
        """The sample that records the conversation."""
        return self.agent.sample


class Agent:
    """The tool loop. `ctx.agent(…)` creates one that starts from the prompt."""

    def __init__(
        self,
        sample: Sample,
        messages: Iterable[Message] = (),
        *,
        instructions: str | None = None,
        tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
        host_tools: bool = False,
        max_turns: int = TURNS_MAX,
        **params: Any,
    ) -> None:
        """Creates an agent that records in this sample and starts from these messages. `instructions` are appended to
        the system message that the conversation starts with, or become its first message. `host_tools` offers the
        operator's tools as well. `params` are sampling parameters such as `temperature`."""
        self.sample = sample
        self.messages: list[Message] = list(messages)
        self.toolbox = Toolbox(tools, host_tools=host_tools)
        self.max_turns = max(1, max_turns)
        self.params = params
        # The messages that the sample's history had after the last call.
        self._known: list[Message] = []
        if instructions is not None:
            self._instruct(instructions)

    def _instruct(self, text: str) -> None:
        first = self.messages[0] if self.messages else None
        if first is not None and first.get("role") == "system":
            self.messages[0] = {**first, "content": f"{text_of(first)}\n\n{text}"}
        else:
            self.messages.insert(0, system(text))

    def say(self, *messages: Message) -> Agent:
        """Adds messages to the conversation."""
        self.messages.extend(messages)
        return self

    async def run(self) -> AgentRun:
        """Runs the loop. A spent budget ends it like any other stop; the history is complete up to that point. Raises
        `ChatError` if a model call fails."""
        turns = tool_calls = 0
        usage = Usage()
        while True:
            try:
                reply = await self._ask()
            except ChatError as error:
                if error.kind != "budget-spent":
                    raise
                return AgentRun(self, Stop.BUDGET_SPENT, turns, tool_calls, usage)
            turns += 1
            usage += reply.usage or Usage()
            self.messages.append(reply.message)
            self._known.append(dict(reply.message))
            stop: Stop | None = None
            if reply.finish_reason == "length":
                # The tool calls of this reply may be cut off too.
                stop = Stop.LENGTH
            elif not reply.tool_calls:
                stop = Stop.STOPPED
            elif turns == self.max_turns:
                # The model would not read the results.
                stop = Stop.TURN_LIMIT
            if stop is not None:
                return AgentRun(self, stop, turns, tool_calls, usage)
            results = await self.toolbox.execute(reply.tool_calls)
            self.messages.extend(result.message() for result in results)
            tool_calls += len(results)

    async def _ask(self) -> Completion:
        """Calls the model with the whole conversation, and records the new messages and the reply. If the sample's
        history is this conversation, only new messages are sent to the host."""
        known = len(self._known)
        fresh = self.messages[known:]
        is_its_own = self.sample.has_recorded(known) and self.messages[:known] == self._known
        self._known = [dict(message) for message in self.messages]
        if is_its_own:
            return await self.sample.continue_chat(*fresh, tools=self.toolbox.schemas, **self.params)
        if fresh:
            self.sample.push(*fresh)
        return await self.sample.chat(
            self.messages, tools=self.toolbox.schemas, keep_reply=True, **self.params
        )
