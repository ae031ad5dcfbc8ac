"""Tests of Spark's settings that copy, repeat or exclude tasks, and of its shuffle services, on YARN.

The NodeManagers have the external shuffle service of tools/hadoop/shuffle_service.py, in which Spark merges pushed blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.clock import END_S
from tests.integration.spark.test_spark_settings import EAGER, JOB, LOSSES, started_tasks
from tests.integration.yarn.conftest import Hadoop
from tests.integration.yarn.test_job_service import own_cluster
from tools.hadoop.ports import free_ports
from tools.hadoop.settings import Shape

pytestmark = [pytest.mark.hadoop]

SERVICE = {"spark.shuffle.service.enabled": "true"}
PUSH = {
    **SERVICE,
    "spark.shuffle.push.enabled": "true",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",  # Spark pushes no blocks of Java's serializer
    "spark.shuffle.push.mergersMinStaticThreshold": "1",  # five hosts by default
    "spark.shuffle.push.minShuffleSizeToWait": "1b",  # of smaller shuffles, Spark does not wait for merged blocks
}
NODE_MB = 2304  # an executor (1024 + 384) and a master (512 + 384): Spark copies a task to another host only
DYNAMIC = {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "3"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Hadoop]:
    (port,) = free_ports(1, "127.0.0.11")
    shape = Shape(datanodes=1, nodemanagers=3, gpus=0, memory_mb=NODE_MB, node_expiry_ms=60_000, shuffle_port=port)
    with own_cluster("settings", shape) as found:
        yield found


def play(
    cluster: Hadoop, folder: Path, settings: dict[str, str], *plays: str, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """Run these plays of ``losses.py`` in an application of three executors, and return the events of its log."""
    (folder / "events").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(JOB.parents[4]))
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{folder}/project")
    log = {"enabled": "true", "dir": f"file://{folder}/events", "compress": "false", "rolling.enabled": "false"}
    conf = cluster.spark_conf(executors=3, memory="1g") | {"spark.yarn.am.memory": "512m"}
    conf |= {f"spark.eventLog.{key}": value for key, value in log.items()} | settings
    done = cluster.submit(JOB, str(folder / "plays"), *plays, conf=conf, deploy_mode="client", timeout_s=END_S)
    assert (done.returncode, done.state.final_status) == (0, "SUCCEEDED"), done.output[-4000:]
    assert done.output.count("held: ") == len(plays), done.output
    (events,) = (folder / "events").iterdir()
    return [json.loads(line) for line in events.read_text().splitlines()]


def merged_blocks(events: list[dict[str, Any]]) -> int:
    """Count blocks that Spark's tasks have read after a shuffle service had merged them."""
    measured = [event["Task Metrics"] for event in events if "Task Metrics" in event]  # a lost task has none
    pushed = [metrics["Shuffle Read Metrics"]["Push Based Shuffle"] for metrics in measured]
    return sum(each["Merged Local Blocks Fetched"] + each["Merged Remote Blocks Fetched"] for each in pushed)


def test_push_based_shuffle_and_speculation_double_no_agent(
    cluster: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = play(cluster, tmp_path, PUSH | EAGER, *LOSSES, "shuffle", "remain_uncopied", monkeypatch=monkeypatch)
    count, doubled, copies = started_tasks(tmp_path)
    assert count >= 4 and not doubled and copies >= 1
    assert merged_blocks(events) > 0


@pytest.mark.variant
@pytest.mark.parametrize(
    "settings",
    [
        {"spark.task.maxFailures": "1"},
        {"spark.stage.maxConsecutiveAttempts": "1"},
        {"spark.python.worker.reuse": "false"},
        {**DYNAMIC, **SERVICE},
        {
            **DYNAMIC,
            "spark.dynamicAllocation.shuffleTracking.enabled": "true",
            "spark.shuffle.service.enabled": "false",
        },
    ],
    ids=["maxFailures", "maxConsecutiveAttempts", "worker.reuse", "dynamic-service", "dynamic-tracking"],
)
def test_lost_process_affects_no_other_agent_on_yarn(
    cluster: Hadoop, tmp_path: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = play(cluster, tmp_path, settings, *LOSSES, "shuffle", "remain", monkeypatch=monkeypatch)
    count, doubled, copies = started_tasks(tmp_path)
    assert count >= 4 and not doubled and not copies and not merged_blocks(events)


@pytest.mark.variant
@pytest.mark.parametrize("kill", ["false", "true"])
def test_excluded_executors_are_replaced_or_not_used(
    cluster: Hadoop, tmp_path: Path, kill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two excluded executors, one has been killed in any case, with its agent."""
    settings = {
        "spark.excludeOnFailure.enabled": "true",
        "spark.excludeOnFailure.killExcludedExecutors": kill,
        "spark.excludeOnFailure.application.maxFailedTasksPerExecutor": "1",
        "spark.excludeOnFailure.application.maxFailedExecutorsPerNode": "9",  # both nodes stay in use
    }
    events = play(cluster, tmp_path, settings, *LOSSES, "remain", monkeypatch=monkeypatch)
    count, doubled, copies = started_tasks(tmp_path)
    assert count >= 4 and not doubled and not copies
    excluded = {event["executorId"] for event in events if event["Event"].endswith(".SparkListenerExecutorExcluded")}
    removed = {event["Executor ID"] for event in events if event["Event"] == "SparkListenerExecutorRemoved"}
    assert len(excluded) >= 2 and (excluded <= removed) == (kill == "true")
