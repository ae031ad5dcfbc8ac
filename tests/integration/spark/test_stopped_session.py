"""Test of predictions and runs after the user's Spark session has been stopped, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
from pyspark.sql import SparkSession
import sklearn.linear_model
from hopsml import model
from hopsml.errors import ArgumentError
from hopsml.experiment import applications

print("before:", applications.get_or_start("local").other_application_note(None))
applications.shutdown()
model.export(sklearn.linear_model.LinearRegression().fit([[1.0], [2.0]], [1.0, 2.0]), "line", example=[[1.0]])
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
table = session.createDataFrame([(1.0,)], "x double")
model.predict(table, "line", inputs=["x"])
session.stop()
try:
    model.predict(table, "line", inputs=["x"])
except ArgumentError as error:
    print("refused:", error)
print("note:", applications.get_or_start("local").other_application_note(None))
"""


def test_dataframe_of_a_stopped_session_is_refused_and_local_workers_are_noted(tmp_path: Path) -> None:
    environment = {**os.environ, "HOPSML_PROJECT_URL": f"file://{tmp_path}", "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False)
    assert "refused: df is a DataFrame of a Spark session that has been stopped" in done.stdout, done.stderr[-2000:]
    assert "experiment.spark()" in done.stdout
    assert "before: \n" in done.stdout  # no Spark has been started
    assert (
        "note: the Spark session of this process has been stopped, so this run has processes of this machine"
        in done.stdout
    )
