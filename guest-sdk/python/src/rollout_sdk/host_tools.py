"""Tools that the operator provides this plugin, run by the host. For workflows only.

`Agent(host_tools=True)` offers them in the ready-made loop; these functions are for a
loop of one's own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

from . import _host, _loop
from ._json import JsonObject
from .message import ToolCall, ToolResult


def available() -> list[JsonObject]:
    """The schemas of the host-provided tools, in the form of OpenAI's function tools; empty where
    nothing is provided."""
    return [json.loads(schema) for schema in _host.available_tools()]


async def call(call: ToolCall) -> ToolResult:
    """Makes a call. A tool that is not provided gives a result that says so."""
    started = _host.start_tool(call.id, call.name, call.arguments)
    call_id, content, is_error = await _loop.outcome(started, _host.finish_tool)
    return ToolResult(call_id, content, is_error)


async def execute(calls: Iterable[ToolCall]) -> list[ToolResult]:
    """Makes the calls side by side; results come in the order of the calls."""
    return await asyncio.gather(*map(call, calls))
