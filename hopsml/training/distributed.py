"""Rank, addresses and role of this worker, addresses of the others, and exchange of values (``hopsml.distributed``)."""

from __future__ import annotations

import json
import os
import pickle
from typing import TypeVar

from hopsml.cluster.shared.layout import CHIEF
from hopsml.cluster.worker.context import current
from hopsml.core.variables import SETTINGS
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
            f"exchange(): a {type(value).__name__} cannot be pickled ({type(error).__name__}: {error}); exchange "
            "plain values instead"
        ) from error
    while True:
        sizes = collective.all_gather(np.array([own.size], np.int64), name="sizes of exchanged values")[:, 0]
        padded = np.zeros(int(sizes.max()), np.uint8)
        padded[: own.size] = own
        rows = collective.all_gather(padded, name="exchanged values")
        if len(rows) == len(sizes):  # otherwise a member failed between the two calls, which all workers see alike
            break
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def rank() -> int:
    """Return the rank of this worker, from 0; in an elastic group, that of its newest generation."""
    return collective.rank_and_size()[0]


def world_size() -> int:
    """Return the number of training workers."""
    return collective.rank_and_size()[1]


def local_rank() -> int:
    """Return the index of this worker among those on its host, from 0."""
    context = current()
    return context.local_rank if context is not None else 0


def leader() -> str:
    """Return host:port of rank 0, where the port is reserved for it; "127.0.0.1:0" outside of a run."""
    context = current()
    return context.leader if context is not None else "127.0.0.1:0"


def host() -> str:
    """Return the address by which the other workers reach this worker."""
    return _own_address().rpartition(":")[0].strip("[]")


def port() -> int:
    """Return a port that the agent reserves for this worker; 0 outside of a run.

    It is reserved until the worker binds it, with SO_REUSEPORT.
    """
    return int(_own_address().rpartition(":")[2])


def addresses() -> list[str]:
    """Return host:port of every training worker by rank; all workers must call it.

    Hosts and ports are those that ``host()`` and ``port()`` return on each worker.
    """
    return exchange(_own_address())


def role() -> str:
    """Return the role of this task: "chief", "worker", "ps" or "evaluator"; "chief" outside of a run."""
    context = current()
    return context.role if context is not None else CHIEF


def address(role: str, index: int = 0) -> str:
    """Return host:port at which a named task of the run serves, as ``address("ps", 1)``.

    It reads this task's ``TF_CONFIG`` and communicates with no other task, so any task may call it alone. An
    evaluator of parameter servers has its own cluster. In an elastic group the address is that of the generation
    in which this process started.

    Args:
        role: "chief", "worker", "ps" or "evaluator".
        index: index of the task in its role, from 0.

    Raises:
        ArgumentError: there is no such task, or the run's framework has no named tasks: use ``addresses()`` there,
            which is by rank.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise ArgumentError(
            f"address({role!r}, {index}): tasks have roles only if hopsml sets TF_CONFIG, as for "
            "collective_all_reduce and parameter_server; use hopsml.distributed.addresses(), which is indexed by rank"
        )
    cluster: dict[str, list[str]] = json.loads(text).get("cluster", {})
    tasks = cluster.get(role, [])
    if not 0 <= index < len(tasks):
        known = ", ".join(f"{len(found)} {name}" for name, found in cluster.items())
        raise ArgumentError(f"address({role!r}, {index}): there is no such task; the tasks are {known}")
    return tasks[index]


def _own_address() -> str:
    """Return host:port that the agent reserves for this worker."""
    return SETTINGS.address
