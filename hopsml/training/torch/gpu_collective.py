"""Collective operations on torch tensors in GPU memory (``hopsml.all_reduce(x)`` and others) by NCCL.

Each worker has its own GPU, which holds its tensors. ``group`` is that of the training workers; None for a single
worker. NCCL and gloo listen on the network interface of the worker's address and on no other.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

from hopsml.cluster.worker.collective_stats import NCCL_FILES
from hopsml.cluster.worker.context import current
from hopsml.collective.group import Group
from hopsml.collective.nccl import GpuGroup, GpuMemory
from hopsml.errors import ArgumentError

if TYPE_CHECKING:
    import torch

_lock = threading.Lock()
_formed: tuple[Group, GpuGroup] | None = None


def set_network_interface(variable: str, exactly: str = "") -> None:
    """Set an environment variable to the name of the interface that has this worker's address.

    Nothing happens if the user has set the variable, or if this process is not a training worker.

    Args:
        variable: name of the environment variable.
        exactly: prefix of the value, such as "=" for an exact match.
    """
    import psutil

    context = current()
    if context is None or context.collective is None or variable in os.environ:
        return
    host = context.collective.addresses[context.rank].rpartition(":")[0].strip("[]")
    try:
        own = {found[4][0] for found in socket.getaddrinfo(host, None)}
    except OSError:
        return
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address.partition("%")[0] in own for address in addresses):
            os.environ[variable] = exactly + name
            return


def all_reduce(group: Group | None, tensor: torch.Tensor, reduction: str, name: str) -> torch.Tensor:
    """Return the reduction of a tensor over all workers, computed in GPU memory, as a new tensor.

    ``group`` is None if there is no other worker: the result is a copy. A mean of integers is rounded toward zero here, too.
    """
    import torch

    on_gpus = _on_gpus(group, tensor)
    if group is None or on_gpus is None:
        return tensor.detach().clone()
    if reduction == "mean" and not tensor.is_floating_point() and not tensor.is_complex():
        total = all_reduce(group, tensor.to(torch.int64), "sum", name)
        return torch.div(total, group.size, rounding_mode="trunc").to(tensor.dtype)
    source = tensor.detach().contiguous()
    result = torch.empty_like(source)
    with torch.cuda.device(tensor.device):
        on_gpus.all_reduce(_memory(source), _memory(result), reduction, name=name)
    return result


def all_gather(group: Group | None, tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Collect the tensors of all workers in GPU memory, as ``collective.all_gather`` does for arrays."""
    import torch

    on_gpus = _on_gpus(group, tensor)
    if group is None or on_gpus is None:
        return tensor.detach().clone()[None]
    source = tensor.detach().contiguous()
    result = source.new_empty((group.size, *source.shape))
    with torch.cuda.device(tensor.device):
        on_gpus.all_gather(_memory(source), _memory(result), name=name)
    return result


def broadcast(group: Group | None, tensor: torch.Tensor, root: int, name: str) -> torch.Tensor:
    """Return the tensor of rank ``root`` on all workers in GPU memory, as ``collective.broadcast`` does."""
    import torch

    on_gpus = _on_gpus(group, tensor)
    if group is None or on_gpus is None:
        return tensor.detach().clone()
    source = tensor.detach().contiguous()
    result = torch.empty_like(source)
    with torch.cuda.device(tensor.device):
        on_gpus.broadcast(_memory(source), _memory(result), root, name=name)
    return result


def _on_gpus(group: Group | None, tensor: torch.Tensor) -> GpuGroup | None:
    """Return NCCL's group of the same members, formed by the first operation; None if there are no others."""
    import torch

    global _formed
    if group is None:
        return None
    with _lock:
        if _formed is None or _formed[0] is not group:
            set_network_interface("NCCL_SOCKET_IFNAME", "=")
            require_nccl_files()
            with torch.cuda.device(tensor.device):
                _formed = group, GpuGroup(group)
        return _formed[1]


def require_nccl_files() -> None:
    """Raise ArgumentError if a variable of NCCL names a file that this host does not have, which NCCL would ignore."""
    for name in NCCL_FILES:
        path = os.environ.get(name, "")
        if path and not os.path.isfile(path):
            raise ArgumentError(
                f"{name}={path}: {socket.gethostname()} has no such file, and NCCL would choose its rings without it; put "
                "it there on every host, or unset the variable"
            )


def _memory(tensor: torch.Tensor) -> GpuMemory:
    """Describe a tensor's memory and stream for NCCL."""
    import torch

    stream = torch.cuda.current_stream(tensor.device)
    kind = str(tensor.dtype).removeprefix("torch.")
    return GpuMemory(tensor.data_ptr(), tuple(tensor.shape), kind, stream.cuda_stream, stream.query)
