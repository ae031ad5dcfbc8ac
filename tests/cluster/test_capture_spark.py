"""What a real Spark puts into a function, in a process of its own: its JVM ends with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

SCRIPT = """
import json
from pyspark.sql import SparkSession
from hopsml import util
from hopsml.cluster.driver.capture import capture
from hopsml.errors import CaptureError

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name in ("spark.driver.bindAddress", "spark.driver.host"):
    builder = builder.config(name, "127.0.0.1")
spark = builder.getOrCreate()
sc = spark.sparkContext
held = {
    "spark": spark,
    "sc": sc,
    "df": spark.range(3),
    "rdd": sc.parallelize([1]),
    "broadcast": sc.broadcast(1),
    "column": spark.range(3).id,
    "row": spark.range(1).collect()[0],
}

def message(value):
    def train():
        return value
    try:
        capture(train)
    except CaptureError as error:
        return str(error)

def uses_global():
    return spark.range(3)

answers = {name: message(value) for name, value in held.items()}
try:
    capture(uses_global)
except CaptureError as error:
    answers["global"] = str(error)
answers["executors"] = [util.num_executors(spark)]
sc._conf.set("spark.executor.instances", "7")
answers["executors"].append(util.num_executors())
spark.stop()
answers["executors"].append(util.num_executors())
print(json.dumps(answers))
"""


def test_objects_of_a_running_spark_are_refused() -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    for name in ("spark", "sc"):
        assert "`value` (closure variable), a pyspark." in answers[name]
        assert "exists on the driver alone; use it before the launch" in answers[name]
    for name in ("df", "rdd", "column"):
        assert "can be read through the driver alone; write it to shared storage" in answers[name]
    assert "hand its .value over" in answers["broadcast"]
    assert answers["row"] is None  # plain data
    assert answers["global"].startswith("uses_global captures `spark` (global), a pyspark.")
    assert answers["executors"] == [1, 7, 1]  # counted, by the setting, without Spark
