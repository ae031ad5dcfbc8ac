"""Memory for arrays that is used again once nobody refers to what it was used for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST = 16  # arrays of a kind
_FREE = 3  # references to an array that only the pool knows: its list's, that of who asks, and the count's own


class ArrayPool:
    """Gives uninitialised arrays; for one thread.

    Memory that is touched for the first time costs several times what copying into it does. A view keeps the array that it
    is of alive, whoever has it, NumPy, a tensor or a user: so the references to the array tell whether it is free.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[Any, tuple[int, ...]], list[NDArray[Any]]] = {}

    def empty(self, rows: int, like: NDArray[Any]) -> NDArray[Any]:
        """So many rows of the shape and type of another array's."""
        import numpy as np

        if like.dtype.hasobject:
            return np.empty((rows, *like.shape[1:]), like.dtype)
        kept = self._arrays.setdefault((like.dtype, like.shape[1:]), [])
        for array in kept:
            if len(array) >= rows and sys.getrefcount(array) == _FREE:
                return array[:rows]
        array = np.empty((rows, *like.shape[1:]), like.dtype)
        if len(kept) >= _MOST:
            kept.pop(0)
        kept.append(array)
        return array[:rows]
