"""The rollout's log: lines and events for debugging.

The host limits the log: past the limit, lines are counted and dropped. Output of `print` and of the standard library's
`logging` goes here as well.
"""

from __future__ import annotations

from typing import Any

from . import _host
from ._json import dump


def debug(text: object) -> None:
    """Logs a line for detailed debugging."""
    _host.log_line("debug", text)


def info(text: object) -> None:
    """Logs a line about normal operation."""
    _host.log_line("info", text)


def warn(text: object) -> None:
    """Logs a line about an unexpected event that was handled."""
    _host.log_line("warn", text)


def error(text: object) -> None:
    """Logs a line about an error."""
    _host.log_line("error", text)


def event(name: str, data: Any = None) -> None:
    """Logs a named event with a JSON value, for programs to read."""
    _host.log_event(name, dump(data, f"event `{name}`"))
