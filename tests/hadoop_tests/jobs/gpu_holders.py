"""A Spark job: which GPU does each task hold, on which node, in which executor's JVM? Prints one JSON line."""

import json
import os
import sys
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

tasks = int(sys.argv[1])
seconds = float(sys.argv[2])


def held(_):
    import time

    time.sleep(seconds)  # so that one executor cannot take all the tasks
    context = TaskContext.get()
    yield os.environ["NM_HOST"], context.resources()["gpu"].addresses, os.environ["CONTAINER_ID"]


spark = SparkSession.builder.appName("gpu-holders").getOrCreate()
rows = spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(held).collect()
print("HOLDERS " + json.dumps(rows), flush=True)
spark.stop()
