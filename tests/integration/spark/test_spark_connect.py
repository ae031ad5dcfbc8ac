"""Tests with the real client of Spark Connect, in processes of their own: hopsml refuses it before any contact."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import wheels
from tests.integration.spark.conftest import ROOT

pytestmark = [pytest.mark.local, pytest.mark.variant]

# Nothing listens on port 1: pyspark's client tries a refused connection again for minutes.
SESSION = """
import os
import sys
from pyspark.sql import SparkSession
session = SparkSession.builder.remote("sc://127.0.0.1:1/;token=secret").getOrCreate()
table = session.range(10)
"""
CALLS = """
from hopsml import experiment, model
from hopsml.errors import HopsmlError

def attempt(name, call):
    try:
        print(name, "returned", call())
    except HopsmlError as error:
        print(name, type(error).__name__, str(error))

attempt("launch", lambda: experiment.launch(lambda: 1.0, progress=False))
attempt("spark", lambda: experiment.spark("local-cluster"))
attempt("selected", lambda: experiment.launch(lambda: 1.0, profile="local", progress=False).metrics["metric"])
"""
FRAMES = """
rows = {"data": {"rows": table}, "num_workers": 1, "profile": "local", "progress": False}
attempt("data", lambda: experiment.collective_all_reduce(lambda rows: 1.0, **rows))
attempt("predict", lambda: model.predict(table, "absent"))
experiment.shutdown()
sys.stdout.flush()
os._exit(0)  # at its exit pyspark's client would try to reach the server for minutes
"""


def lines_of(program: str, packages: Path, folder: Path) -> dict[str, str]:
    """Return the lines that a program prints, by their first word; ``packages`` come first on its path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "HOPSML"))}
    environment |= {"PYTHONPATH": f"{packages}:{ROOT}", "HOPSML_PROJECT_URL": f"file://{folder}"}
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def packages_in(folder: Path, *requirements: str) -> Path:
    """Install packages without their dependencies, which this environment has, and return the folder."""
    install = [*wheels.UV, "pip", "install", "--python", sys.executable, "--no-deps", "--target", folder]
    subprocess.run([*install, *requirements], check=True)
    return folder


def test_active_session_of_spark_connect_is_refused_before_contact(tmp_path: Path) -> None:
    grpc = importlib.metadata.version("grpcio")
    packages = packages_in(tmp_path / "packages", f"grpcio-status=={grpc}", "zstandard")
    (tmp_path / "project").mkdir()
    found = lines_of(SESSION + CALLS + FRAMES, packages, tmp_path / "project")
    for name in ("launch", "spark"):
        assert found[name].startswith("ClusterError the active Spark session is one of Spark Connect, but hopsml needs")
    assert found["selected"] == "returned 1.0"
    assert found["data"].startswith("ArgumentError data={'rows': ...} is a DataFrame of Spark Connect, but hopsml")
    assert found["predict"].startswith("ArgumentError df is a DataFrame of Spark Connect, but hopsml needs")
    assert not any("secret" in text for text in found.values())


def test_pyspark_client_alone_is_named_where_spark_is_needed(tmp_path: Path) -> None:
    packages = packages_in(tmp_path / "packages", "pyspark-client==4.2.0")
    (tmp_path / "project").mkdir()
    found = lines_of(CALLS, packages, tmp_path / "project")
    assert found["launch"].startswith("returned") and found["selected"] == "returned 1.0"
    assert found["spark"].startswith(
        "ClusterError only pyspark-client is installed, which has sessions of Spark Connect"
    )
    assert "pip uninstall pyspark-client" in found["spark"]
