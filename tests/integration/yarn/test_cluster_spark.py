"""Tests of pip's pyspark on the real YARN: both deploy modes, correct final states, distinct GPUs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.helpers.clock import END_S
from tests.integration.yarn.conftest import APPLICATION_ID, Hadoop
from tools.hadoop import daemons, spark

pytestmark = [pytest.mark.hadoop]

JOBS = Path(__file__).with_name("jobs")


@pytest.mark.variant  # of test_submit.py and test_yarn_jobs.py, of the tool alone
@pytest.mark.parametrize(
    ("arguments", "final_status", "diagnostics"),
    [
        (["ok"], "SUCCEEDED", ""),
        (["raise"], "FAILED", "User application exited with status 1"),
        (["exit", "3"], "FAILED", "User application exited with status 3"),
    ],
)
def test_cluster_mode_reports_the_final_state_of_the_script(
    hadoop: Hadoop, arguments: list[str], final_status: str, diagnostics: str
) -> None:
    done = hadoop.submit(JOBS / "outcome.py", *arguments, conf=hadoop.spark_conf(executors=1))
    assert (done.returncode == 0) == (final_status == "SUCCEEDED"), done.output
    assert done.state.final_status == final_status
    assert diagnostics in done.state.diagnostics
    assert "TOTAL 328350" in hadoop.application_logs(done.app_id)


@pytest.mark.variant  # of the tool alone
def test_killed_application_is_reported_as_killed(hadoop: Hadoop) -> None:
    conf = hadoop.spark_conf(executors=1)
    command = spark.submit_command(JOBS / "outcome.py", "sleep", conf=conf)
    with subprocess.Popen(
        command, env=hadoop.submit_env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        app_id = next(found[0] for line in process.stdout if (found := APPLICATION_ID.search(line)))
        daemons.wait_until("running", lambda: hadoop.application_state(app_id).state == "RUNNING", 120)
        hadoop.kill_application(app_id)
        state = hadoop.wait_application(app_id, 30)
        process.communicate(timeout=END_S)
    assert (state.state, state.final_status) == ("KILLED", "KILLED")
    assert process.returncode != 0
    for name in hadoop.names("nm"):
        hadoop.wait_no_containers(name, 10)


# ---------------------------------------------------------------------- GPUs


def holders(output: str) -> list[dict[str, str]]:
    """Return the entries of the job's last HOLDERS line, one per task."""
    return [dict(entry) for entry in json.loads(re.findall(r"^HOLDERS (.*)$", output, re.M)[-1])]


def profile(name: str) -> dict[str, str]:
    """Return the Spark settings of a profile in conf/."""
    text = (spark.ROOT / "conf" / f"{name}.yaml").read_text().replace("{conf}", str(spark.ROOT / "conf"))
    return {key: str(value) for key, value in yaml.safe_load(text)["spark"].items()}


@pytest.mark.variant  # of test_yarn_jobs.py, without hopsml
def test_executors_hold_distinct_gpus_and_a_killed_one_is_replaced(hadoop: Hadoop, tmp_path: Path) -> None:
    """YARN itself gives two executors of a node the same GPU; the script that the profile ships must not.

    The job waits between its two rounds until one executor was killed by -9 here.
    """
    killed = tmp_path / "killed"
    conf = profile("yarn") | hadoop.spark_conf(executors=4) | {"spark.task.resource.gpu.amount": "1"}
    command = spark.submit_command(JOBS / "gpu_holders.py", "4", str(killed), conf=conf, deploy_mode="client")
    with subprocess.Popen(
        command, env=hadoop.submit_env(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        first = holders(next(line for line in process.stdout if line.startswith("HOLDERS")))
        victim = first[0]
        os.kill(int(victim["executor_pid"]), signal.SIGKILL)
        killed.touch()
        rest, _ = process.communicate(timeout=END_S)
    assert process.returncode == 0, rest
    assert hadoop.application_state(hadoop.applications()[-1]["id"]).final_status == "SUCCEEDED"
    second = holders(rest)
    everything = {(f"127.0.0.{node}", gpu) for node in (11, 12) for gpu in ("0", "1")}
    assert {(entry["node"], entry["gpu"]) for entry in first} == everything
    assert {(entry["node"], entry["gpu"]) for entry in second} == everything
    (replacement,) = [entry for entry in second if entry["container"] not in {e["container"] for e in first}]
    assert (replacement["node"], replacement["gpu"]) == (victim["node"], victim["gpu"])
