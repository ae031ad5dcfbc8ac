"""Tensors of state dictionaries as a commit's arrays: copied once, and written beside the training.

What a module, an optimizer or a scaler gives as its state is taken apart into its tensors and the rest, which is pickled.
Of a tensor that is divided between workers (``fully_shard``) the whole is kept, so that any number of them can go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

PREFIX = "torch:"  # of the keys of arrays
_WRAPPED = "module."  # before the names of a DistributedDataParallel


@dataclass(frozen=True)
class TensorOf:
    """Stands in a state for a tensor that is an array of the commit."""

    key: str
    dtype: str  # "float32", as torch names it
    shape: tuple[int, ...]


def are_divided(values: Iterable[Any]) -> bool:
    """Whether parameters of any of these modules or optimizers are divided between workers."""
    from torch.distributed.tensor import DTensor

    return any(isinstance(one, DTensor) for value in values for one in _parameters(value))


def agreed(due: bool) -> bool:
    """Whether it is ``due`` on any worker: to put together what is divided is a collective operation."""
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


def renamed(module: torch.nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Rename a module's state to its present names, whichever wrappers it had when the state was saved."""
    own = module.state_dict(keep_vars=True)
    there = {bare: name for name, bare in _bare_names(module, own).items()}
    if not any(name in there or name in own for name in state):  # of an earlier release, or a third party's wrapper
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


def load(value: Any, state: Any) -> None:
    """Have ``value`` take a state, dividing its tensors as ``value``'s own are divided. Each worker gives the whole."""
    import torch

    if isinstance(value, torch.nn.Module):
        own = value.state_dict(keep_vars=True)
        state = renamed(value, state)
        state = {name: _as(own[name], one) if name in own else one for name, one in state.items()}
    elif isinstance(value, torch.optim.Optimizer):
        numbered = dict(enumerate(_parameters(value)))  # as an optimizer's state dictionary counts them
        of_each = {
            number: {name: _as(numbered[number], one) for name, one in of_one.items()}
            for number, of_one in state["state"].items()
        }
        state = {**state, "state": of_each}
    value.load_state_dict(state)


def _as(own: Any, given: Any) -> Any:
    """The whole tensor ``given``, divided as ``own`` is, where it is of its shape: no counter of steps is."""
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(own, DTensor) or not isinstance(given, torch.Tensor) or given.shape != own.shape:
        return given
    return distribute_tensor(given.to(own.device), own.device_mesh, own.placements, src_data_rank=None)


def _parameters(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.nn.Module):
        return list(value.parameters())
    if isinstance(value, torch.optim.Optimizer):
        return [one for group in value.param_groups for one in group["params"]]
    return []


def apart(name: str, state: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
    """The state with a ``TensorOf`` for each tensor, and copies of those as one-dimensional arrays of bytes by key."""
    arrays: dict[str, NDArray[Any]] = {}

    def take(path: str, value: Any) -> Any:
        import torch

        if isinstance(value, torch.Tensor) and not value.is_sparse:
            key = f"{PREFIX}{path}"
            arrays[key] = _bytes_of(value)
            return TensorOf(key, str(value.dtype).removeprefix("torch."), tuple(value.shape))
        if type(value) in (list, tuple):
            return type(value)(take(f"{path}/{index}", one) for index, one in enumerate(value))
        if isinstance(value, dict):  # an OrderedDict of modules, too, whose metadata is not needed to load it
            return {key: take(f"{path}/{key}", one) for key, one in value.items()}
        return value

    return take(name, state), arrays


def together(state: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """The opposite of ``apart``: the state with its tensors, which have memory of their own."""
    if isinstance(state, TensorOf):
        return _tensor_of(state, arrays[state.key])
    if type(state) in (list, tuple):
        return type(state)(together(one, arrays) for one in state)
    if isinstance(state, dict):
        return {key: together(one, arrays) for key, one in state.items()}
    return state


def _bytes_of(tensor: torch.Tensor) -> NDArray[Any]:
    import torch
    from torch.distributed.tensor import DTensor

    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    held = tensor.detach().to("cpu", copy=True).contiguous().reshape(-1)
    found: NDArray[Any] = held.view(torch.uint8).numpy()
    return found


def _tensor_of(described: TensorOf, array: NDArray[Any]) -> torch.Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, described.dtype)
    if not array.size:
        return torch.empty(described.shape, dtype=dtype)
    return torch.from_numpy(array.copy()).view(dtype).reshape(described.shape)
