"""Tools that the operator provides to this plugin, run by the host. For workflows only.

`Agent(host_tools=True)` offers them in the ready-made loop; these functions are for a custom loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

from . import _host, _loop
from ._json import JsonObject
from .message import ToolCall, ToolResult


def available() -> list[JsonObject]:
    """Returns the schemas of the host-provided tools, in the form of OpenAI's function tools; empty if there are
    none."""
    return [json.loads(schema) for schema in _host.available_tools()]


async def call(call: ToolCall) -> ToolResult:
    """Calls a tool. An unknown tool gives an error result."""
    started = _host.start_tool(call.id, call.name, call.arguments)
    call_id, content, is_error = await _loop.outcome(started, _host.finish_tool)
    return ToolResult(call_id, content, is_error)


async def execute(calls: Iterable[ToolCall]) -> list[ToolResult]:
    """Makes the calls concurrently and returns the results in their order."""
    return await asyncio.gather(*map(call, calls))
