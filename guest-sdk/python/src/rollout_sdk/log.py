"""Lines and events for whoever debugs this rollout.

Bounded by the host: past the limit they are counted and dropped. What `print` and the
standard library's `logging` write comes here as well.
"""

from __future__ import annotations

from typing import Any

from . import _host
from ._json import dump


def debug(text: object) -> None:
    """A line that only matters to who looks for it."""
    _host.log_line("debug", text)


def info(text: object) -> None:
    """A line about what goes on."""
    _host.log_line("info", text)


def warn(text: object) -> None:
    """A line about something unexpected that was dealt with."""
    _host.log_line("warn", text)


def error(text: object) -> None:
    """A line about something that went wrong."""
    _host.log_line("error", text)


def event(name: str, data: Any = None) -> None:
    """A named event with a JSON value, for programs to read."""
    _host.log_event(name, dump(data, f"event `{name}`"))
