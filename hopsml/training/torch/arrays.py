"""Views of CPU tensors as numpy arrays that share their memory, for the duration of one operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

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


def gathered(group: Group, tensor: torch.Tensor, name: str) -> torch.Tensor:
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
    all_places, all_values = gathered(group, places, f"{name}: places"), gathered(group, values, name)
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
    import numpy as np
    import torch

    if dtype is torch.bfloat16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    found: np.dtype[Any] = torch.empty(0, dtype=dtype).numpy().dtype
    return found


def _numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a contiguous CPU tensor as an array of the same shape and type."""
    return _bytes(tensor).view(_type_of(tensor.dtype)).reshape(tuple(tensor.shape))
