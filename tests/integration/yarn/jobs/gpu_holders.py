"""Spark job that prints twice which executor on which node holds which GPU, with a wait for a file in between.

    gpu_holders.py TASKS FILE

Prints a line `HOLDERS [...]` each time. The tasks of a round run at the same time, each on a separate
executor: each waits until all others have registered in a folder next to FILE.
"""

import json
import os
import sys
import time

from pyspark import TaskContext
from pyspark.sql import SparkSession

TASKS = int(sys.argv[1])
FILE = sys.argv[2]


def round_of(number):
    def task(_):
        import os
        import time
        from pathlib import Path

        folder = Path(f"{FILE}.round-{number}")
        folder.mkdir(exist_ok=True)
        container = os.environ["CONTAINER_ID"]
        (folder / container).touch()
        while len(list(folder.iterdir())) < TASKS:
            time.sleep(0.05)
        (gpu,) = TaskContext.get().resources()["gpu"].addresses
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
        yield {
            "node": os.environ["NM_HOST"],
            "gpu": gpu,
            "container": container,
            "executor_pid": daemon[1],  # this worker is a child of pyspark's daemon, and that one of the JVM
        }

    return task


context = SparkSession.builder.appName("gpu-holders").getOrCreate().sparkContext
for number in (1, 2):
    rows = context.parallelize(range(TASKS), TASKS).mapPartitions(round_of(number)).collect()
    print("HOLDERS " + json.dumps(rows), flush=True)
    while number == 1 and not os.path.exists(FILE):
        time.sleep(0.05)
context.stop()
