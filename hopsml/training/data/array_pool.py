"""Pool of array memory that is reused once no array or view refers to it."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST = 16  # arrays per dtype and row shape
_ALIGNED = 64  # bytes; TensorFlow copies arrays that do not start at a multiple of it
_FREE = 3  # reference count of an unused array: the pool's list, the local variable, and ``getrefcount``'s argument


class ArrayPool:
    """Pool of uninitialized arrays, for use by one thread.

    Touching memory for the first time costs several times as much as copying into it, so memory is reused. A view keeps
    its base array alive, whether NumPy, a tensor or the user holds it, so the array's reference count shows whether it
    is free.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, tuple[int, ...]], list[NDArray[Any]]] = {}

    def empty(self, rows: int, like: NDArray[Any]) -> NDArray[Any]:
        """Return an uninitialized array, aligned so that TensorFlow can use it without a copy.

        Args:
            rows: length of the first axis.
            like: array whose dtype and row shape the new array has. Arrays of objects are allocated by NumPy, outside
                the pool.
        """
        import numpy as np

        shape = (rows, *like.shape[1:])
        if like.dtype.hasobject:
            return np.empty(shape, like.dtype)
        size = math.prod(shape) * like.dtype.itemsize
        kept = self._arrays.setdefault((like.dtype, like.shape[1:]), [])
        for memory in kept:
            if len(memory) >= size + _ALIGNED and sys.getrefcount(memory) == _FREE:
                break
        else:
            memory = np.empty(size + _ALIGNED, np.uint8)
            if len(kept) >= _MOST:
                kept.pop(0)
            kept.append(memory)
        begin = -memory.ctypes.data % _ALIGNED
        return memory[begin : begin + size].view(like.dtype).reshape(shape)
