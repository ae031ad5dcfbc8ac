"""Random numbers of searchers: they depend on the seed and on what is asked, never on what happened before.

So nothing of a generator needs to be kept, and a restored searcher goes on as the other one would have.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

from hopsml.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np


def seed_of(seed: int | None) -> int:
    """The seed to be used: a random one for None. Raises ArgumentError if it is no integer from 0."""
    if seed is None:
        return secrets.randbits(32)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ArgumentError(f"seed={seed!r}: an integer, 0 or more, or None was expected")
    return seed


def generator(*numbers: int) -> np.random.Generator:
    """The generator that belongs to these numbers: the seed, then what tells one use of it from another."""
    import numpy as np

    return np.random.default_rng(numbers)


def number_of(*numbers: int) -> int:
    """A 32-bit number that belongs to these numbers, for libraries that take a single seed."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=4).digest(), "big")
