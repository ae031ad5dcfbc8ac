"""All-to-all exchange of arbitrary Python values between workers (``hopsml.distributed.exchange``)."""

from __future__ import annotations

import pickle
from typing import TypeVar

from hopsml.errors import ArgumentError
from hopsml.training import collective

Value = TypeVar("Value")


def exchange(value: Value) -> list[Value]:
    """Return the ``value`` of every worker in rank order, such as addresses, vocabularies or scores.

    All workers must call it.

    Args:
        value: this worker's value; it is pickled.

    Raises:
        ArgumentError: the value cannot be pickled.
        PeerLost: a worker has exited, as for ``hopsml.all_reduce``.
        CollectiveTimeout: a worker took no part in time, as for ``hopsml.all_reduce``.
        CollectiveMismatch: workers called different operations, as for ``hopsml.all_reduce``.
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
        if len(rows) == len(sizes):  # otherwise a member failed between the two calls, which all workers see alike
            break
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]
