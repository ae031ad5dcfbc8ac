"""Tests of ``hopsml runs``, ``rerun`` and ``doctor`` with a real HDFS and YARN."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from hopsml import experiment
from hopsml.doctor import examination
from hopsml.errors import RunCancelled
from hopsml.storage import filesystem
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.command_line import Cli, cli
from tests.helpers.tracking import jobs
from tests.integration.yarn.conftest import Hadoop

pytestmark = pytest.mark.hadoop
__all__ = ["cli"]


@pytest.fixture
def project(hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URL of a project in HDFS, configured as for a user of the cluster."""
    url = f"{hadoop.namenode_url}/Projects/{time.monotonic_ns()}"
    monkeypatch.setenv("HADOOP_CONF_DIR", hadoop.submit_env()["HADOOP_CONF_DIR"])
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("HOPSML_PROJECT_URL", url)
    monkeypatch.setenv("HOPSML_PROFILE", "local")
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # that of local workers, which `hopsml runs rerun` takes over
    yield url
    experiment.shutdown()


def test_runs_are_recorded_listed_rerun_and_deleted_on_hdfs(project: str, cli: Cli) -> None:
    run = experiment.submit(jobs.descend, num_workers=2, progress=False, keep_warm=60)
    run.result(END_S)
    record = run.directory.read_json(run.directory.environment_json)
    assert record["problems"] == [] and filesystem.exists(run.directory.function)
    again = cli("runs", "rerun", run.run_id, "--json")
    assert again.status == 0, again.err
    assert json.loads(again.out)["compared"] == ["loss", "weights"]
    rows = json.loads(cli("runs", "ls", "--json").out)
    assert [row["state"] for row in rows] == ["FINISHED", "FINISHED"] and rows[0]["rerun_of"] == run.run_dir
    differences = json.loads(cli("runs", "compare", rows[0]["run_id"], run.run_dir, "--json").out)["differences"]
    # A worker's share of the processors depends on what else runs on this machine.
    assert [one for one in differences if one["name"] != "worker.cores"] == []
    shown = json.loads(cli("runs", "show", run.run_id, "--json").out)
    assert shown["worker"]["hardware"]["cores"], "written by the worker, brought there by the mirror"
    assert cli("runs", "rm", run.run_id, "--yes").status == 0
    assert not filesystem.exists(run.run_dir)
    assert [row["run_id"] for row in json.loads(cli("runs", "ls", "--json").out)] == [rows[0]["run_id"]]


@pytest.mark.variant
def test_run_on_hdfs_is_monitored_and_cancelled(project: str, cli: Cli) -> None:
    def train() -> None:
        import time

        import hopsml

        for step in range(600):
            hopsml.report(step=step, loss=0.5)
            time.sleep(0.1)

    run = experiment.submit(train, num_workers=1, progress=False)
    deadline = clock.awake() + 60
    while "loss=0.5" not in (shown_status := cli("runs", "status", run.run_id)).out:
        assert clock.awake() < deadline, shown_status
        time.sleep(0.2)
    assert "RUNNING" in shown_status.out and "loss" in cli("runs", "metrics", run.run_id, "--last", "1").out
    ended = cli("runs", "cancel", run.run_id)
    assert (ended.status, ended.out) == (0, f"{run.run_id}: CANCELLED\n"), ended.err
    with pytest.raises(RunCancelled, match="hopsml runs cancel"):
        run.result(END_S)


def test_doctor_finds_no_problem_of_the_cluster(project: str, cli: Cli) -> None:
    ended = cli("doctor", "--profile", "yarn", "--json")
    found = {check["name"]: check for check in json.loads(ended.out)["checks"]}
    if found["project store"]["facts"]["seconds"] > examination.SLOW_S:
        assert found.pop("project store")["status"] in ("warn", "fail")  # the machine is busy
    examined = {"project store", "hdfs", "yarn", "clock"} & found.keys()
    assert [name for name in examined if found[name]["status"] != "ok"] == [], ended.out
    assert found["yarn"]["facts"]["nodes"] == 2
    assert set(found["clock"]["facts"]["skew_s"]) == {"the project store", "the ResourceManager"}
    assert not filesystem.exists(project), "nothing is left behind"


def test_doctor_does_not_wait_for_a_frozen_namenode(project: str, hadoop: Hadoop, cli: Cli) -> None:
    hadoop.kill("nn", signal.SIGSTOP)
    started_s = clock.awake()
    ended = cli("doctor", "--profile", "yarn", "--json")
    assert clock.awake() - started_s < 35
    found = {check["name"]: check for check in json.loads(ended.out)["checks"]}
    assert ended.status == 1
    assert (found["hdfs"]["status"], found["project store"]["status"], found["yarn"]["status"]) == (
        "fail",
        "fail",
        "ok",
    )
    assert found["hdfs"]["remedy"] and os.environ["HADOOP_CONF_DIR"] in found["hdfs"]["facts"]["conf_dir"]
