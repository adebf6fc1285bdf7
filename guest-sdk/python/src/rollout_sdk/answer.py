"""Functions that read answers from a model's text.

They are pure. A text that cannot be read with certainty gives None: a grader that guesses trains the wrong behaviour.
"""

from __future__ import annotations

import math
import re

_AROUND = " \t\r\n\f\v\u00a0*`$"
_SEPARATOR = re.compile("[, \u00a0\u2009\u202f]")
_PLAIN = re.compile(r"[0-9.][0-9.eE+-]*")


def answer_after(text: str, marker: str) -> str | None:
    """Returns the rest of the line after the last marker, without surrounding white space; None if the marker is
    missing or nothing follows it."""
    _, found, after = text.rpartition(marker)
    if not found:
        return None
    lines = after.lstrip().splitlines()
    return (lines[0].strip() or None) if lines else None


def parse_number(text: str) -> float | None:
    """Parses a number in any usual format: with surrounding white space, `*`, `` ` `` and `$`, thousands separated by
    commas or spaces, a full stop at the end, the sign before or after the `$`. Returns None for anything else, and for
    infinite numbers."""
    text = text.strip(_AROUND).rstrip(".").strip(_AROUND)
    negative = text.startswith(("-", "\u2212"))
    if negative or text.startswith("+"):
        text = text[1:]
    digits = _join_thousands(text.lstrip(_AROUND))
    if digits is None or not _PLAIN.fullmatch(digits):
        return None
    try:
        value = float(digits)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return -value if negative else value


def same_number(a: str, b: str) -> bool:
    """Returns whether two texts are the same number, regardless of format and rounding of double precision. A text that
    is not a number equals nothing."""
    left, right = parse_number(a), parse_number(b)
    if left is None or right is None:
        return False
    return abs(left - right) <= 1e-9 * max(abs(left), abs(right))


def _join_thousands(text: str) -> str | None:
    """Removes the separators of thousands. Returns None if a comma or a space has another position, because `1, 2` is
    not 12 and `1,5` may mean one and a half."""
    end = next((at for at, c in enumerate(text) if c in ".eE"), len(text))
    first, *groups = _SEPARATOR.split(text[:end])
    if groups and not 1 <= len(first) <= 3:
        return None
    if any(len(group) != 3 or not (group.isascii() and group.isdigit()) for group in groups):
        return None
    return "".join([first, *groups]) + text[end:]
