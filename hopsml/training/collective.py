"""Collective operations of a run's workers on arrays: ``hopsml.all_reduce(x)`` and its like, for code without a framework.

The workers that train form one group when the first operation, or ``hopsml.tensorflow.strategy()``, needs it. All of them
call the same operations in the same order; one that calls another is told so, with the rank and the name.

In a run whose group may change, the loss of a worker other than the chief is no error: an operation waits until the others
have formed a new group, a fraction of a second, and is made again among them. A mean is then that of those that are left.
A newcomer prepares in a group of its own, until the others pause and let it in.
"""

from __future__ import annotations

import atexit
import socket
import threading
from typing import TYPE_CHECKING, Any, Literal

from hopsml import settings
from hopsml.cluster.worker import in_force, server_guard
from hopsml.cluster.worker.context import CollectiveSeat, WorkerContext, current
from hopsml.errors import ArgumentError, CollectiveChanged, CollectiveTimeout
from hopsml.training.elastic import mending
from hopsml.training.elastic.pause_point import PausePoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from hopsml.collective.group import Group

Reduction = Literal["sum", "mean", "min", "max"]
REDUCTIONS = ("sum", "mean", "min", "max")
_OF_NCCL = "NCCL's group does not go on with other members"
BACKLOG = 1024  # of the members that connect at once

_lock = threading.Lock()
_group: Group | None = None
_pause_point: PausePoint | None = None  # of a group that may change
_place = (0, 1)  # in the group, for the batch under way
_needs_all = ""  # why the group cannot go on without members that are lost; "" where it can
_aside = False  # whether this newcomer, who has been let in, has not come to the next batch of the others yet
_ordered_call: Callable[[Callable[[], Any]], Any] | None = None  # see ``keep_order``
_fixed = ""  # why no newcomer can come into it; "" where one can


def all_reduce(x: Any, reduction: Reduction = "mean", *, name: str = "") -> Any:
    """Reduce an array element by element over all workers that train; all of them get the same, to the last bit.

    Args:
        x: an array, or what numpy makes one of (a CPU tensor of torch or JAX, a number); the same shape and type on all.
            A tensor of torch's on a GPU stays there: NCCL reduces it, among workers that have a GPU each.
        reduction: "mean", "sum", "min" or "max"; a mean of whole numbers is rounded toward zero, and
            their sum must fit: that of uint8 and int32 may wrap around, as numpy's does, for "sum" alone.
        name: what it is to people, in messages when workers call different things.

    Returns a new array of ``x``'s shape and type, on a GPU a tensor there; outside a run, and with one worker, a copy.

    Raises:
        PeerLost: a worker has ended; CollectiveTimeout: one took no part in time; both name its rank.
        CollectiveMismatch: workers called different operations, or gave other shapes or types.
        ArgumentError: an unknown reduction, a type that cannot be reduced, a worker that does not train.
    """
    import numpy as np

    if reduction not in REDUCTIONS:
        raise ArgumentError(f"reduction={reduction!r}: it must be one of {', '.join(REDUCTIONS)}")
    if _on_gpu(x):
        return _on_gpus().all_reduce(_rigid_group(), x, reduction, name)
    joined = _group_of_calls()
    if joined is None:
        return np.array(x)
    return _in_order(lambda: joined.all_reduce(np.asarray(x), reduction, name=name))


def all_gather(x: Any, *, name: str = "") -> Any:
    """Collect every worker's array, of one shape and type: the result's first axis counts ranks.

    Arguments and errors as of ``all_reduce``.
    """
    import numpy as np

    if _on_gpu(x):
        return _on_gpus().all_gather(_rigid_group(), x, name)
    joined = _group_of_calls()
    return np.array(x)[None] if joined is None else _in_order(lambda: joined.all_gather(np.asarray(x), name=name))


def broadcast(x: Any, root: int = 0, *, name: str = "") -> Any:
    """The array of the worker of rank ``root``, on all of them; the others give one of the same shape and type.

    Errors as of ``all_reduce``; ArgumentError for a ``root`` that is no rank.
    """
    import numpy as np

    joined = _group_of_calls()
    size = 1 if joined is None else joined.size
    if not isinstance(root, int | np.integer) or not 0 <= root < size:
        raise ArgumentError(f"root={root!r}: there are {size} worker(s), so it must be from 0 to {size - 1}")
    if _on_gpu(x):
        return _on_gpus().broadcast(_rigid_group(), x, int(root), name)
    return np.array(x) if joined is None else _in_order(lambda: joined.broadcast(np.asarray(x), root, name=name))


def barrier(*, name: str = "") -> None:
    """Wait until all workers that train have called it. Errors as of ``all_reduce``."""
    joined = _group_of_calls()
    if joined is not None:
        _in_order(lambda: joined.barrier(name=name))


def keep_order(call: Callable[[Callable[[], Any]], Any]) -> None:
    """Run all further operations through ``call``, which orders them after those of another thread of this process."""
    global _ordered_call
    _ordered_call = call


def _in_order(operation: Callable[[], Any]) -> Any:
    return operation() if _ordered_call is None else _ordered_call(operation)


def group(timeout_s: float = 0.0) -> Group | None:
    """The group of the workers that train, formed by the first call; None for a worker alone and outside a run.

    ``timeout_s``: of the call that forms it, seconds that an operation may take, 0 for as long as all members live.

    Raises ArgumentError on a parameter server and an evaluator, CollectiveTimeout when a member does not appear,
    CollectiveUnavailable where the library is missing.
    """
    global _group, _pause_point, _place
    if _group is not None:  # also of a worker that is alone by now
        return _group
    context = current()
    if context is None or (context.collective is not None and context.world_size == 1):
        return None
    if context.collective is None:
        raise ArgumentError(f"this worker is the {context.role}, which does not train: it is in no collective")
    with _lock:
        if _group is None:
            formed = _form(context, context.collective, timeout_s)
            _place = context.rank, context.world_size
            _group = formed
            in_force.formed("hopsml", context.world_size)
            atexit.register(formed.end, "the worker's function has ended")
            if context.mends is not None:
                _pause_point = mending.watch(formed, context.mends, lambda changed: _reform(formed, changed), _fixed)
        return _group


def place() -> tuple[int, int]:
    """Rank of this worker, and number of those that train, for the batch that is about to begin.

    Where members were lost, all others change at the same batch: the first one that begins behind an operation that they
    have made without these.
    """
    global _place
    context = current()
    if _group is None or (context is not None and context.joins):
        return (context.rank, context.world_size) if context is not None else (0, 1)
    found, generation = None, -1
    while generation != _group.generation:  # else it has changed amid the questions
        generation = _group.generation
        found = (_group.rank, _group.size) if _group.made_in == generation else None
    _place = found or _place
    return _place


def prospect() -> tuple[int, int] | None:
    """Of a newcomer that prepares alone: rank and number of workers that it reckons with; None for any other worker."""
    context = current()
    return (context.rank, context.world_size) if context is not None and context.joins else None


def paused() -> int | None:
    """Whether this worker pauses here, between two batches: the generation in which it does; None where it goes on.

    All members pause between the same two, once any has been asked to; a newcomer the first time that it comes here.
    """
    context = current()
    if context is not None and context.joins:
        group()  # it is in one from here on, if only by itself
    if _group is None or _pause_point is None:
        return None
    generation = _group.generation  # before the question: a generation that follows clears what was agreed
    return generation if _group.pause_agreed or prospect() else None


def meet(generation: int, step: int) -> Group | None:
    """Wait, ``step`` batches done, for newcomers, who have paused in ``generation`` like this worker.

    Returns the group, which the chief's state is to be exchanged in; None where nobody has come after all.
    """
    context = current()
    assert context is not None and context.mends is not None and _pause_point is not None
    context.mends.announce("paused", generation, step, "")
    return _group if _pause_point.wait(generation) else None


def _form(context: WorkerContext, seat: CollectiveSeat, timeout_s: float) -> Group:
    from hopsml.collective.group import Group

    limit_s = context.spec.group.start_timeout_s
    seated = _seated(context, seat)
    if context.joins:
        seated |= {"rank": 0, "addresses": (seat.addresses[context.rank],), "hosts": None}
    else:
        seat.announce()
    try:
        return Group.form(
            **seated,
            form_timeout_s=limit_s,
            timeout_s=timeout_s,
            resumable=context.mends is not None,
            guest=context.joins,
            encryption=context.spec.communication.encryption,
        )
    except CollectiveTimeout as late:
        raise CollectiveTimeout(
            f"{late}; a worker's first operation waits start_timeout={limit_s:g} s for those of all others: make that "
            "longer, or call hopsml.barrier() on all before the work that takes one of them so long"
        ) from None


def step_aside() -> None:
    """As a newcomer who has been let in amid what others do: until ``step_in`` each call is made alone, as before."""
    global _aside
    _aside = True


def step_in() -> None:
    """As such a newcomer: the next call is that of the others."""
    global _aside
    _aside = False


def is_aside() -> bool:
    """Whether this worker makes its calls alone although it is in the group; see ``step_aside``."""
    return _aside


def is_alone() -> bool:
    """Whether this worker is a newcomer that has not come to a batch of the others yet."""
    return _aside or prospect() is not None


def _on_gpu(x: Any) -> bool:
    """Whether it is a tensor of torch's in a GPU's memory; arrays of JAX's numpy reads from there."""
    return getattr(x, "is_cuda", False) is True


def _rigid_group() -> Group | None:
    """The group, which NCCL's is formed of: it does not go on without a member, nor with a newcomer; all begin anew then."""
    keep_all(_OF_NCCL)
    joined = _group_of_calls()
    keep_out(_OF_NCCL)
    return joined


def _on_gpus() -> ModuleType:
    from hopsml.training.torch import gpu_collective

    return gpu_collective


def _group_of_calls() -> Group | None:
    return None if _aside else group()


def keep_all(reason: str) -> None:
    """From now on the group does not go on with other members than these, for this ``reason``: all begin anew."""
    global _needs_all
    context = current()
    if not _needs_all and context is not None and context.mends is not None:
        context.mends.announce("mendable", -1, -1, reason)
    _needs_all = reason


def keep_out(reason: str) -> None:
    """From now on no newcomer comes into the group while it trains, for this ``reason``: all begin anew for one."""
    global _fixed
    context = current()
    if _group is not None and not _fixed and context is not None and context.mends is not None:
        context.mends.announce("mendable", -1, -1, reason)
    _fixed = _fixed or reason


def _reform(formed: Group, context: WorkerContext) -> None:
    assert context.collective is not None
    if _needs_all:
        raise CollectiveChanged(_needs_all)
    formed.reform(**_seated(context, context.collective), form_timeout_s=mending.REFORM_S)


def _seated(context: WorkerContext, seat: CollectiveSeat) -> dict[str, Any]:
    return {
        "rank": context.rank,
        "addresses": seat.addresses,
        "hosts": tuple(address.rpartition(":")[0] for address in seat.addresses),
        "secret": seat.key,
        "generation": context.generation,
        "listener": _listener(seat.addresses[context.rank]),
    }


def listen_in_port_range(libraries: str, what: str) -> None:
    """Restrict the listening ports of another collective to ``HOPSML_PORT_RANGE``, if that is set.

    Args:
        libraries: prefix of the paths of its loaded libraries.
        what: its name, for the error.

    Raises ArgumentError if the range is set and the ports cannot be restricted to it.
    """
    if (allowed := settings.port_range()) is None:
        return
    if hindrance := server_guard.bind_within(libraries, *allowed):
        raise ArgumentError(
            f"{what} listens on ports that the kernel chooses, and cannot be restricted to "
            f"{settings.PORT_RANGE}={allowed[0]}-{allowed[1]}: {hindrance}; use hopsml's own collective "
            "(backend='hopsml'), or unset the variable and open net.ipv4.ip_local_port_range between the workers"
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
