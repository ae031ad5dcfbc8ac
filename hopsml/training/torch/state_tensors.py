"""Tensors of state dictionaries as a commit's arrays: copied once, and written beside the training.

What a module, an optimizer or a scaler gives as its state is taken apart into its tensors and the rest, which is pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

PREFIX = "torch:"  # of the keys of arrays


@dataclass(frozen=True)
class TensorOf:
    """Stands in a state for a tensor that is an array of the commit."""

    key: str
    dtype: str  # "float32", as torch names it
    shape: tuple[int, ...]


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

    held = tensor.detach().to("cpu", copy=True).contiguous().reshape(-1)
    found: NDArray[Any] = held.view(torch.uint8).numpy()
    return found


def _tensor_of(described: TensorOf, array: NDArray[Any]) -> torch.Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, described.dtype)
    if not array.size:
        return torch.empty(described.shape, dtype=dtype)
    return torch.from_numpy(array.copy()).view(dtype).reshape(described.shape)
