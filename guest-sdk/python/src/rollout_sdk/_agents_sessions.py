"""Sessions of agents in the shape of the OpenAI Agents framework: what holds a conversation from one
run to the next, and which sample it is recorded in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from ._agents_items import Item, UserError
from ._history import RecordedHistory
from .message import Message
from .sample import Completion, Sample


class SessionABC(ABC):
    """Holds the items of a conversation. One of an author's own beside which a run has a sample."""

    session_id: str

    @abstractmethod
    async def get_items(self, limit: int | None = None) -> list[Item]:
        """The items, or the latest of them."""

    @abstractmethod
    async def add_items(self, items: list[Item]) -> None:
        """Adds items at the end."""

    @abstractmethod
    async def pop_item(self) -> Item | None:
        """Takes the last item out."""

    @abstractmethod
    async def clear_session(self) -> None:
        """Takes all items out."""


def latest(items: list[Item], limit: int | None) -> list[Item]:
    """The items, or the latest of them."""
    return list(items) if limit is None else items[-limit:] if limit > 0 else []


class MemorySession(SessionABC):
    """The items of one conversation, which are a sample's history."""

    def __init__(self, name: str | None = None) -> None:
        """Registers a sample whose id is the name, or a random one."""
        self._history = RecordedHistory([], name, "a session")
        self.session_id = self._history.sample.id

    @property
    def sample(self) -> Sample:
        """The sample that holds the items."""
        return self._history.sample

    @property
    def history(self) -> RecordedHistory:
        """The items with their sample."""
        return self._history

    @property
    def items(self) -> list[Item]:
        """The items. They may be changed."""
        return self._history.messages

    async def get_items(self, limit: int | None = None) -> list[Item]:
        return latest(self._history.messages, limit)

    async def add_items(self, items: Iterable[Item]) -> None:
        self._history.messages.extend(items)
        self._history.record()

    async def pop_item(self) -> Item | None:
        item = self._history.messages.pop() if self._history.messages else None
        self._history.record()
        return item

    async def clear_session(self) -> None:
        self._history.messages.clear()
        self._history.record()


class SQLiteSession(SessionABC):
    """The framework's session in a data base, of which a component has the kind that is in memory."""

    def __init__(self, session_id: str, db_path: Any = ":memory:") -> None:
        if str(db_path) != ":memory:":
            raise UserError(f"SQLiteSession: a component has no file {db_path}; leave `db_path` out, and items are in memory")
        self.session_id = session_id
        self._items: list[Item] = []

    async def get_items(self, limit: int | None = None) -> list[Item]:
        return latest(self._items, limit)

    async def add_items(self, items: list[Item]) -> None:
        self._items.extend(items)

    async def pop_item(self) -> Item | None:
        return self._items.pop() if self._items else None

    async def clear_session(self) -> None:
        self._items.clear()

    def close(self) -> None:
        """Nothing: there is nothing to be closed."""


class Conversation:
    """What a run reads, adds to and asks with."""

    def __init__(self, within: Conversation | None = None) -> None:
        self.items: list[Item] = []
        self.session: MemorySession | None = None
        """What the items are recorded in; None within another run, which is the one that is recorded."""
        self._within = within
        self._other: SessionABC | None = None

    @classmethod
    async def of(cls, session: SessionABC | None, within: Conversation | None) -> Conversation:
        """The conversation of a run: of its session, or a new one; or, within a tool or a guardrail of
        another run, one that is not recorded."""
        made = cls(within if session is None else None)
        if isinstance(session, MemorySession):
            made._record_in(session)
        elif session is not None:
            made._other = session
            made.items = await session.get_items()
        return made

    def _record_in(self, session: MemorySession) -> None:
        self.session = session
        self.items = session.items

    async def _opened(self) -> Sample:
        """The sample that the model is asked in the name of."""
        if self._within is not None:
            return await self._within._opened()
        if self.session is None:
            made = MemorySession()
            await made.add_items(self.items)
            self._record_in(made)
        assert self.session is not None
        return self.session.sample

    async def add(self, items: Iterable[Item]) -> None:
        """Adds items at the end."""
        listed = list(items)
        if self.session is None:
            self.items = [*self.items, *listed]
        else:
            # A session may be an author's, who may do anything in its methods.
            await self.session.add_items(listed)
            self.items = self.session.items
        if self._other is not None:
            await self._other.add_items(listed)

    async def chat(self, messages: list[Message], tools: list[Item], params: Item) -> Completion:
        """Asks the model. Where there is no session yet, this is when there has to be one: a run that a
        guardrail ends before has no sample."""
        sample = await self._opened()
        if self.session is None:
            return await sample.chat(messages, tools=tools, **params)
        return await self.session.history.chat(messages, tools, params)
