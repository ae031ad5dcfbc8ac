"""Parallel copy of large arrays by several threads: one core often cannot use the whole memory bandwidth."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEAST_PART = 2_000_000  # bytes; below it a thread costs more than it saves
_MOST_THREADS = 4  # enough for the memory bandwidth; the other cores are needed for training


def copy(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Fill ``target`` with the bytes of ``source``: uint8 arrays of one dimension and the same length.

    The interpreter's lock is released during the copy. The number of threads is that of the cores that this process may
    use, up to four.
    """
    import numpy as np

    # NumPy copies without the lock; an assignment to a slice of a memoryview would hold it.
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)), source.nbytes // _LEAST_PART)
    if threads < 2:
        np.copyto(target, source)
        return
    bounds = [number * source.nbytes // threads for number in range(threads + 1)]
    parts = [slice(begin, end) for begin, end in pairwise(bounds)]
    with ThreadPoolExecutor(threads - 1, thread_name_prefix="hopsml-copy") as others:
        asked, own = [], parts[:1]
        for part in parts[1:]:
            try:
                asked.append(others.submit(np.copyto, target[part], source[part]))
            except RuntimeError:  # no more threads are allowed (ulimit -u), or the interpreter is shutting down
                own.append(part)
        for part in own:
            np.copyto(target[part], source[part])
        for each in asked:
            each.result()
