"""Sessions of agents in the shape of the OpenAI Agents framework: the storage of a conversation between runs, and the
sample that records it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from ._agents_items import Item, UserError
from ._history import RecordedHistory
from .message import Message
from .sample import Completion, Sample


class SessionABC(ABC):
    """Stores the items of a conversation. With an author's own session, a run also records a sample."""

    session_id: str

    @abstractmethod
    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Returns the items, or the latest `limit` of them."""

    @abstractmethod
    async def add_items(self, items: list[Item]) -> None:
        """Appends items."""

    @abstractmethod
    async def pop_item(self) -> Item | None:
        """Removes and returns the last item."""

    @abstractmethod
    async def clear_session(self) -> None:
        """Removes all items."""


def latest(items: list[Item], limit: int | None) -> list[Item]:
    """Returns the items, or the latest `limit` of them."""
    return list(items) if limit is None else items[-limit:] if limit > 0 else []


class MemorySession(SessionABC):
    """The items of one conversation, which are the history of a sample."""

    def __init__(self, name: str | None = None) -> None:
        """Registers a sample whose id is the name, or a random one."""
        self._history = RecordedHistory([], name, "a session")
        self.session_id = self._history.sample.id

    @property
    def sample(self) -> Sample:
        """The sample that records the items."""
        return self._history.sample

    @property
    def history(self) -> RecordedHistory:
        """The items together with their sample."""
        return self._history

    @property
    def items(self) -> list[Item]:
        """The items, which the author may change."""
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
    """The framework's database session. A component has only the kind that is in memory."""

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
        """Does nothing: there is nothing to close."""


class Conversation:
    """The conversation of a run: its items, and its model calls."""

    def __init__(self, within: Conversation | None = None) -> None:
        self.items: list[Item] = []
        self.session: MemorySession | None = None
        """The session that records the items; None within another run, which records instead."""
        self._within = within
        self._other: SessionABC | None = None

    @classmethod
    async def of(cls, session: SessionABC | None, within: Conversation | None) -> Conversation:
        """Returns the conversation of a run: that of its session or a new one; or, within a tool or guardrail of
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
        """Returns the sample of the model calls, which it creates if necessary."""
        if self._within is not None:
            return await self._within._opened()
        if self.session is None:
            made = MemorySession()
            await made.add_items(self.items)
            self._record_in(made)
        assert self.session is not None
        return self.session.sample

    async def add(self, items: Iterable[Item]) -> None:
        """Appends items."""
        listed = list(items)
        if self.session is None:
            self.items = [*self.items, *listed]
        else:
            # An author's subclass may do anything in its methods.
            await self.session.add_items(listed)
            self.items = self.session.items
        if self._other is not None:
            await self._other.add_items(listed)

    async def chat(self, messages: list[Message], tools: list[Item], params: Item) -> Completion:
        """Calls the model. The first call creates the session if there is none: a run that a guardrail stops earlier
        has no sample."""
        sample = await self._opened()
        if self.session is None:
            return await sample.chat(messages, tools=tools, **params)
        return await self.session.history.chat(messages, tools, params)
