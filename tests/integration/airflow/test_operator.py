"""Tests of the operators in a real Airflow, with local jobs: inputs, outputs, and recovery from kill -9."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from hopsml.airflow import local_jobs
from hopsml.airflow.jobs import Request
from hopsml.engines.local_driver import ENDED
from tests.helpers.airflow.harness import ROOT, RUN_AFTER, Airflow, wait_until

pytestmark = [pytest.mark.airflow]

QUICK = """
    import json, os, sys
    from hopsml import experiment
    with experiment.recorded("quick", args={"arguments": sys.argv[1:]}) as run:
        print("hello from", *sys.argv[1:])
        if "fail" in sys.argv:
            raise ValueError("this script fails")
        run.metrics.update(rows=3, colour=os.environ.get("COLOUR", ""))
"""

# Waits until a file exists, and records each of its starts in another one.
WAITING = """
    import os, sys, time
    from hopsml import experiment
    go, starts = sys.argv[1:]
    with open(starts, "a") as file:
        print(os.getpid(), file=file)
    with experiment.recorded("waiting") as run:
        print("it has begun", flush=True)
        while not os.path.exists(go):
            time.sleep(0.02)
        run.metrics["answer"] = 42
"""


def test_operators_pass_arguments_results_and_errors(airflow: Airflow) -> None:
    quick = airflow.script("quick.py", QUICK)
    plain = airflow.script("plain.py", 'print("noise")\nprint(\'{"loss": 0.5}\')')
    jobs = airflow.home / "project" / "Jobs"
    jobs.mkdir(parents=True)
    (jobs / "old.json").write_text(json.dumps({"appPath": quick, "profile": "local", "args": "--by config"}))
    (jobs / "forged.json").write_text(json.dumps({"appPath": quick, "profile": "local"}))
    (jobs / "forged.json").chmod(0o666)  # any user may have written it
    dag = airflow.dag(
        f"""
        common = dict(profile="local", poll_interval_s=0.1)
        forged = HopsworksLaunchOperator(task_id="forged", job_name="forged", poke_interval_s=0.1)
        first = HopsMLOperator(task_id="first", script={quick!r}, arguments=["--part", "{{{{ params.part }}}}"],
                               environment={{"COLOUR": "{{{{ dag_run.conf['colour'] }}}}"}}, params={{"part": 7}}, **common)
        second = HopsMLOperator(task_id="second", script={plain!r}, deferrable=False,
                                arguments=[first.output["run_dir"]], **common)
        failing = HopsMLOperator(task_id="failing", script={quick!r}, arguments=["fail"], **common)
        wrong = HopsMLOperator(task_id="wrong", script={quick!r}, profile="nowhere")
        seen = HopsMLRunSensor(task_id="seen", run=first.output["run_dir"], poke_interval=0.1)
        also = HopsMLRunSensor(task_id="also", run=first.output["run_dir"], poke_interval=0.1, deferrable=True)
        failed = HopsMLRunSensor(task_id="failed", run="{{{{ ti.xcom_pull('first')['run_id'] }}}}", states=["FAILED"],
                                 poke_interval=0.1)
        old = Published(task_id="old", job_name="old", poke_interval_s=0.1)
        started = HopsMLOperator(task_id="started", script={quick!r}, wait_for_completion=False, **common)
        success = PublishedSensor(task_id="success", job_name="old", poke_interval=0.1)
        first >> failed
        old >> success
        """,
        imports="from hopsworks_plugin.operators.hopsworks_operator import HopsworksLaunchOperator as Published\n"
        "from hopsworks_plugin.sensors.hopsworks_sensor import HopsworksJobSuccessSensor as PublishedSensor\n",
    )
    ended = airflow.run("test", *dag, RUN_AFTER, json.dumps({"colour": "red"}))
    result = ended.told
    states = {name: task["state"] for name, task in result["tasks"].items()}
    assert states == {
        "first": "success", "second": "success", "failing": "failed", "wrong": "failed", "seen": "success",
        "also": "success", "failed": "failed", "old": "success", "success": "success", "started": "success",
        "forged": "failed",
    }, ended.output[-4000:]  # fmt: skip

    first = result["xcoms"]["first"]
    assert first["metrics"] == {"rows": 3, "colour": "red"}
    assert first["return_value"]["state"] == "FINISHED"
    assert first["return_value"]["run_dir"] == first["run_dir"]
    assert first["run_dir"].startswith(f"file://{airflow.home}/project/Experiments/")
    assert ended.lines_with("hello from --part 7"), "the driver's log is in the task's"
    assert result["xcoms"]["second"]["metrics"] == {"loss": 0.5}
    assert result["xcoms"]["seen"]["return_value"]["metrics"] == first["metrics"]
    assert result["xcoms"]["also"]["return_value"] == result["xcoms"]["seen"]["return_value"]
    assert ended.lines_with("ended as FINISHED, but the sensor waits for FAILED")
    assert ended.lines_with("ended as FAILED: ValueError: this script fails; run directory file://")
    assert ended.lines_with("profile 'nowhere' is unknown")
    assert ended.lines_with("hello from --by config")
    assert ended.lines_with("forged.json can be written by users other than")
    assert set(result["xcoms"]["started"]["return_value"]) == {"job"}


def waiting_dag(airflow: Airflow, **more: object) -> tuple[tuple[str, str], Path, Path]:
    """Return a DAG with one task, the file its script waits for, and the file that records its starts."""
    go, starts = airflow.home / "go", airflow.home / "starts"
    script = airflow.script("waiting.py", WAITING)
    options = "".join(f", {name}={value!r}" for name, value in more.items())
    dag = airflow.dag(
        f"""
        HopsMLOperator(task_id="train", script={script!r}, profile="local", arguments=[{str(go)!r}, {str(starts)!r}],
                       poll_interval_s=0.1{options})
        """,
        imports="import datetime\n",
    )
    return dag, go, starts


@pytest.mark.variant  # of integration/airflow/test_local_jobs.py, by Airflow itself
def test_killed_task_finds_its_job_again(airflow: Airflow) -> None:
    dag, go, starts = waiting_dag(airflow, deferrable=False)
    with airflow.started("test", *dag, RUN_AFTER) as task:
        task.wait_for("it has begun")
        task.kill()
    with airflow.started("again", *dag, RUN_AFTER) as task:  # Airflow restarts, and is killed again
        task.wait_for("an earlier try started")
        task.wait_for("it has begun")
        task.kill()
    go.touch()
    wait_until(lambda: list(airflow.jobs.glob(f"*/1/{ENDED}")))
    collected = airflow.run("test", *dag, RUN_AFTER)  # without stored state: dag.test() creates a new DAG run
    assert collected.told["xcoms"]["train"]["metrics"] == {"answer": 42}
    assert collected.lines_with("was started for this task and has succeeded")
    assert len(starts.read_text().split()) == 1, "it was started once"
    assert list(airflow.jobs.glob("*/1/delivered")), "who runs the task once more wants another job"


@pytest.mark.variant  # of test_pipeline.py, which defers, of the task above, and of the trigger below
def test_deferred_task_continues_when_airflow_restarts(airflow: Airflow) -> None:
    dag, go, starts = waiting_dag(airflow)
    with airflow.started("test", *dag, RUN_AFTER) as task:
        task.wait_for("it has begun")
        task.kill()
    with airflow.started("again", *dag, RUN_AFTER) as task:
        task.wait_for("the triggerer runs hopsml.airflow.triggers.HopsMLJobTrigger")
        task.wait_for("it has begun")
        go.touch()
        result = task.wait().told
    assert (result["state"], result["xcoms"]["train"]["metrics"]) == ("success", {"answer": 42})
    assert len(starts.read_text().split()) == 1


@pytest.mark.variant  # of tests/integration/airflow/test_local_jobs.py, by Airflow itself
def test_killing_a_task_ends_its_job(airflow: Airflow) -> None:
    dag, _, starts = waiting_dag(airflow, deferrable=False)
    with airflow.started("test", *dag, RUN_AFTER) as task:
        task.wait_for("it has begun")
        os.kill(task.process.pid, signal.SIGTERM)
        ended = task.wait()
    assert ended.told["state"] == "failed"
    assert ended.lines_with("ended as KILLED")
    assert not Path(f"/proc/{starts.read_text().strip()}").exists()
    (status,) = (airflow.home / "project").glob("Experiments/*/status.json")
    assert json.loads(status.read_text())["state"] == "CANCELLED", "the run had time to say so"


@pytest.mark.variant  # of the one below: both are the trigger's end
def test_deferred_task_beyond_its_timeout_ends_its_job(airflow: Airflow) -> None:
    dag, _, starts = waiting_dag(airflow, execution_timeout=timedelta(seconds=2))
    with airflow.started("test", *dag, RUN_AFTER) as task:
        task.wait_for("it has begun")
        deferred = time.time()
        task.kill()
    wait_until(lambda: time.time() > deferred + 2)
    ended = airflow.run("again", *dag, RUN_AFTER)
    assert ended.told["state"] == "failed"
    assert ended.lines_with("TaskDeferralTimeout") and ended.lines_with("ending /")
    assert not Path(f"/proc/{starts.read_text().strip()}").exists()


def test_clearing_a_deferred_task_ends_its_job(airflow: Airflow) -> None:
    """A trigger may be run again any number of times; only a user's action ends the job it waits for."""
    starts = airflow.home / "starts"
    script = airflow.script("waiting.py", WAITING)
    request = Request("hopsml-task-x", script, "local", sys.executable, f"file://{airflow.home}/project",
                    ("/nowhere", str(starts)), environment={"PYTHONPATH": str(ROOT)}, folder=str(airflow.jobs))  # fmt: skip
    job = local_jobs.start(request).as_dict()
    trigger = json.dumps(["hopsml.airflow.triggers.HopsMLJobTrigger", {"job": job, "poll_interval_s": 0.05}])
    with airflow.started("trigger", trigger) as first:
        first.wait_for("it has begun")
        first.kill()
    with airflow.started("trigger", trigger) as second:
        second.wait_for("it has begun")
        assert airflow.run("on-kill", trigger).told == {}
        event = second.wait().told["event"]
    assert (event["state"], event["job"]) == ("KILLED", job)
    assert not Path(f"/proc/{starts.read_text().strip()}").exists()


def test_airflow_lists_the_provider(airflow: Airflow) -> None:
    info = airflow.run("providers").told["info"]
    assert info["package-name"] == "hopsml-spark"
    assert "hopsml.airflow.operators" in info["operators"][0]["python-modules"]
