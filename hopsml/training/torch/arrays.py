"""Tensors on CPUs as numpy arrays that share their memory, for the time of one operation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch


@contextmanager
def array_of(tensor: torch.Tensor) -> Iterator[np.ndarray[Any, Any]]:
    """An array of the tensor's values, in its shape; what is written into it is the tensor's afterwards.

    A tensor that is not contiguous, or on another device, is copied before and after. bfloat16 is numpy's by ml_dtypes;
    types that sums are not made of (bool, int8, int16) travel as a wider one.
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
    """As ``array_of``, but one dimension of bytes: for what is moved and not calculated with, of any type."""
    import torch

    found = tensor.detach()
    held = found.to("cpu").contiguous()
    flat = held.reshape(-1)
    yield flat.view(torch.uint8).numpy() if flat.numel() else flat.to(torch.uint8).numpy()
    if held is not found:
        found.copy_(held)


def _numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    import torch

    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        array: np.ndarray[Any, Any] = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return array
    found: np.ndarray[Any, Any] = tensor.numpy()
    return found
