"""The ready-made tool loop.

An `Agent` asks the model, runs the tools that it calls, appends the results and asks
again, until the model stops or a limit is reached. Every message is pushed to the sample
as it comes, so a rollout that is cut short still has its history.
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
"""The most calls of the model in one run, where `max_turns` says nothing else."""


class Stop(StrEnum):
    """Why an agent stopped."""

    STOPPED = "stopped"
    """The model wrote an answer and called no more tools."""
    TURN_LIMIT = "turn-limit"
    """The model was asked as often as allowed, and still called tools."""
    LENGTH = "length"
    """The model's reply was cut off at its token limit."""
    BUDGET_SPENT = "budget-spent"
    """A budget of this rollout is spent."""


@dataclass(frozen=True)
class AgentRun:
    """What an agent did."""

    agent: Agent
    """The agent, to say more to it and run it again."""
    stop: Stop
    """Why it stopped."""
    turns: int
    """How often the model was asked and answered, in this run."""
    tool_calls: int
    """How many tool calls were made, in this run."""
    usage: Usage
    """What this run cost, as far as the server said."""

    @property
    def text(self) -> str:
        """The text of the model's last message, empty where it has none."""
        return last_assistant_text(self.agent.messages)

    @property
    def messages(self) -> list[Message]:
        """The whole conversation, the prompt included."""
        return self.agent.messages

    @property
    def sample(self) -> Sample:
        """The sample that holds the conversation."""
        return self.agent.sample


class Agent:
    """The tool loop. `ctx.agent(…)` makes one that starts from the prompt."""

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
        """An agent that records in this sample and starts from these messages.

        `instructions` go after those that the conversation starts with, or become its
        first message. `host_tools` offers the operator's tools as well. `params` are
        sampling parameters such as `temperature`."""
        self.sample = sample
        self.messages: list[Message] = list(messages)
        self.toolbox = Toolbox(tools, host_tools=host_tools)
        self.max_turns = max(1, max_turns)
        self.params = params
        # What the sample's history has of the messages, as it was then.
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
        """Runs the loop. A budget that is spent ends it like any other stop; the history
        is complete then up to that point. Raises `ChatError` where the model cannot be
        asked."""
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
                # Tool calls in it would be cut off too.
                stop = Stop.LENGTH
            elif not reply.tool_calls:
                stop = Stop.STOPPED
            elif turns == self.max_turns:
                # Nobody would read the results.
                stop = Stop.TURN_LIMIT
            if stop is not None:
                return AgentRun(self, stop, turns, tool_calls, usage)
            results = await self.toolbox.execute(reply.tool_calls)
            self.messages.extend(result.message() for result in results)
            tool_calls += len(results)

    async def _ask(self) -> Completion:
        """Asks with the whole conversation, and keeps what is new in it and the reply. Where
        the sample's history is this conversation, only what is new is given to the host."""
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
