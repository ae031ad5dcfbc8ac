"""Tests of requests to YARN and the meaning of its answers; tests/integration/yarn runs real applications."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hopsml.airflow
from hopsml.airflow import yarn_jobs
from hopsml.airflow.jobs import Job, Request
from hopsml.core.states import Lifecycle
from hopsml.errors import ClusterError
from hopsml.yarn import YarnApplication
from tests.helpers import clock
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast


@pytest.fixture
def free_port() -> int:
    """Return a port on which no process listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize(
    ("state", "final", "ours"),
    [
        ("NEW", "UNDEFINED", Lifecycle.STARTING),
        ("ACCEPTED", "UNDEFINED", Lifecycle.STARTING),
        ("RUNNING", "UNDEFINED", Lifecycle.RUNNING),
        ("FINISHED", "SUCCEEDED", Lifecycle.FINISHED),
        ("FINISHED", "FAILED", Lifecycle.FAILED),
        ("FINISHED", "KILLED", Lifecycle.STOPPED),
        ("FAILED", "FAILED", Lifecycle.FAILED),
        ("KILLED", "KILLED", Lifecycle.STOPPED),
    ],
)
def test_yarn_states_are_mapped_to_job_states(state, final, ours):
    assert YarnApplication("application_1_0001", "x", state, final).lifecycle is ours


def test_spark_settings_of_a_request_have_project_and_record_urls():
    request = Request("hopsml-task-x", "/s.py", "yarn-cluster", "python", "hdfs://nn/Projects/p", name="dag.task",
                    conf={"spark.executor.memory": "2g"}, environment={"COLOUR": "red"})  # fmt: skip
    assert yarn_jobs.settings_of(request) == {
        "spark.app.name": "dag.task",
        "spark.executor.memory": "2g",
        "spark.yarn.appMasterEnv.COLOUR": "red",
        "spark.yarn.appMasterEnv.HOPSML_PROJECT_URL": "hdfs://nn/Projects/p",
        "spark.yarn.appMasterEnv.HOPSML_JOB_RECORD": "hdfs://nn/Projects/p/Airflow/hopsml-task-x.json",
    }


def test_unreachable_resource_manager_is_a_cluster_error(free_port: int):
    job = Job("yarn", "application_1_0001", {"addresses": [f"127.0.0.1:{free_port}"], "scheme": "http", "user": "x"})
    with pytest.raises(ClusterError, match=f"127.0.0.1:{free_port}"):
        yarn_jobs.status(job)
    assert yarn_jobs.read_log(job, 7) == ("", 7)


def test_submission_ends_with_the_task_process_that_started_it(tmp_path):
    """Otherwise it could reach YARN after the next try has searched for it."""
    pids = tmp_path / "pids"
    below = f"echo $$ > {pids}.1; setsid sleep 600 & echo $! > {pids}; wait"
    task = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys; "
            f"subprocess.run([sys.executable, '-m', 'hopsml.airflow.parent_guard', str(os.getpid()), "
            f"'bash', '-c', {below!r}])",
        ]
    )
    deadline = clock.awake() + 20
    while not (pids.exists() and pids.read_text().strip()):
        assert clock.awake() < deadline
        time.sleep(0.01)
    os.kill(task.pid, signal.SIGKILL)
    task.wait()
    started = [pids.read_text().strip(), Path(f"{pids}.1").read_text().strip()]
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert clock.awake() < deadline, started
        time.sleep(0.01)


def test_parent_guard_returns_the_exit_status():
    line = [sys.executable, "-m", "hopsml.airflow.parent_guard", str(os.getpid()), "bash", "-c", "exit 3"]
    assert subprocess.run(line, timeout=END_S).returncode == 3


def test_missing_airflow_is_explained():
    with pytest.raises(AttributeError, match="use the environment of Airflow"):
        hopsml.airflow.HopsMLOperator  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match="use the environment of Airflow"):
        from hopsml.airflow import HopsMLOperator  # noqa: F401
    assert not hasattr(hopsml.airflow, "HopsMLOperator")
    with pytest.raises(AttributeError, match="it has: HopsMLJobTrigger"):
        hopsml.airflow.SparkSubmitOperator  # noqa: B018
