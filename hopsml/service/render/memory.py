"""A worker's memory as Spark asks for it: a heap for the JVM, and the rest beside it, for Python."""

from __future__ import annotations

from hopsml.errors import ArgumentError

LEAST_HEAP_MIB = 512  # Spark refuses executors with a heap below 450 MiB
HEAP_MIB = 1024  # an executor's JVM holds an agent and little else


def split_mib(task: str, whole_mib: int) -> tuple[int, int]:
    """Heap and overhead of an executor, MiB; together the container is exactly as large as asked for.

    Raises ArgumentError where that is too little for Spark.
    """
    heap = min(HEAP_MIB, whole_mib // 2)
    if heap < LEAST_HEAP_MIB:
        raise ArgumentError(
            f"task {task!r}: memory {whole_mib}m: half of it is the executor's heap, and Spark starts none below "
            f"{LEAST_HEAP_MIB}m: ask for {2 * LEAST_HEAP_MIB}m or more"
        )
    return heap, whole_mib - heap
