"""Collective operations on arrays among a run's workers: ``hopsml.all_reduce(x)`` and others, without a framework.

The training workers form one group when the first operation, or ``hopsml.tensorflow.strategy()``, needs it. All of
them must call the same operations in the same order; a worker that calls a different one gets an error that names the
rank and the operation.

In a run whose group may change, the loss of a worker other than the chief is no error: an operation waits a fraction
of a second until the others have formed a new group, and is repeated among them. A mean is then that of the remaining
workers. A joining worker prepares in a separate group until the others pause and admit it.
"""

from __future__ import annotations

import atexit
import socket
import threading
from typing import TYPE_CHECKING, Any, Literal

from hopsml.cluster.shared.worker_events import WorkerPaused, WorkerReconfigurable
from hopsml.cluster.worker import collective_stats, server_guard
from hopsml.cluster.worker.context import CollectiveSeat, WorkerContext, current
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, CollectiveChanged, CollectiveTimeout
from hopsml.training.elastic import reconfiguration
from hopsml.training.elastic.reconfiguration import PausePoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from hopsml.collective.group import Group

Reduction = Literal["sum", "mean", "min", "max"]
REDUCTIONS = ("sum", "mean", "min", "max")
_OF_NCCL = "a group of NCCL cannot continue with other members"
BACKLOG = 1024  # pending connections; members connect all at once

_lock = threading.Lock()
_group: Group | None = None
_pause_point: PausePoint | None = None  # only in a group that may change
_place = (0, 1)  # rank and size for the present batch
_needs_all = ""  # why the group cannot continue without failed members; "" if it can
_aside = False  # True for a joining worker that has been admitted, but has not reached the next batch of the others yet
_ordered_call: Callable[[Callable[[], Any]], Any] | None = None  # set by ``set_operation_runner``
_fixed = ""  # why no worker can join; "" if one can
_settle_withheld: Callable[[], None] | None = None  # set by ``set_withheld_values``
_drop_withheld: Callable[[], None] | None = None


def all_reduce(x: Any, reduction: Reduction = "mean", *, name: str = "") -> Any:
    """Reduce an array element by element over all training workers; all get the same result, bit for bit.

    Args:
        x: an array, or anything numpy converts to one (a CPU tensor of torch or JAX, a number); the same shape and
            type on all workers. A torch tensor on a GPU stays there: NCCL reduces it, among workers that have a GPU
            each.
        reduction: "mean", "sum", "min" or "max". A mean of integers is rounded toward zero, and their sum must fit
            the type: for uint8 and int32, "sum" alone may wrap around, as numpy's does.
        name: label of the operation in error messages about workers that call different operations.

    Returns:
        A new array of ``x``'s shape and type; for a tensor on a GPU a tensor there. Outside a run, and with one
        worker, a copy.

    Raises:
        PeerLost: a worker has exited; the error names its rank.
        CollectiveTimeout: a worker took no part in time; the error names its rank.
        CollectiveMismatch: workers called different operations, or passed different shapes or types.
        ArgumentError: an unknown reduction, a type that cannot be reduced, or a worker that does not train.
    """
    import numpy as np

    if reduction not in REDUCTIONS:
        raise ArgumentError(f"reduction={reduction!r}: it must be one of {', '.join(REDUCTIONS)}")
    collective_stats.record_exchange()
    if _on_gpu(x):
        return _on_gpus().all_reduce(_rigid_group(), x, reduction, name)
    joined = _group_of_calls()
    if joined is None:
        return np.array(x)
    return _in_order(lambda: joined.all_reduce(np.asarray(x), reduction, name=name))


def all_gather(x: Any, *, name: str = "") -> Any:
    """Collect the arrays of all workers into one; its first axis is the rank.

    Raises the errors of ``all_reduce``.

    Args:
        x: an array, as for ``all_reduce``; the same shape and type on all workers.
        name: label of the operation in error messages.
    """
    import numpy as np

    if _on_gpu(x):
        return _on_gpus().all_gather(_rigid_group(), x, name)
    joined = _group_of_calls()
    return np.array(x)[None] if joined is None else _in_order(lambda: joined.all_gather(np.asarray(x), name=name))


def broadcast(x: Any, root: int = 0, *, name: str = "") -> Any:
    """Return the array of the worker of rank ``root`` on all workers.

    Raises the errors of ``all_reduce``, and ArgumentError if ``root`` is not a rank.

    Args:
        x: the array to send; on the other workers, one of the same shape and type.
        root: rank whose array is sent.
        name: label of the operation in error messages.
    """
    import numpy as np

    joined = _group_of_calls()
    size = 1 if joined is None else joined.size
    if not isinstance(root, int | np.integer) or not 0 <= root < size:
        raise ArgumentError(f"root={root!r}: the run has {size} worker(s), so the rank must be from 0 to {size - 1}")
    if _on_gpu(x):
        return _on_gpus().broadcast(_rigid_group(), x, int(root), name)
    return np.array(x) if joined is None else _in_order(lambda: joined.broadcast(np.asarray(x), root, name=name))


def barrier(*, name: str = "") -> None:
    """Wait until all training workers have called it.

    Raises the errors of ``all_reduce``.

    Args:
        name: label of the operation in error messages.
    """
    joined = _group_of_calls()
    if joined is not None:
        _in_order(lambda: joined.barrier(name=name))


def set_operation_runner(call: Callable[[Callable[[], Any]], Any]) -> None:
    """Run all further operations through ``call``, which orders them after another thread's operations."""
    global _ordered_call
    _ordered_call = call


def set_withheld_values(settle: Callable[[], None], drop: Callable[[], None]) -> None:
    """Register what a framework retains of one batch for the next.

    Args:
        settle: waits until none of its operations is in progress; called between two batches.
        drop: drops it on all members, because a joining worker has none of it.
    """
    global _settle_withheld, _drop_withheld
    _settle_withheld, _drop_withheld = settle, drop


def _in_order(operation: Callable[[], Any]) -> Any:
    """Run an operation through the function set by ``set_operation_runner``, if any."""
    return operation() if _ordered_call is None else _ordered_call(operation)


def group(timeout_s: float = 0.0) -> Group | None:
    """Return the group of the training workers, formed by the first call; None if alone and outside a run.

    Args:
        timeout_s: seconds that an operation of the group may take; 0 means no limit while all members live. Only the
            call that forms the group sets it.

    Raises:
        ArgumentError: called on a parameter server or an evaluator.
        CollectiveTimeout: a member does not connect.
        CollectiveUnavailable: the native library is missing.
    """
    global _group, _pause_point, _place
    if _group is not None:  # also if this worker is the only one left
        return _group
    context = current()
    if context is None or (context.collective is not None and context.world_size == 1):
        return None
    if context.collective is None:
        raise ArgumentError(
            f"this worker is the {context.role}, which does not train and takes part in no "
            "collective operation; call it on training workers only"
        )
    with _lock:
        if _group is None:
            formed = _form(context, context.collective, timeout_s)
            _place = context.rank, context.world_size
            _group = formed
            collective_stats.record_group("hopsml", context.world_size)
            atexit.register(formed.end, "the training function has ended")
            if context.mends is not None:
                _pause_point = reconfiguration.start_reconfiguration_thread(
                    formed, context.mends, lambda changed: _reform(formed, changed), _fixed
                )
        return _group


def rank_and_size() -> tuple[int, int]:
    """Return this worker's rank and the number of training workers, for the batch that is about to begin.

    After a loss of members, the values change on all remaining workers at the same batch: the first one that begins
    after an operation completed without the failed members.
    """
    global _place
    context = current()
    if _group is None or (context is not None and context.joins):
        return (context.rank, context.world_size) if context is not None else (0, 1)
    found, generation = None, -1
    while generation != _group.generation:  # the generation changed between the reads
        generation = _group.generation
        found = (_group.rank, _group.size) if _group.last_call_generation == generation else None
    _place = found or _place
    return _place


def expected_rank_and_size() -> tuple[int, int] | None:
    """Return the expected rank and group size of a joining worker that still prepares alone; None otherwise."""
    context = current()
    return (context.rank, context.world_size) if context is not None and context.joins else None


def pause_generation() -> int | None:
    """Return the generation in which this worker must pause at this batch boundary, or None to continue.

    All members pause at the same batch boundary, once any has been asked to; a joining worker pauses the first time
    that it calls this.
    """
    context = current()
    if context is not None and context.joins:
        group()  # from here on it has a group, if only of itself
    if _group is None or _pause_point is None:
        return None
    if _settle_withheld is not None:  # members must see ``pause_agreed`` alike
        _settle_withheld()
    generation = _group.generation  # read before ``pause_agreed``, which the next generation clears
    return generation if _group.pause_agreed or expected_rank_and_size() else None


def wait_for_joining_workers(generation: int, step: int) -> Group | None:
    """Wait at a pause for joining workers to enter the group.

    Args:
        generation: generation in which this worker has paused.
        step: number of batches done.

    Returns:
        The group in which the chief's state must be sent to the joining workers; None if none has joined after all.
    """
    context = current()
    assert context is not None and context.mends is not None and _pause_point is not None
    context.mends.announce(WorkerPaused(generation, step))
    if not _pause_point.wait_for_later_generation(generation):
        return None
    if _drop_withheld is not None:
        _drop_withheld()
    return _group


def _form(context: WorkerContext, seat: CollectiveSeat, timeout_s: float) -> Group:
    """Connect the group, or a group of one for a joining worker; raise CollectiveTimeout with a remedy."""
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
            algorithm="ring" if context.spec.ring_order else "auto",
        )
    except CollectiveTimeout as late:
        raise CollectiveTimeout(
            f"{late}; the first operation of a worker waits at most start_timeout={limit_s:g} s for the others; set "
            "a longer one, or call hopsml.barrier() on all workers before the step that takes one of them so long"
        ) from None


def begin_separate_calls() -> None:
    """Let a joining worker make its calls alone until ``end_separate_calls``.

    It was admitted to the group during a batch of the others.
    """
    global _aside
    _aside = True


def end_separate_calls() -> None:
    """End ``begin_separate_calls``: the next call of the joining worker is a call of the whole group."""
    global _aside
    _aside = False


def makes_separate_calls() -> bool:
    """Return True if this worker makes its calls alone although it is in the group; see ``begin_separate_calls``."""
    return _aside


def is_catching_up() -> bool:
    """Return True on a joining worker that has not reached the others' present batch yet."""
    return _aside or expected_rank_and_size() is not None


def _on_gpu(x: Any) -> bool:
    """Return True for a torch tensor in GPU memory; numpy reads arrays of JAX from there."""
    return getattr(x, "is_cuda", False) is True


def _rigid_group() -> Group | None:
    """Return the group that NCCL's group is based on; any change of members then restarts all workers."""
    require_all_members(_OF_NCCL)
    joined = _group_of_calls()
    forbid_joining(_OF_NCCL)
    return joined


def _on_gpus() -> ModuleType:
    """Import the operations on GPU tensors."""
    from hopsml.training.torch import gpu_collective

    return gpu_collective


def _group_of_calls() -> Group | None:
    """Return the group for an operation; None while this worker makes its calls alone."""
    return None if _aside else group()


def require_all_members(reason: str) -> None:
    """Declare that the group cannot continue without its present members: the loss of one restarts all workers.

    Args:
        reason: reported to the driver, and the message of the error raised when members change.
    """
    global _needs_all
    context = current()
    if not _needs_all and context is not None and context.mends is not None:
        context.mends.announce(WorkerReconfigurable(reason))
    _needs_all = reason


def forbid_joining(reason: str) -> None:
    """Declare that no worker can join the group while it trains: admitting one restarts all workers.

    Args:
        reason: reported to the driver; the first one counts.
    """
    global _fixed
    context = current()
    if _group is not None and not _fixed and context is not None and context.mends is not None:
        context.mends.announce(WorkerReconfigurable(reason))
    _fixed = _fixed or reason


def _reform(formed: Group, context: WorkerContext) -> None:
    """Connect the group again with the members of a new generation."""
    assert context.collective is not None
    if _needs_all:
        raise CollectiveChanged(_needs_all)
    formed.reform(**_seated(context, context.collective), form_timeout_s=reconfiguration.REFORM_S)


def _seated(context: WorkerContext, seat: CollectiveSeat) -> dict[str, Any]:
    """Return the arguments of ``Group.form`` that depend on the worker's place."""
    return {
        "rank": context.rank,
        "addresses": seat.addresses,
        "hosts": tuple(address.rpartition(":")[0] for address in seat.addresses),
        "secret": seat.key,
        "generation": context.generation,
        "listener": _listener(seat.addresses[context.rank]),
    }


def restrict_listening_ports(libraries: str, what: str) -> None:
    """Restrict the listening ports of another collective library to ``HOPSML_PORT_RANGE``, if that is set.

    Args:
        libraries: path prefix of the shared libraries that it has loaded.
        what: its name, for the error message.

    Raises:
        ArgumentError: the range is set and the ports cannot be restricted to it.
    """
    if (allowed := SETTINGS.port_range) is None:
        return
    if hindrance := server_guard.restrict_ports(libraries, *allowed):
        raise ArgumentError(
            f"{what} listens on ports that the kernel chooses, and cannot be restricted to "
            f"{Settings.port_range.name}={allowed[0]}-{allowed[1]}: {hindrance}; use hopsml's own collective "
            "(backend='hopsml'), or unset the variable and open net.ipv4.ip_local_port_range between the workers"
        )


def _listener(address: str) -> int:
    """Return a listening socket on the port that the agent reserves; no other user can bind that port."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind((host, int(port)))
    listening.listen(BACKLOG)
    return listening.detach()
