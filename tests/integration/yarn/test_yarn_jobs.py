"""Tests of spark-submit on a real YARN: one file in client and cluster mode, correct states, no leftovers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hopsml.core import processes
from hopsml.storage import filesystem
from tests.helpers.clock import END_S, wait_until
from tests.integration.yarn.conftest import Hadoop
from tools.hadoop import spark

pytestmark = [pytest.mark.hadoop, pytest.mark.usefixtures("no_helpers_left")]

ROOT = Path(__file__).parents[3]
JOBS = Path(__file__).parent / "jobs"
MARK = "HOPSML_TEST_JOB"


@pytest.fixture
def settings(hadoop: Hadoop) -> dict[str, str]:
    """Return settings for two executors with one GPU each, a project in HDFS, and a mark for every process of the job."""
    conf = hadoop.spark_conf(executors=2, gpus=1)
    project = f"{hadoop.namenode_url}/Projects/{time.monotonic_ns()}"
    for role in ("appMasterEnv", "executorEnv"):
        conf[f"spark.yarn.{role}.{MARK}" if role == "appMasterEnv" else f"spark.{role}.{MARK}"] = project
    return {**conf, "spark.yarn.appMasterEnv.HOPSML_PROJECT_URL": project}


def project_of(settings: dict[str, str]) -> str:
    return settings["spark.yarn.appMasterEnv.HOPSML_PROJECT_URL"]


def read(url: str) -> Any:
    return json.loads(filesystem.for_url(url).read_bytes(url))


def remaining_processes(settings: dict[str, str]) -> list[int]:
    return processes.processes_with_variable(MARK, project_of(settings))


FAILURES = [
    pytest.param("raise", "cluster", marks=pytest.mark.variant),  # of test_submit.py, with GPUs
    pytest.param("raise", "client", marks=pytest.mark.variant),
    pytest.param("os._exit", "cluster", marks=pytest.mark.variant),
]


@pytest.mark.parametrize("deploy_mode", ["cluster", pytest.param("client", marks=pytest.mark.variant)])
def test_yarn_job_succeeds_with_one_gpu_per_worker(hadoop, settings, deploy_mode, monkeypatch):
    monkeypatch.setenv("HOPSML_PROJECT_URL", project_of(settings))  # client mode: the driver is here
    done = hadoop.submit(JOBS / "train.py", "succeed", conf=settings, deploy_mode=deploy_mode)
    assert (done.returncode, done.state.final_status) == (0, "SUCCEEDED"), done.output[-3000:]
    run = f"{project_of(settings)}/Experiments/{done.app_id}_1"
    status = read(f"{run}/status.json")
    assert status["state"] == "FINISHED"
    places = [(worker["host"], tuple(worker["gpu_indices"])) for worker in status["workers"]]
    assert len(places) == 2 and all(len(gpus) == 1 for _, gpus in places)
    assert len({(worker["executor"], *worker["gpu_indices"]) for worker in status["workers"]}) == 2
    assert read(f"{run}/.outputs.json")["tasks"] == 2
    wait_until(lambda: not remaining_processes(settings))


@pytest.mark.variant
def test_gpus_are_assigned_if_yarn_does_not_know_their_type(hadoop, settings, tmp_path):
    """Spark then requests containers without GPUs, and the discovery script assigns those of the node."""
    conf_dir = shutil.copytree(hadoop.conf_dir, tmp_path / "conf")
    (conf_dir / "resource-types.xml").unlink()
    command = spark.submit_command(JOBS / "train.py", "succeed", conf=settings)
    job = subprocess.run(
        command,
        env=spark.submit_env(conf_dir),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert job.returncode == 0, job.stdout[-3000:]
    application = hadoop.applications()[-1]["id"]
    workers = read(f"{project_of(settings)}/Experiments/{application}_1/status.json")["workers"]
    assert len({(worker["host"], *worker["gpu_indices"]) for worker in workers}) == 2
    assert all(len(worker["gpu_indices"]) == 1 for worker in workers)
    assert "YARN doesn't know about resource yarn.io/gpu" in hadoop.application_logs(application)


@pytest.mark.parametrize(("how", "deploy_mode"), FAILURES)
def test_failing_worker_fails_the_application(hadoop, settings, how, deploy_mode, monkeypatch):
    monkeypatch.setenv("HOPSML_PROJECT_URL", project_of(settings))  # client mode: the driver is here
    done = hadoop.submit(JOBS / "train.py", how, conf=settings, deploy_mode=deploy_mode)
    assert done.returncode != 0
    assert done.state.final_status == "FAILED"
    status = read(f"{project_of(settings)}/Experiments/{done.app_id}_1/status.json")
    assert status["state"] == "FAILED" and "rank 1" in status["error"]
    wait_until(lambda: not remaining_processes(settings))


@pytest.mark.variant  # of test_submit.py, with GPUs
def test_application_killed_by_yarn_leaves_no_process(hadoop, settings):
    command = spark.submit_command(JOBS / "train.py", "hang", conf=settings)
    with subprocess.Popen(
        command, env=hadoop.submit_env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    ) as job:
        try:
            wait_until(lambda: len(workers(settings)) == 2)
            (application,) = [app["id"] for app in hadoop.applications() if app["state"] == "RUNNING"]
            hadoop.kill_application(application)
            wait_until(lambda: not remaining_processes(settings))
            assert job.wait(END_S) != 0
        finally:
            job.kill()


def workers(settings: dict[str, str]) -> list[int]:
    """Return the process ids of running workers."""
    found = []
    for pid in remaining_processes(settings):
        try:
            if os.getpgid(pid) == pid and b"fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            pass
    return found
