"""Division of a worker's memory for Spark: a heap for the JVM, and overhead for Python."""

from __future__ import annotations

import re

from hopsml.errors import ArgumentError

LEAST_HEAP_MIB = 512  # Spark refuses executors with a heap below 450 MiB
HEAP_MIB = 1024  # an executor's JVM holds an agent and little else


def split_mib(task: str, whole_mib: int) -> tuple[int, int]:
    """Return heap and overhead of an executor in MiB, whose sum is exactly the requested container.

    Args:
        task: Name of the task, for the message.
        whole_mib: Memory of the container, in MiB.

    Raises:
        ArgumentError: The memory is too small for Spark.
    """
    heap = min(HEAP_MIB, whole_mib // 2)
    if heap < LEAST_HEAP_MIB:
        raise ArgumentError(
            f"task {task!r}: memory {whole_mib}m: half of it is the executor's heap, and Spark starts none below "
            f"{LEAST_HEAP_MIB}m: ask for {2 * LEAST_HEAP_MIB}m or more"
        )
    return heap, whole_mib - heap


def mib(text: str) -> int:
    """Parse a size of memory as Spark does, in MiB: ``512m``, ``1g``, ``2048`` (MiB without a unit).

    Raises:
        ArgumentError: The text is not a size.
    """
    found = re.fullmatch(r"([0-9]+)([kmgt]?)b?", text.strip().lower())
    if found is None:
        raise ArgumentError(f"{text!r} is no size of memory: write 512m or 2g")
    count, unit = int(found[1]), found[2] or "m"
    return count >> 10 if unit == "k" else count << {"m": 0, "g": 10, "t": 20}[unit]
