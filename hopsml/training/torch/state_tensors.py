"""Separation of state dictionaries into tensors, which become arrays of a commit, and a pickled rest.

Tensors are copied once and written in the background. Of a tensor that is divided between workers (``fully_shard``)
the whole is stored, so that any number of workers can continue from it. Views of CPU tensors as numpy arrays share their
memory, for the duration of one operation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from hopsml.training.elastic.commits import dtype_of

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from hopsml.collective.group import Group


@contextmanager
def array_of(tensor: torch.Tensor) -> Iterator[np.ndarray[Any, Any]]:
    """Yield an array of the tensor's values, in its shape; values written to it are in the tensor afterwards.

    A tensor that is not contiguous, or on another device, is copied before and after. bfloat16 becomes the type of
    ml_dtypes; types that cannot be summed (bool, int8, int16) are sent as a wider one.
    """
    import torch

    found = tensor.detach()
    own = found.is_contiguous() and found.device.type == "cpu"
    narrow = found.dtype in (torch.bool, torch.int8, torch.int16)
    held = found if own and not narrow else found.to("cpu", torch.int32 if narrow else found.dtype).contiguous()
    yield _numpy(held)
    if held is not found:
        found.copy_(held)


@contextmanager
def as_bytes(tensor: torch.Tensor) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the tensor's memory as a one-dimensional array of bytes, for data of any type that is only moved.

    Values written to it are in the tensor afterwards, as for ``array_of``.
    """
    found = tensor.detach()
    held = found.to("cpu").contiguous()
    yield _bytes(held)
    if held is not found:
        found.copy_(held)


def gather_tensors(group: Group, tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Gather the tensors of all members, of the same shape and type, along a new first axis."""
    import torch

    with as_bytes(tensor) as array:
        rows = group.all_gather(array, name=name)
    return torch.from_numpy(rows).view(tensor.dtype).reshape(len(rows), *tensor.shape)


def sparse_sum(group: Group, tensor: torch.Tensor, counts: Sequence[int], name: str) -> tuple[int, torch.Tensor]:
    """Sum all members' sparse tensors; return the number of members and the sum.

    Args:
        group: the members.
        tensor: this member's tensor, coalesced.
        counts: number of entries of each member, in rank order; the sum is undefined if the members have changed
            since.
        name: name of the operation, for errors if members disagree.
    """
    import torch

    most, own = max(counts, default=0), tensor._nnz()
    places = torch.zeros((most, tensor.sparse_dim()), dtype=torch.int64)
    values = torch.zeros((most, *tensor.shape[tensor.sparse_dim() :]), dtype=tensor.dtype)
    places[:own], values[:own] = tensor.indices().t(), tensor.values()
    all_places, all_values = gather_tensors(group, places, f"{name}: places"), gather_tensors(group, values, name)
    of_each = list(zip(counts, all_places, all_values, strict=False))
    total = torch.sparse_coo_tensor(
        torch.cat([one[:count] for count, one, _ in of_each]).t(),
        torch.cat([one[:count] for count, _, one in of_each]),
        tensor.shape,
        check_invariants=False,
    )
    return min(len(all_places), len(all_values)), total.coalesce().to(tensor.device)


class _Memory:
    """Memory of a contiguous CPU tensor, as a numpy array interface.

    ``Tensor.numpy()`` would make the memory impossible to resize, which FullyShardedDataParallel does.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor  # must live as long as an array uses its memory
        size = tensor.numel() * tensor.element_size()
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": (size,),
            "typestr": "|u1",
            "version": 3,
        }


def _bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a contiguous CPU tensor's memory as an array of bytes."""
    import numpy as np

    return np.asarray(_Memory(tensor)) if tensor.numel() else np.empty(0, np.uint8)


@cache
def _type_of(dtype: torch.dtype) -> np.dtype[Any]:
    """Return numpy's type that corresponds to a type of torch."""
    import torch

    found: np.dtype[Any]
    if dtype is torch.bfloat16:
        found = dtype_of("bfloat16")
        return found
    found = torch.empty(0, dtype=dtype).numpy().dtype
    return found


def _numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a contiguous CPU tensor as an array of the same shape and type."""
    return _bytes(tensor).view(_type_of(tensor.dtype)).reshape(tuple(tensor.shape))


PREFIX = "torch:"  # prefix of the keys of arrays
_WRAPPED = "module."  # prefix of the names of a DistributedDataParallel


@dataclass(frozen=True)
class TensorOf:
    """Placeholder in a state for a tensor that is stored as an array of the commit."""

    key: str
    dtype: str  # torch's name, such as "float32"
    shape: tuple[int, ...]


def have_divided_parameters(values: Iterable[Any]) -> bool:
    """Return True if parameters of any of these modules or optimizers are divided between workers."""
    from torch.distributed.tensor import DTensor

    return any(isinstance(one, DTensor) for value in values for one in _parameters(value))


def any_worker_due(due: bool) -> bool:
    """Return True if a commit is ``due`` on any worker: gathering divided tensors is a collective operation."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        return due
    asked = torch.tensor(int(due), device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(asked, dist.ReduceOp.MAX)
    return bool(asked)


def state_of(value: Any) -> Any:
    """Return an object's state dictionary; a module's has the names without its wrappers."""
    import torch

    state = value.state_dict()
    if not isinstance(value, torch.nn.Module):
        return state
    bare = _bare_names(value, state)
    return {bare[name]: one for name, one in state.items()}


def rename_state_keys(module: torch.nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Rename a module's state to its present names, whichever wrappers it had when the state was saved."""
    own = module.state_dict(keep_vars=True)
    there = {bare: name for name, bare in _bare_names(module, own).items()}
    # Saved by an earlier release, or with a third party's wrapper.
    if not any(name in there or name in own for name in state):
        if all(name.startswith(_WRAPPED) for name in state):
            state = {name.removeprefix(_WRAPPED): one for name, one in state.items()}
        elif all(name.startswith(_WRAPPED) for name in own):
            state = {f"{_WRAPPED}{name}": one for name, one in state.items()}
    return {name if name in own else there.get(name, name): one for name, one in state.items()}


def _bare_names(module: torch.nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Return each of these names without its wrappers' prefixes, which depend on the number of workers."""
    import torch
    from torch._dynamo.eval_frame import OptimizedModule

    kinds = {torch.nn.parallel.DistributedDataParallel: _WRAPPED, OptimizedModule: "_orig_mod."}
    prefixes = [
        (f"{path}." if path else "", part)
        for path, one in module.named_modules()
        for kind, part in kinds.items()
        if isinstance(one, kind)
    ]

    def bare(name: str) -> str:
        for path, part in reversed(prefixes):  # the innermost first
            if name.startswith(path + part):
                name = path + name.removeprefix(path + part)
        return name

    return {name: bare(name) for name in names}


def load_state(value: Any, state: Any) -> None:
    """Load a state into ``value`` and divide its tensors as ``value``'s own are; each worker passes whole tensors."""
    import torch

    if isinstance(value, torch.nn.Module):
        own = value.state_dict(keep_vars=True)
        state = rename_state_keys(value, state)
        state = {name: _as(own[name], one) if name in own else one for name, one in state.items()}
    elif isinstance(value, torch.optim.Optimizer):
        numbered = dict(enumerate(_parameters(value)))  # numbered as in an optimizer's state dictionary
        of_each = {
            number: {name: _as(numbered[number], one) for name, one in of_one.items()}
            for number, of_one in state["state"].items()
        }
        state = {**state, "state": of_each}
    value.load_state_dict(state)


def _as(own: Any, given: Any) -> Any:
    """Return the tensor ``given`` divided as ``own`` is; unchanged if the shapes differ, as for step counters."""
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(own, DTensor) or not isinstance(given, torch.Tensor) or given.shape != own.shape:
        return given
    return distribute_tensor(given.to(own.device), own.device_mesh, own.placements, src_data_rank=None)


def _parameters(value: Any) -> list[Any]:
    """Return the parameters of a module or optimizer; none for other objects."""
    import torch

    if isinstance(value, torch.nn.Module):
        return list(value.parameters())
    if isinstance(value, torch.optim.Optimizer):
        return [one for group in value.param_groups for one in group["params"]]
    return []


def split_tensors(name: str, state: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return the state with a ``TensorOf`` for each tensor, and copies of the tensors as byte arrays by key.

    Args:
        name: prefix of the keys, the name of the value in its State.
        state: a state dictionary.
    """
    arrays: dict[str, NDArray[Any]] = {}

    def take(path: str, value: Any) -> Any:
        import torch

        if isinstance(value, torch.Tensor) and not value.is_sparse:
            key = f"{PREFIX}{path}"
            arrays[key] = _bytes_of(value)
            return TensorOf(key, str(value.dtype).removeprefix("torch."), tuple(value.shape))
        if type(value) in (list, tuple):
            return type(value)(take(f"{path}/{index}", one) for index, one in enumerate(value))
        if isinstance(value, dict):  # also an OrderedDict of modules, whose metadata is not needed to load it
            return {key: take(f"{path}/{key}", one) for key, one in value.items()}
        return value

    return take(name, state), arrays


def join_tensors(state: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return a state from ``split_tensors`` with its tensors, which have their own memory."""
    if isinstance(state, TensorOf):
        return _tensor_of(state, arrays[state.key])
    if type(state) in (list, tuple):
        return type(state)(join_tensors(one, arrays) for one in state)
    if isinstance(state, dict):
        return {key: join_tensors(one, arrays) for key, one in state.items()}
    return state


def _bytes_of(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a copy of a whole tensor as a one-dimensional array of bytes."""
    import torch
    from torch.distributed.tensor import DTensor

    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    held = tensor.detach().to("cpu", copy=True).contiguous().reshape(-1)
    found: NDArray[Any] = held.view(torch.uint8).numpy()
    return found


def _tensor_of(described: TensorOf, array: NDArray[Any]) -> torch.Tensor:
    """Return the tensor that a placeholder describes, with a copy of the array's data."""
    import torch

    dtype: torch.dtype = getattr(torch, described.dtype)
    if not array.size:
        return torch.empty(described.shape, dtype=dtype)
    return torch.from_numpy(array.copy()).view(dtype).reshape(described.shape)


def has_state_dict(value: Any) -> bool:
    """Return True if a value has ``state_dict`` and ``load_state_dict``."""
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def split_object_state(name: str, value: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Split an object's state dictionary into the part without tensors, and its tensors as arrays."""
    return split_tensors(name, state_of(value)) if "torch" in sys.modules else (value.state_dict(), {})


def load_split_state(value: Any, state: Any, tensors: dict[str, NDArray[Any]]) -> None:
    """Load the two parts of a state dictionary that ``split_object_state`` has returned into an object."""
    whole = join_tensors(state, tensors) if tensors else state
    if "torch" in sys.modules:
        load_state(value, whole)
    else:
        value.load_state_dict(whole)
