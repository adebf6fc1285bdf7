"""Rules for the files of a project and its dependencies that are part of a component. The builder, which is not part of one, and the
archive (`_archive.py`) share them."""

from __future__ import annotations

import re

AUTHORS = "/0"
"""The directory of the author's modules in a component."""

BUNDLED = "/2"
"""The directory of the dependencies in a component."""

DATA_BYTES_MAX = 1 << 20
"""The largest data file that is part of a component. Larger ones can be read during imports, which costs a rollout nothing."""


def is_archived(name: str, size: int, *, in_package: bool) -> bool:
    """Returns whether a file with this name and this size in bytes is part of the component."""
    if name.startswith("."):
        return False
    return name.endswith(".py") or (in_package and _is_kind_of_data(name) and size <= DATA_BYTES_MAX)


def _is_kind_of_data(name: str) -> bool:
    return not re.search(r"\.(pyc|pyi|pyx|pxd|c|h|cpp|dll|dylib|a|o)$", name)
