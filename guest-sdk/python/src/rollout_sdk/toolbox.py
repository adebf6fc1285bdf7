"""The tools of a conversation, which are the plugin's own and the operator's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import host_tools
from ._json import JsonObject
from .message import ToolCall, ToolResult
from .tool import Tool, as_tool, failed


class Toolbox:
    """The tools that the model is offered in a conversation: a plugin's own and, if requested, those that the operator
    provides.

    `Agent` has a toolbox; create one for a custom loop."""

    def __init__(self, tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (), *, host_tools: bool = False):
        self._own: dict[str, Tool[..., Any]] = {}
        for item in tools:
            self.add(item)
        self._of_host: dict[str, JsonObject] = {}
        if host_tools:
            self.add_host_tools()

    def add(self, item: Tool[..., Any] | Callable[..., Any]) -> None:
        """Adds a tool, or replaces one of the same name. A plain function becomes a tool."""
        made = as_tool(item)
        self._own[made.name] = made

    def add_host_tools(self) -> None:
        """Adds the operator's tools, except those with the name of a tool of the plugin."""
        self._of_host = {schema["function"]["name"]: schema for schema in host_tools.available()}

    @property
    def schemas(self) -> list[JsonObject]:
        """The definitions of the tools for the model."""
        own = [item.schema for item in self._own.values()]
        return own + [schema for name, schema in self._of_host.items() if name not in self._own]

    async def execute(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Makes the calls concurrently and returns the results in their order. An unknown tool gives an error
        result."""
        return await asyncio.gather(*map(self.call, calls))

    async def call(self, call: ToolCall) -> ToolResult:
        """Makes one call."""
        if own := self._own.get(call.name):
            return await own.call(call)
        if call.name in self._of_host:
            return await host_tools.call(call)
        names = ", ".join([*self._own, *(name for name in self._of_host if name not in self._own)])
        there_are = f"there are: {names}" if names else "there are none"
        return failed(call, f"there is no tool `{call.name}`; {there_are}")
