"""Who this worker is among those that train, and where the others are."""

from __future__ import annotations

import json
import os

from hopsml.cluster.shared.layout import ADDRESS, CHIEF
from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError
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


def role() -> str:
    """Of this task: "chief", "worker", "ps" or "evaluator"; "chief" outside of a run."""
    context = current()
    return context.role if context is not None else CHIEF


def address(role: str, index: int = 0) -> str:
    """host:port at which a task of the run serves, by its name: ``address("ps", 1)``. Asks nobody: any task may call it.

    Of the tasks that this one's ``TF_CONFIG`` names; an evaluator of parameter servers has a cluster of its own. In an
    elastic group it is that of the generation in which this process began.

    Raises ArgumentError: there is no such task, or the run's framework has no such names: ``addresses()`` is by rank there.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise ArgumentError(
            f"address({role!r}, {index}): tasks have names where hopsml sets TF_CONFIG, as for collective_all_reduce and "
            "parameter_server; here hopsml.distributed.addresses() has them by rank"
        )
    cluster: dict[str, list[str]] = json.loads(text).get("cluster", {})
    tasks = cluster.get(role, [])
    if not 0 <= index < len(tasks):
        known = ", ".join(f"{len(found)} {name}" for name, found in cluster.items())
        raise ArgumentError(f"address({role!r}, {index}): there is no such task; this one knows of {known}")
    return tasks[index]


def _own_address() -> str:
    return os.environ.get(ADDRESS, "127.0.0.1:0")
