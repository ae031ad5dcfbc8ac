"""The same script on a Spark standalone cluster, by the profile's name alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.spark_standalone import StandaloneSpark

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "hadoop_tests" / "jobs" / "train.py"


@pytest.mark.timeout(400)
@pytest.mark.variant  # of what the other files here say of Spark's local-cluster
@pytest.mark.parametrize(("how", "status"), [("succeed", 0), ("raise", 1)])
def test_a_job_on_standalone(tmp_path, how, status):
    with StandaloneSpark(workers=2, cores=1) as spark:
        environment = {
            **os.environ,
            "HOPSML_PROFILE": "standalone",
            "HOPSML_SPARK_MASTER": spark.url,
            "HOPSML_PROJECT_URL": f"file://{tmp_path}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(
            [sys.executable, str(JOB), how], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=180
        )
    assert done.returncode == status, done.stderr[-4000:]
    (record,) = tmp_path.glob("Experiments/*/status.json")
    assert ('"FINISHED"' if how == "succeed" else '"FAILED"') in record.read_text()
    if how == "raise":
        assert "rank 1" in done.stderr and "does not like its data" in done.stderr
