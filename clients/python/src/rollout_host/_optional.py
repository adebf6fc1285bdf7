"""Imports of optional packages, with an error that says how to install them."""

from __future__ import annotations

import importlib
from typing import Any


def need(package: str, extra: str, user: str) -> Any:
    """Imports a package, or raises an ImportError that names the extra with it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:
            raise
        raise ModuleNotFoundError(
            f"{user} needs the package '{package.partition('.')[0]}': pip install 'rollout-host[{extra}]'",
            name=error.name,
        ) from error
