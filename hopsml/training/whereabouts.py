"""Who this worker is among those that train, and where the others are."""

from __future__ import annotations

import os

from hopsml.cluster.shared.layout import ADDRESS
from hopsml.cluster.worker.context import current
from hopsml.training import collective


def rank() -> int:
    """Of this worker, from 0; in an elastic group that of its newest generation."""
    return collective.place()[0]


def world_size() -> int:
    """How many workers train."""
    return collective.place()[1]


def local_rank() -> int:
    """Of this worker among those on its host, from 0."""
    context = current()
    return context.local_rank if context is not None else 0


def leader() -> str:
    """host:port of rank 0; the port is held for it. "127.0.0.1:0" outside of a run."""
    context = current()
    return context.leader if context is not None else "127.0.0.1:0"


def host() -> str:
    """The address by which the others reach this worker."""
    return _own_address().rpartition(":")[0].strip("[]")


def port() -> int:
    """A port of this worker's that its agent holds for it until it binds it, with SO_REUSEPORT; 0 outside of a run."""
    return int(_own_address().rpartition(":")[2])


def addresses() -> list[str]:
    """host:port of every worker that trains, by rank, as ``host()`` and ``port()`` are there. All workers call it."""
    from hopsml.training.exchange import exchange

    return exchange(_own_address())


def _own_address() -> str:
    return os.environ.get(ADDRESS, "127.0.0.1:0")
