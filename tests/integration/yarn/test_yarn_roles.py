"""Contract of roles on YARN containers, run by a driver in cluster mode."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.yarn.conftest import Hadoop

pytestmark = [pytest.mark.hadoop, pytest.mark.variant]

JOB = Path(__file__).parent / "jobs" / "roles.py"


@pytest.mark.parametrize("deploy_mode", ["cluster", "client"])
def test_roles_run_on_yarn_containers(
    hadoop: Hadoop, tmp_path: Path, deploy_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = f"file://{tmp_path}/project"  # where the processes of a rank are found by their logs
    monkeypatch.setenv("HOPSML_PROJECT_URL", project)  # client mode: the driver is here
    monkeypatch.setenv("PYTHONPATH", str(JOB.parents[4]))
    conf = hadoop.spark_conf(executors=2, cores=2) | {"spark.yarn.appMasterEnv.HOPSML_PROJECT_URL": project}
    done = hadoop.submit(JOB, str(tmp_path / "plays"), conf=conf, deploy_mode=deploy_mode, timeout_s=400)
    assert (done.returncode, done.state.final_status) == (0, "SUCCEEDED"), done.output[-3000:]
    assert len(list((tmp_path / "plays").iterdir())) == 4


DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.executor.instances": "0",
    "spark.executor.cores": "1",
}


@pytest.mark.parametrize("more", [pytest.param({}, id="fixed"), pytest.param(DYNAMIC, id="dynamic")])
def test_only_workers_hold_gpus(hadoop: Hadoop, tmp_path: Path, more: dict[str, str]) -> None:
    project = f"file://{tmp_path}/project"
    conf = hadoop.spark_conf(executors=2, cores=2, gpus=1) | {"spark.yarn.appMasterEnv.HOPSML_PROJECT_URL": project}
    done = hadoop.submit(JOB, str(tmp_path), "gpus", conf=conf | more, timeout_s=400)
    assert (done.returncode, done.state.final_status) == (0, "SUCCEEDED"), done.output[-3000:]
    held = json.loads((tmp_path / "held.json").read_text())
    assert [len(gpus) for gpus, _ in held["chief"] + held["worker"]] == [1, 1], held
    assert held["ps"] == held["evaluator"] == [[[], "-1"]], held
