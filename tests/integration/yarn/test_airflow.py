"""Tests of Airflow's operator and the pipeline on a real YARN: killed, found again, ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hopsml import model
from hopsml.core import processes
from hopsml.storage import filesystem
from tests.helpers import leaks
from tests.helpers.airflow.harness import (
    ROOT,
    RUN_AFTER,
    Airflow,
    airflow_in,
    make_database,
    pipelines_server,
    wait_until,
)
from tests.helpers.clock import END_S
from tests.integration.yarn.conftest import APPLICATION_ID, Hadoop
from tools.hadoop import spark

pytestmark = [pytest.mark.hadoop, pytest.mark.airflow]

GATE = """
    import os, sys, time
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.getOrCreate()
    print("it has begun", flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    print('{"answer": 42}')
"""


@pytest.fixture(scope="module")
def airflow_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an empty database."""
    with leaks.not_of_this_test():
        return make_database(tmp_path_factory.mktemp("airflow") / "home")


@pytest.fixture
def airflow(hadoop: Hadoop, airflow_database: Path, tmp_path: Path) -> Iterator[Airflow]:
    """Yield an Airflow with a profile ``yarn-test`` for applications of this cluster's size."""
    conf = tmp_path / "conf"
    shutil.copytree(ROOT / "conf", conf, ignore=shutil.ignore_patterns("__pycache__"))
    settings = hadoop.spark_conf(executors=2, memory="1g", gpus=1)
    settings.pop("spark.master")
    profile = {"extends": "yarn-cluster", "master": "yarn", "spark": settings}
    (conf / "yarn-test.yaml").write_text(yaml.safe_dump(profile))
    variables = {
        **{key: value for key, value in hadoop.submit_env().items() if os.environ.get(key) != value},
        "HOPSML_CONF_DIR": str(conf),
        "HOPSML_PROJECT_URL": f"{hadoop.namenode_url}/Projects/{tmp_path.parent.name}",
    }
    with airflow_in(tmp_path / "airflow", airflow_database, variables) as made:
        yield made
    filesystem.close_all()


def states(hadoop: Hadoop, before: set[str]) -> dict[str, str]:
    """Final status of each application since ``before``."""
    return {app["id"]: app["finalStatus"] for app in hadoop.applications() if app["id"] not in before}


def application_ids(hadoop: Hadoop) -> set[str]:
    return {app["id"] for app in hadoop.applications()}


def operator_lines(output: str) -> str:
    """Return the operator's log lines about its jobs."""
    return "\n".join(line for line in output.splitlines() if "HopsMLOperator" in line or "[DAG TEST]" in line)


def is_submitting(pid: int) -> bool:
    """Return True if spark-submit's JVM runs below a process."""
    for below in processes.descendants_of(pid):
        try:
            if b"SparkSubmit" in Path(f"/proc/{below}/cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


def application_in(output: str) -> str:
    found = APPLICATION_ID.findall(output)
    assert found, output[-4000:]
    return str(found[-1])


@pytest.mark.variant  # of tests/integration/airflow/test_pipeline.py, on YARN
def test_pipeline_on_yarn_continues_after_a_kill_during_training(
    hadoop: Hadoop, airflow: Airflow, tmp_path: Path
) -> None:
    with pipelines_server(airflow, tmp_path / "machine"):
        killed_in_the_middle(hadoop, airflow)


def killed_in_the_middle(hadoop: Hadoop, airflow: Airflow) -> None:
    """Kill the pipeline during training, and then run it to its end."""
    before = application_ids(hadoop)
    file = str(ROOT / "airflow_dags" / "digits_pipeline.py")
    airflow.more["AIRFLOW__CORE__DAGS_FOLDER"] = str(Path(file).parent)
    conf = json.dumps({"profile": "yarn-test", "epochs": 8})
    with airflow.started("test", file, "digits_pipeline", RUN_AFTER, conf) as first:
        wait_until(lambda: first.output.count("started job application_") == 2 or first.process.poll() is not None)
        application = application_in(first.output)
        wait_until(lambda: hadoop.application_state(application).state == "RUNNING")
        first.kill()
    second = airflow.run("again", file, "digits_pipeline", RUN_AFTER, timeout_s=200)
    result = second.told
    assert result["state"] == "success", second.output[-6000:]
    assert result["xcoms"]["train"]["job"]["id"] == application
    fresh = [(app["name"], app["finalStatus"]) for app in hadoop.applications() if app["id"] not in before]
    once = [(f"digits_pipeline.{task}", "SUCCEEDED") for task in ("prepare", "train", "evaluate")]
    assert fresh == once, f"{result['tasks']}\n{operator_lines(first.output)}\n{operator_lines(second.output)}"
    assert second.lines_with("run directory"), "the driver's log is in the task's"
    assert result["xcoms"]["evaluate"]["metrics"]["accuracy"] >= 0.9
    assert result["xcoms"]["serve"]["metrics"]["version"] == result["xcoms"]["register"]["metrics"]["version"] == 1
    (version,) = model.versions("digits")
    assert version.url.startswith(hadoop.namenode_url)
    assert version.description.lineage.run_url == result["xcoms"]["train"]["run_dir"]


@pytest.mark.variant  # of tests/unit/airflow/test_yarn_jobs.py, with a real YARN behind it
def test_yarn_application_is_submitted_once_found_again_and_ended_with_its_task(
    hadoop: Hadoop, airflow: Airflow, tmp_path: Path
) -> None:
    before = application_ids(hadoop)
    script = airflow.script("gate.py", GATE)
    dag = airflow.dag(
        f"""
        HopsMLOperator(task_id="gate", script={script!r}, profile="yarn-test", arguments=[{str(tmp_path / "go")!r}],
                       num_workers=1, poll_interval_s=0.5, deferrable=False)
        """
    )
    with airflow.started("test", *dag, RUN_AFTER) as task:
        wait_until(lambda: is_submitting(task.process.pid), lambda: task.output[-4000:], 180)
        os.kill(task.process.pid, signal.SIGTERM)
        ended = task.wait(END_S)
    assert ended.told["state"] == "failed" and ended.lines_with("killed while it started its job")
    assert set(states(hadoop, before).values()) <= {"KILLED"}, "whatever has reached YARN was ended"

    before = application_ids(hadoop)
    with airflow.started("test", *dag, RUN_AFTER) as first:
        wait_until(lambda: states(hadoop, before), lambda: first.output[-4000:], 60)
        first.kill()  # most often before spark-submit has ended: the task has not learnt the id
    with airflow.started("test", *dag, RUN_AFTER) as second:  # nor remembers anything
        second.wait_for("was started for this task and is")
        second.wait_for("it has begun")
        assert len(states(hadoop, before)) == 1
        application = application_in(second.output)
        os.kill(second.process.pid, signal.SIGTERM)
        ended = second.wait(END_S)
    assert ended.told["state"] == "failed" and ended.lines_with(f"{application} ended as KILLED")
    assert states(hadoop, before) == {application: "KILLED"}


@pytest.mark.variant  # of the operator above it, deferred
def test_trigger_follows_an_application_across_restarts(hadoop: Hadoop, airflow: Airflow, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = airflow.script("gate.py", GATE)
    conf = hadoop.spark_conf(executors=1)
    command = spark.submit_command(script, str(go), conf={**conf, "spark.yarn.submit.waitAppCompletion": "false"})
    before = application_ids(hadoop)
    subprocess.run(command, env=hadoop.submit_env(), check=True, capture_output=True, timeout=END_S)
    (application,) = application_ids(hadoop) - before
    address = hadoop.resource_manager.base.partition("://")[2]
    # Shorter than the time after which a resumed ResourceManager expires its silent nodes.
    where = {"addresses": [address], "scheme": "http", "user": "root", "timeout_s": 1.5}
    job = {"kind": "yarn", "id": application, "where": where}
    trigger = json.dumps(["hopsml.airflow.triggers.HopsMLJobTrigger", {"job": job, "poll_interval_s": 0.2}])
    with airflow.started("trigger", trigger) as first:
        first.wait_for("it has begun")
        first.kill()
    with airflow.started("trigger", trigger) as second:
        second.wait_for("it has begun")
        hadoop.kill("rm", signal_number=signal.SIGSTOP)
        second.wait_for("retrying for up to", 60)
        hadoop.revive("rm")
        go.touch()
        event = second.wait(END_S).told["event"]
    assert (event["state"], event["job"]["id"]) == ("SUCCEEDED", application)
