"""Set-up of PyTorch in a worker before the user's function: threads, and the default process group of the run's backend.

The user's function stays unchanged: its own ``torch.distributed.init_process_group`` finds the group initialized, as
do Lightning, Accelerate and others that call ``is_initialized()``.
"""

from __future__ import annotations

import functools
import itertools
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hopsml.cluster.worker import collective_stats
from hopsml.cluster.worker.context import WorkerContext
from hopsml.collective import library
from hopsml.core.versions import TORCH, check_version, parse_version
from hopsml.errors import ArgumentError, CollectiveUnavailable
from hopsml.training import collective
from hopsml.training.torch import gpu_collective

LATER_S = 1800.0  # time limit of an operation of gloo or nccl; after the loss of a member the group ends it long before


def form_process_group(context: WorkerContext) -> str:
    """Form the default process group of this worker; return the name of the backend used.

    Raises:
        ArgumentError: this machine does not support the requested backend.
    """
    name, why = choose_backend(context)
    begin = _over_hopsml(context) if name == "hopsml" else _over(name, context)
    begin()
    if name == "hopsml":  # other groups do not count their operations
        _record_training()
    else:
        collective_stats.record_group(name, context.world_size)
    collective_stats.record_choice_reason(why)
    _accept_repetition(name, begin)
    return name


@functools.cache
def _record_training() -> None:
    """Let torch's optimizers record that they train, so that workers which train separately are found."""
    import torch.distributed as dist
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def before_step(*_: Any) -> None:
        if len(dist.distributed_c10d._world.pg_map) < 2:  # gradients may be averaged over another group
            collective_stats.record_trained("torch")

    register_optimizer_step_pre_hook(before_step)


def _over_hopsml(context: WorkerContext) -> Callable[[], None]:
    """Return a function that creates the default group with hopsml's collective, also after it was destroyed."""
    import torch.distributed as dist

    from hopsml.training.torch import backend

    backend.register_backend()
    original = dist.init_process_group
    limit = timedelta(seconds=context.spec.group.start_timeout_s)
    store, times = _late_store(lambda: _store(context, limit)), itertools.count()

    def begin() -> None:
        own = dist.PrefixStore(f"group {next(times)}", store)
        original("hopsml", store=own, rank=context.rank, world_size=context.world_size)

    return begin


def _over(name: str, context: WorkerContext) -> Callable[[], None]:
    """Return a function that creates the default group with gloo or nccl, also again after it was destroyed.

    All groups share one store, because its port is the only one that is reserved.
    """
    import torch
    import torch.distributed as dist

    collective.restrict_listening_ports(os.path.dirname(torch.__file__) + os.sep, "gloo")
    assert context.collective is not None
    context.collective.announce()  # the function starts only after all workers have arrived
    gpu_collective.set_network_interface("GLOO_SOCKET_IFNAME")
    gpu_collective.set_network_interface("NCCL_SOCKET_IFNAME", "=")
    if name == "nccl":
        gpu_collective.require_nccl_files()
    limit = timedelta(seconds=context.spec.group.start_timeout_s)
    store, times, original = _store(context, limit), itertools.count(), dist.init_process_group

    def begin() -> None:
        own = dist.PrefixStore(f"group {next(times)}", store)
        original(name, store=own, timeout=limit, rank=context.rank, world_size=context.world_size)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=LATER_S), dist.group.WORLD)

    return begin


def choose_backend(context: WorkerContext) -> tuple[str, str]:
    """Return the backend of the process group, and the reason for it ("" if the run names the backend)."""
    import torch

    asked = context.spec.communication.backend
    if asked == "nccl" and not torch.cuda.is_available():
        raise ArgumentError(
            "backend='nccl': this worker has no GPU that torch can use; choose 'hopsml' or 'gloo', or leave backend out"
        )
    if asked != "auto":
        return asked, ""
    if context.spec.communication.encryption:
        return "hopsml", "it encrypts"
    if context.gpu_indices and torch.cuda.is_available():
        return "nccl", "its workers have GPUs"
    try:
        library.load()
    except CollectiveUnavailable as error:
        return "gloo", str(error)
    return "hopsml", "its workers train on CPUs"


def _store(context: WorkerContext, limit: timedelta) -> Any:
    """Return the store through which members exchange addresses: on rank 0's host, on the chosen interface only."""
    import torch
    import torch.distributed as dist

    host, _, port = context.leader.rpartition(":")
    host = host.strip("[]")
    # Up to 2.6 torch's new implementation of the store refuses a socket that already listens; 2.8 accepts it.
    kind: dict[str, Any] = {"use_libuv": False} if parse_version(torch.__version__) < (2, 8) else {}
    if context.rank:
        return dist.TCPStore(host, int(port), context.world_size, False, limit, **kind)
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):  # the agent holds the port until then
        listening.setsockopt(socket.SOL_SOCKET, option, 1)
    listening.bind((host, int(port)))
    listening.listen(collective.BACKLOG)
    return dist.TCPStore(
        host,
        int(port),
        context.world_size,
        True,
        limit,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
        **kind,
    )


def _late_store(make: Callable[[], Any]) -> Any:
    """Return a store that is created at its first use, by a further group with another backend than hopsml's.

    No port is open until then; afterwards rank 0 listens, as it does if that backend is the run's.
    """
    import torch.distributed as dist

    made: list[Any] = []

    def of_all() -> Any:
        if not made:
            made.append(make())
        return made[0]

    class LateStore(dist.Store):
        """Proxy that creates the store at its first call, and forwards all calls to it."""

    for name in (
        "set", "get", "add", "compare_set", "delete_key", "check", "num_keys", "wait", "append", "multi_get", "multi_set",
        "has_extended_api", "set_timeout",
    ):  # fmt: skip
        setattr(LateStore, name, lambda self, *given, name=name: getattr(of_all(), name)(*given))
    return LateStore()


def _accept_repetition(formed: str, begin: Callable[[], None]) -> None:
    """Let the function's own ``init_process_group`` find the group; one of another backend replaces it.

    After ``destroy_process_group`` the group is created here again: MASTER_PORT is reserved, so torch could not bind
    it.
    """
    import torch.distributed as dist

    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(
        backend: str | None = None, init_method: str | None = None, *positional: Any, **named: Any
    ) -> None:
        usual = backend in (None, formed, "cpu:gloo,cuda:nccl", "gloo", "nccl")
        if dist.is_initialized() and usual:
            return  # a program for torchrun asks for one of these, and any backend of this machine satisfies it
        if dist.is_initialized():
            dist.destroy_process_group()
        elif usual and init_method in (None, "env://") and named.get("store") is None:
            return begin()
        original(backend, init_method, *positional, **named)

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group


def prepare(context: WorkerContext) -> None:
    """Set the number of torch threads, and form the process group.

    The number is that of ``OMP_NUM_THREADS``; without it, a worker with a GPU uses its share of the host's cores.
    """
    import torch

    check_version(TORCH, torch.__version__)
    # The variable is read at torch's import, which the fork server has made with one thread.
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads):
        torch.set_num_threads(int(threads))
    # No cores are reserved for a worker with a GPU.
    elif not threads and context.gpu_indices and context.collective is not None:
        neighbours = int(os.environ["LOCAL_WORLD_SIZE"])
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // neighbours))
    if context.collective is not None:
        form_process_group(context)
