"""Helpers of the jobs: digests of weights, and inspection of the optimised graph."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any


def digest(arrays: Iterable[Any]) -> str:
    """Return a digest of all bytes: equal digests mean bitwise equal arrays."""
    import numpy as np

    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(np.asarray(array)).tobytes())
    return total.hexdigest()


def collectives_of(call: Callable[[], Any]) -> dict[str, int]:
    """Return numbers of collective and scoped-allocator operations in the graphs optimised during ``call``."""
    from tensorflow.python.eager import context

    context.context().enable_run_metadata()
    try:
        call()
        metadata = context.context().export_run_metadata()
    finally:
        context.context().disable_run_metadata()
    counts: Counter[str] = Counter()
    for graphs in metadata.function_graphs:
        graph = graphs.post_optimization_graph
        functions = [node for function in graph.library.function for node in function.node_def]
        counts.update(node.op for node in [*graph.node, *functions])
    return {op: count for op, count in counts.items() if op.startswith(("Collective", "_ScopedAllocator"))}
