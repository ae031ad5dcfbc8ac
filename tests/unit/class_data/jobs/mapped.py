"""Program that prints the class-data archives mapped by the JVMs of driver and executor."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator


def mapped(pid: int) -> list[str]:
    """Archives in the memory map of the nearest JVM among ``pid`` and its ancestors."""
    while os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "java":
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    with open(f"/proc/{pid}/maps") as file:
        return sorted({line.split()[-1] for line in file if line.rstrip().endswith(".jsa")})


def of_executor(_: Iterator[int]) -> Iterator[list[str]]:
    yield mapped(os.getpid())


if __name__ == "__main__":
    from pyspark import SparkContext

    context = SparkContext()
    found = context.parallelize(range(1), 1).mapPartitions(of_executor).collect()
    print(json.dumps({"driver": mapped(os.getpid()), "executor": found[0]}))
    context.stop()
