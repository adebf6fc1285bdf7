"""Random numbers: the same ones whenever a component is built, and a rollout's own in it.

What a module draws while it is imported is part of the component, and the same in all of its
instances. So while building, the system's random numbers are those of a fixed sequence: one
source makes one component. And a generator that a module made without a seed gets one when a
rollout begins; otherwise it would draw the same in every rollout.
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
"""The generator of the module's own functions."""

_unseeded: WeakSet[random.Random] = WeakSet()
"""Generators that were left to the system's random numbers."""

_building = False
_begun = False
_drawn = 0


def install() -> None:
    """Begins the fixed sequence. Before anything of the author's is imported."""
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
    """Ends it: from here on the system's random numbers are the rollout's."""
    global _building, _begun
    random.seed(0)
    _building = _begun = False


def begin_rollout() -> None:
    """Seeds whatever was left to the system's random numbers while the component was built."""
    global _begun
    _begun = True
    random.seed(int.from_bytes(_urandom(16)))
    for generator in _unseeded:
        generator.seed()
    numbers: Any = sys.modules.get("numpy.random")
    if numbers is not None:
        numbers.seed(int.from_bytes(_urandom(4)))


def _urandom(size: int, /) -> bytes:
    """`os.urandom`."""
    global _drawn
    if not _building:
        return _real_urandom(size)
    _drawn += 1
    return shake_128(b"%d" % _drawn).digest(size)


def _seed(generator: random.Random, a: Any = None, version: int = 2) -> None:
    """`Random.seed`."""
    if a is None:
        if not _building and not _begun and generator is _shared:
            # The bindings ask for it before each rollout, which begins with it anyway.
            return
        _unseeded.add(generator)
        a = int.from_bytes(_urandom(16))
    else:
        _unseeded.discard(generator)
    _real_seed(generator, a, version)
