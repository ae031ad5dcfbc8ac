"""Memory for arrays that is used again once nobody refers to what it was used for."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST = 16  # arrays of a kind
_ALIGNED = 64  # bytes; TensorFlow copies what begins elsewhere
_FREE = 3  # references to an array that only the pool knows: its list's, that of who asks, and the count's own


class ArrayPool:
    """Gives uninitialised arrays; for one thread.

    Memory that is touched for the first time costs several times what copying into it does. A view keeps the array that it
    is of alive, whoever has it, NumPy, a tensor or a user: so the references to the array tell whether it is free.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, tuple[int, ...]], list[NDArray[Any]]] = {}

    def empty(self, rows: int, like: NDArray[Any]) -> NDArray[Any]:
        """So many rows of the shape and type of another array's, where TensorFlow can take the memory as it lies."""
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
