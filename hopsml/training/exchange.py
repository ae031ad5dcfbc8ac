"""``hopsml.distributed.exchange``: any values from every worker to every worker."""

from __future__ import annotations

import pickle
from typing import TypeVar

from hopsml.errors import ArgumentError
from hopsml.training import collective

Value = TypeVar("Value")


def exchange(value: Value) -> list[Value]:
    """Every worker's ``value``, in rank order: addresses, vocabularies, scores. All workers call it; it is pickled.

    Raises ArgumentError for a value that cannot be pickled; PeerLost, CollectiveTimeout, CollectiveMismatch: as of
    ``hopsml.all_reduce``.
    """
    import numpy as np

    try:
        own = np.frombuffer(pickle.dumps(value, protocol=5), np.uint8)
    except Exception as error:
        raise ArgumentError(
            f"exchange(): a {type(value).__name__} cannot be pickled ({type(error).__name__}: {error}); exchange what it is "
            "made from"
        ) from error
    while True:
        sizes = collective.all_gather(np.array([own.size], np.int64), name="sizes of exchanged values")[:, 0]
        padded = np.zeros(int(sizes.max()), np.uint8)
        padded[: own.size] = own
        rows = collective.all_gather(padded, name="exchanged values")
        if len(rows) == len(sizes):  # else a member was lost between the two, of which all see the same
            break
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]
