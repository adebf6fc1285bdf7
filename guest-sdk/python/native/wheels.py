"""Makes the wheels, including those that are linked with libraries of their own.

    wheels.py TOOLCHAIN WHEELS [PACKAGE...]

`make.py` is a part of every wheel's stamp: a line there would build all of them again. Builds that came later are
registered here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import make
import with_libraries

FILES_OF_EARLIER_BUILDS = make.made_of


def made_of(package: dict[str, Any]) -> list[Path]:
    """Returns the files that a wheel depends on. For `with_libraries.py` these include `with_setuptools.py`, which it
    calls, and the headers that it adds to the libraries' sources."""
    names: list[str] = []
    if package["build"] == "libraries":
        names = ["with_setuptools.py", *(name for each in package["libraries"] for name in each.get("headers", []))]
    return [*FILES_OF_EARLIER_BUILDS(package), *(make.RECIPES / name for name in names)]


make.BUILDS["libraries"] = with_libraries.build
make.made_of = made_of

if __name__ == "__main__":
    make.main()
