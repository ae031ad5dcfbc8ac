"""Random numbers of searchers, which depend on the seed and on the request alone, never on earlier calls.

So no generator's state needs to be stored, and a restored searcher continues as the original would have.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

from hopsml.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np


def seed_of(seed: int | None) -> int:
    """Return the seed to be used: a random one for None.

    Raises ArgumentError if it is not an integer of 0 or more.
    """
    if seed is None:
        return secrets.randbits(32)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ArgumentError(f"seed={seed!r}: an integer, 0 or more, or None was expected")
    return seed


def generator(*numbers: int) -> np.random.Generator:
    """Return the generator that belongs to these numbers: the seed, then numbers that identify its use."""
    import numpy as np

    return np.random.default_rng(numbers)


def number_of(*numbers: int) -> int:
    """Return a 32-bit number that belongs to these numbers, for libraries that take a single seed."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest(), "big")
