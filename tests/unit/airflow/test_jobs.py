"""Tests of the first action of a task, by its stored state and the jobs it finds; of tags, results and outages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hopsml.airflow import jobs
from hopsml.airflow.jobs import (
    LIMIT_S,
    Job,
    KnownJob,
    OutageTolerance,
    TaskStep,
    decide_first_step,
    ignored_key_messages,
)
from hopsml.core.profiles import Profile
from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError, ClusterUnavailable
from hopsml.storage import run_dir


def test_outage_is_logged_at_start_and_end_and_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    now, logged = [100.0], list[str]()
    monkeypatch.setattr(jobs.time, "monotonic", lambda: now[0])
    waiting = OutageTolerance(lambda text, *values: logged.append(text % values))
    error = ClusterUnavailable("no ResourceManager answers")
    for _ in range(2):
        for _ in range(100):
            now[0] += 5.0
            waiting.record_outage(error)
        waiting.record_answer()
        waiting.record_answer()
    assert (
        logged == ["no ResourceManager answers; retrying for up to 900 s", "the cluster answers again after 500 s"] * 2
    )
    now[0] += LIMIT_S
    waiting.record_outage(error)
    now[0] += 1.0
    with pytest.raises(ClusterUnavailable):
        waiting.record_outage(error)


def test_configuration_keys_without_effect_are_named_with_a_replacement() -> None:
    known = {
        "appPath": "/jobs/train.py",
        "args": "--x 1",
        "profile": "yarn",
        "appName": "n",
        "spark.executor.memory": "1g",
    }
    assert ignored_key_messages(known, "train") == []
    strange = {"distributionStrategy": "COLLECTIVE_ALL_REDUCE", "spark.tensorflow.num.ps": 1, "amMemory": 2048}
    first, second, third = ignored_key_messages({**known, **strange}, "train")
    assert first.startswith(
        "job 'train': distributionStrategy='COLLECTIVE_ALL_REDUCE' has no effect: the script chooses"
    )
    assert "spark.tensorflow.num.ps=1 has no effect" in second
    assert third.endswith("amMemory=2048 has no effect: set spark.driver.memory instead")


pytestmark = pytest.mark.fast

ONE, TWO = Job("yarn", "application_1_0001"), Job("yarn", "application_1_0002")


@pytest.mark.parametrize("state", [Lifecycle.STARTING, Lifecycle.RUNNING])
def test_stored_active_job_is_followed(state):
    assert decide_first_step((ONE, state), [], [KnownJob(ONE, state, False)])[:2] == (TaskStep.FOLLOW, ONE)


def test_stored_job_that_succeeded_is_collected():
    assert decide_first_step((ONE, Lifecycle.FINISHED), [], [KnownJob(ONE, Lifecycle.FINISHED, True)])[:2] == (
        TaskStep.COLLECT,
        ONE,
    )


@pytest.mark.parametrize("state", [Lifecycle.FAILED, Lifecycle.STOPPED, Lifecycle.LOST])
def test_new_job_is_started_after_a_stored_failed_one(state):
    assert decide_first_step((ONE, state), [], [KnownJob(ONE, state, False)])[:2] == (TaskStep.START, None)


def test_cleared_task_with_a_delivered_result_starts_again():
    found = [KnownJob(ONE, Lifecycle.FINISHED, True)]
    assert decide_first_step((ONE, Lifecycle.FINISHED), [ONE.id], found)[0] is TaskStep.START


def test_started_but_unstored_job_is_found_by_its_tag():
    assert decide_first_step(
        None, [], [KnownJob(TWO, Lifecycle.RUNNING, False), KnownJob(ONE, Lifecycle.FAILED, False)]
    )[:2] == (
        TaskStep.FOLLOW,
        TWO,
    )
    assert decide_first_step(None, [], [KnownJob(TWO, Lifecycle.FINISHED, False)])[:2] == (TaskStep.COLLECT, TWO)


def test_delivered_result_is_not_collected_again_without_stored_state():
    assert decide_first_step(None, [], [KnownJob(ONE, Lifecycle.FINISHED, True)])[0] is TaskStep.START


def test_older_success_does_not_hide_a_newer_failure():
    found = [KnownJob(TWO, Lifecycle.FAILED, False), KnownJob(ONE, Lifecycle.FINISHED, False)]
    assert decide_first_step(None, [], found)[0] is TaskStep.START


def test_active_job_is_never_started_twice():
    found = [KnownJob(TWO, Lifecycle.RUNNING, False), KnownJob(ONE, Lifecycle.FAILED, False)]
    assert decide_first_step((ONE, Lifecycle.FAILED), [], found)[:2] == (TaskStep.FOLLOW, TWO)


def test_job_tag_is_unique_per_task_instance_and_valid_for_yarn():
    first = jobs.tag_of("Dag", "scheduled__2026-11-21T00:00:00+00:00", "Train")
    assert first == jobs.tag_of("Dag", "scheduled__2026-11-21T00:00:00+00:00", "Train")
    others = {jobs.tag_of("Dag", "r", "Train"), jobs.tag_of("Dag", "r", "Train", 3), jobs.tag_of("DagT", "r", "rain")}
    assert len(others | {first}) == 4
    assert re.fullmatch(r"[a-z0-9-]{1,100}", first), "YARN refuses long tags and folds capitals"


@pytest.mark.parametrize(
    ("master", "deploy_mode", "kind"),
    [
        ("yarn", "cluster", "yarn"),
        ("yarn", "client", "local"),
        ("none", "client", "local"),
        ("local[2]", "client", "local"),
    ],
)
def test_job_kind_follows_from_master_and_deploy_mode(master, deploy_mode, kind):
    assert jobs.kind_of(Profile("x", master, deploy_mode)) == kind


def test_job_survives_json():
    job = Job("yarn", "application_1_0001", {"scheme": "http", "addresses": ["127.0.0.1:8088"]})
    assert Job.from_dict(json.loads(json.dumps(job.as_dict()))) == job
    with pytest.raises(ArgumentError, match="kind, id and where"):
        Job.from_dict({"id": "application_1_0001"})
    with pytest.raises(ArgumentError, match="the known kinds are yarn, local"):
        jobs.jobs_of_kind("slurm")


def write(path: Path, **content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_result_is_that_of_the_announced_run_of_this_application(tmp_path):
    run = tmp_path / "Experiments" / "app_1"
    write(run / "run.json", name="x")
    write(run / "status.json", state="FINISHED", error="")
    write(run / ".outputs.json", accuracy=0.9, log="file:///x")
    record = f"file://{tmp_path}/record.json"
    assert jobs.result_of_record(record) == {}
    run_dir.write_job_record(record, {"run_dir": str(run), "application": "application_1_0001"})
    left = jobs.result_of_record(record, "application_1_0001")
    assert (left["run_dir"], left["state"], left["metrics"]) == (str(run), "FINISHED", {"accuracy": 0.9})
    assert jobs.result_of_record(record, "application_1_0002") == {}, "an earlier try's run is not this one's"


@pytest.mark.parametrize(
    ("text", "metrics"),
    [('noise\n{"rows": 3}\n', {"rows": 3}), ("noise\n", {}), ("", {}), ('{"a": 1}\nthe end', {}), ("[1, 2]\n", {})],
)
def test_metrics_of_a_script_without_a_run_are_its_last_line(text, metrics):
    assert jobs.metrics_of_log(text) == metrics


def test_ended_run_is_returned_only_after_its_end(tmp_path):
    project, run = f"file://{tmp_path}", tmp_path / "Experiments" / "app_1"
    assert jobs.result_if_ended("app_1", project) is None
    write(run / "run.json", name="x")
    assert jobs.result_if_ended("app_1", project) is None
    write(run / "status.json", state="FAILED", error="rank 1")
    ended = jobs.result_if_ended("app_1", project)
    assert ended is not None and (ended["state"], ended["error"]) == ("FAILED", "rank 1")
    assert jobs.result_if_ended(f"{project}/Experiments/app_1", "file:///elsewhere") == ended


def test_state_that_is_not_final_is_refused():
    with pytest.raises(ArgumentError, match="'RUNNING' is not a final state of a run"):
        jobs.checked_states("states", ["FINISHED", "RUNNING"])
