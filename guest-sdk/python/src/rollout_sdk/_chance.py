"""Random numbers: the same in every build of a component, and different in every rollout.

A number that a module draws while it is imported is part of the component, and the same in all of its instances. So during
the build, the system's random numbers come from a fixed sequence: the same source makes the same component. A generator
that a module created without a seed is seeded when a rollout begins; otherwise it would draw the same numbers in every
rollout.
"""

from __future__ import annotations

import os
import random
import sys
from hashlib import shake_128
from typing import Any
from weakref import WeakSet

_real_urandom = os.urandom
_real_seed = random.Random.seed

_of_module: Any = random
_shared: random.Random = _of_module._inst
"""The generator of `random`'s module functions."""

_unseeded: WeakSet[random.Random] = WeakSet()
"""Generators without a seed, which the system's random numbers seed."""

_building = False
_begun = False
_drawn = 0


def install() -> None:
    """Starts the fixed sequence, before the author's modules are imported."""
    global _building
    _building = True
    system: Any = os
    system.urandom = _urandom
    module: Any = random
    module._urandom = _urandom
    module.Random.seed = _seed
    module.seed = module._inst.seed
    random.seed(0)


def built() -> None:
    """Ends the fixed sequence: from here on the system's random numbers are the rollout's."""
    global _building, _begun
    random.seed(0)
    _building = _begun = False


def begin_rollout() -> None:
    """Seeds all generators that were created without a seed while the component was built."""
    global _begun
    _begun = True
    random.seed(int.from_bytes(_urandom(16)))
    for generator in _unseeded:
        generator.seed()
    numbers: Any = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed(int.from_bytes(_urandom(4)))


def _urandom(size: int, /) -> bytes:
    """Implements `os.urandom`."""
    global _drawn
    if not _building:
        return _real_urandom(size)
    _drawn += 1
    return shake_128(b"%d" % _drawn).digest(size)


def _seed(generator: random.Random, a: Any = None, version: int = 2) -> None:
    """Implements `Random.seed`."""
    if a is None:
        if not _building and not _begun and generator is _shared:
            # The bindings seed it before each rollout, and `begin_rollout` does so anyway.
            return
        _unseeded.add(generator)
        a = int.from_bytes(_urandom(16))
    else:
        _unseeded.discard(generator)
    _real_seed(generator, a, version)
