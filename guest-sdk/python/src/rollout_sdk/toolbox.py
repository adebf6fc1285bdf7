"""The tools of one conversation, and who runs which call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import lent
from ._json import JsonObject
from .message import ToolCall, ToolResult
from .tool import Tool, as_tool, failed


class Toolbox:
    """The tools that are offered to the model in one conversation: a plugin's own and,
    if asked for, those that the operator lends.

    `Agent` has one inside; it is for a loop of one's own."""

    def __init__(self, tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (), *, lent_tools: bool = False):
        self._own: dict[str, Tool[..., Any]] = {}
        for item in tools:
            self.add(item)
        self._lent: dict[str, JsonObject] = {}
        if lent_tools:
            self.add_lent()

    def add(self, item: Tool[..., Any] | Callable[..., Any]) -> None:
        """Adds a tool, in place of one of the same name. A plain function is made one."""
        made = as_tool(item)
        self._own[made.name] = made

    def add_lent(self) -> None:
        """Adds the tools that the operator lends, except those with the name of a tool of
        the plugin's own."""
        self._lent = {schema["function"]["name"]: schema for schema in lent.available()}

    @property
    def schemas(self) -> list[JsonObject]:
        """What the model is told of the tools."""
        own = [item.schema for item in self._own.values()]
        return own + [schema for name, schema in self._lent.items() if name not in self._own]

    async def execute(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Makes the calls side by side; results come in the order of the calls. A tool
        that is not here gives a result that says so."""
        return await asyncio.gather(*map(self.call, calls))

    async def call(self, call: ToolCall) -> ToolResult:
        """Makes one call."""
        if own := self._own.get(call.name):
            return await own.call(call)
        if call.name in self._lent:
            return await lent.call(call)
        names = ", ".join([*self._own, *(name for name in self._lent if name not in self._own)])
        there_are = f"there are: {names}" if names else "there are none"
        return failed(call, f"there is no tool `{call.name}`; {there_are}")
