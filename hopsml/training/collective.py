"""Collective operations of a run's workers on arrays: ``hopsml.all_reduce(x)`` and its like, for code without a framework.

The workers that train form one group when the first operation, or ``hopsml.tensorflow.strategy()``, needs it. All of them
call the same operations in the same order; one that calls another is told so, with the rank and the name.
"""

from __future__ import annotations

import atexit
import socket
import threading
from typing import TYPE_CHECKING, Any, Literal

from hopsml.cluster.worker import in_force
from hopsml.cluster.worker.context import CollectiveSeat, WorkerContext, current
from hopsml.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

    from hopsml.collective.group import Group

Reduction = Literal["sum", "mean", "min", "max"]
REDUCTIONS = ("sum", "mean", "min", "max")
BACKLOG = 1024  # of the members that connect at once

_lock = threading.Lock()
_group: Group | None = None


def all_reduce(x: Any, reduction: Reduction = "mean", *, name: str = "") -> np.ndarray[Any, Any]:
    """Reduce an array element by element over all workers that train; all of them get the same, to the last bit.

    Args:
        x: an array, or what numpy makes one of (a CPU tensor of torch or JAX, a number); the same shape and type on all.
        reduction: "mean", "sum", "min" or "max"; a mean of whole numbers is rounded toward zero.
        name: what it is to people, in messages when workers call different things.

    Returns a new array of ``x``'s shape and type; outside a run, and with one worker, a copy.

    Raises:
        PeerLost: a worker has ended; CollectiveTimeout: one took no part in time; both name its rank.
        CollectiveMismatch: workers called different operations, or gave other shapes or types.
        ArgumentError: an unknown reduction, a type that cannot be reduced, a worker that does not train.
    """
    import numpy as np

    if reduction not in REDUCTIONS:
        raise ArgumentError(f"reduction={reduction!r}: it must be one of {', '.join(REDUCTIONS)}")
    joined = group()
    return np.array(x) if joined is None else joined.all_reduce(np.asarray(x), reduction, name=name)


def all_gather(x: Any, *, name: str = "") -> np.ndarray[Any, Any]:
    """Collect every worker's array, of one shape and type: the result's first axis counts ranks.

    Arguments and errors as of ``all_reduce``.
    """
    import numpy as np

    joined = group()
    return np.array(x)[None] if joined is None else joined.all_gather(np.asarray(x), name=name)


def broadcast(x: Any, root: int = 0, *, name: str = "") -> np.ndarray[Any, Any]:
    """The array of the worker of rank ``root``, on all of them; the others give one of the same shape and type.

    Errors as of ``all_reduce``; ArgumentError for a ``root`` that is no rank.
    """
    import numpy as np

    joined = group()
    size = 1 if joined is None else joined.size
    if not 0 <= root < size:
        raise ArgumentError(f"root={root!r}: there are {size} worker(s), so it must be from 0 to {size - 1}")
    return np.array(x) if joined is None else joined.broadcast(np.asarray(x), root, name=name)


def barrier(*, name: str = "") -> None:
    """Wait until all workers that train have called it. Errors as of ``all_reduce``."""
    joined = group()
    if joined is not None:
        joined.barrier(name=name)


def group(timeout_s: float = 0.0) -> Group | None:
    """The group of the workers that train, formed by the first call; None for a worker alone and outside a run.

    ``timeout_s``: seconds that an operation may take, 0 for as long as all members live; of the call that forms it.

    Raises ArgumentError on a parameter server and an evaluator, CollectiveTimeout when a member does not appear,
    CollectiveUnavailable where the library is missing.
    """
    global _group
    context = current()
    if context is None or (context.collective is not None and context.world_size == 1):
        return None
    if context.collective is None:
        raise ArgumentError(f"this worker is the {context.role}, which does not train: it is in no collective")
    with _lock:
        if _group is None:
            _group = _form(context, context.collective, timeout_s)
            in_force.formed("hopsml", context.world_size)
            atexit.register(_group.end, "the worker's function has returned")
        return _group


def _form(context: WorkerContext, seat: CollectiveSeat, timeout_s: float) -> Group:
    from hopsml.collective.group import Group

    return Group.form(
        rank=context.rank,
        addresses=seat.addresses,
        hosts=tuple(address.rpartition(":")[0] for address in seat.addresses),
        secret=seat.key,
        generation=context.generation,
        listener=_listener(seat.addresses[context.rank]),
        form_timeout_s=context.spec.group.start_timeout_s,
        timeout_s=timeout_s,
    )


def _listener(address: str) -> int:
    """A descriptor that listens on the port that the agent holds for this worker; nobody else of another user can."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind((host, int(port)))
    listening.listen(BACKLOG)
    return listening.detach()
