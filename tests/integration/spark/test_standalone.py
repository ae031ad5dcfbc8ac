"""Test of the same script on a Spark standalone cluster, selected by the profile's name only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.helpers.clock import END_S
from tools.spark_standalone import StandaloneSpark

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
JOB = ROOT / "tests" / "integration" / "yarn" / "jobs" / "train.py"
ROLES = JOB.with_name("roles.py")  # which plays the contract


def run_on(
    master: str, job: Path, arguments: Sequence[str], project: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    """A driver here, by the profile ``standalone``, whose master is given."""
    environment = {
        **os.environ,
        "HOPSML_PROFILE": "standalone",
        "HOPSML_SPARK_MASTER": master,
        "HOPSML_PROJECT_URL": f"file://{project}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
        **more,
    }
    command = [sys.executable, str(job), *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=END_S)


@pytest.mark.variant  # of what the other files here say of Spark's local-cluster
@pytest.mark.parametrize(("how", "status"), [("succeed", 0), ("raise", 1)])
def test_job_on_standalone_spark_succeeds_or_fails_with_its_status(tmp_path, how, status):
    with StandaloneSpark(workers=2, cores=1) as spark:
        done = run_on(spark.url, JOB, [how], tmp_path)
    assert done.returncode == status, done.stderr[-4000:]
    (record,) = tmp_path.glob("Experiments/*/status.json")
    assert ('"FINISHED"' if how == "succeed" else '"FAILED"') in record.read_text()
    if how == "raise":
        assert "rank 1" in done.stderr and "does not like its data" in done.stderr


@pytest.mark.variant
def test_role_contract_holds_on_standalone_spark(tmp_path: Path) -> None:
    profile = (ROOT / "conf" / "standalone.yaml").read_text()
    (tmp_path / "standalone.yaml").write_text(profile.replace("spark.cores.max: 2", "spark.cores.max: 4"))
    with StandaloneSpark(workers=4, cores=1) as spark:
        project = tmp_path / "project"
        done = run_on(spark.url, ROLES, [str(tmp_path / "plays")], project, HOPSML_CONF_DIR=str(tmp_path))
    assert done.returncode == 0 and done.stdout.count("held: ") == 4, done.stdout + done.stderr[-4000:]
