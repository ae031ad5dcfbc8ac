"""Tests of replacements of lost agents: when Spark is requested to start one, and how long it tries to connect."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from hopsml.cluster.agent import network
from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.backends.spark_task import (
    max_task_failures,
    needs_own_job,
    why_executor_lost,
    why_settings_refused,
)
from hopsml.cluster.shared import tls

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("master", "settings", "most"),
    [
        ("yarn", {}, 4),
        ("local-cluster[2,1,1024]", {"spark.task.maxFailures": "2"}, 2),
        ("spark://there:7077", {"spark.task.maxFailures": "1"}, 1),
        ("yarn", {"spark.excludeOnFailure.enabled": "true"}, 1),
        ("local", {"spark.task.maxFailures": "8"}, 1),
        ("local[*]", {"spark.task.maxFailures": "8"}, 1),
        ("local[4, 3]", {}, 3),
        ("local[*,2]", {}, 2),
    ],
)
def test_spark_task_may_fail_as_often_as_the_master_and_settings_allow(
    master: str, settings: Mapping[str, str], most: int
) -> None:
    assert max_task_failures(master, lambda key, default: settings.get(key, default)) == most


@pytest.mark.parametrize(
    ("master", "settings", "alone"),
    [
        ("yarn", {}, False),
        ("yarn", {"spark.speculation": "false", "spark.speculation.task.duration.threshold": "1s"}, False),
        ("yarn", {"spark.speculation": "true"}, True),
        ("local-cluster[2,1,1024]", {"spark.task.maxFailures": "1"}, True),
        ("spark://there:7077", {"spark.excludeOnFailure.enabled": "true"}, True),
        ("spark://there:7077", {"spark.excludeOnFailure.taskAndStage.enabled": "TRUE"}, True),
        ("yarn", {"spark.stage.maxConsecutiveAttempts": "1", "spark.python.worker.reuse": "false"}, False),
    ],
)
def test_agent_gets_its_own_job_if_spark_would_copy_it_or_end_others(
    master: str, settings: Mapping[str, str], alone: bool
) -> None:
    def setting(key: str, default: str) -> str:
        return settings.get(key, default)

    assert needs_own_job(max_task_failures(master, setting), setting) == alone
    assert not why_settings_refused(setting)


def test_speculation_threshold_is_refused_with_its_name() -> None:
    settings = {"spark.speculation": "true", "spark.speculation.task.duration.threshold": "30min"}
    text = why_settings_refused(lambda key, default: settings.get(key, default))
    assert "second copy of each agent" in text and "Remove spark.speculation.task.duration.threshold" in text


LOST = "ExecutorLostFailure (executor 2 exited {caused} by one of the running tasks) Reason: {reason}"


@pytest.mark.parametrize(
    ("reason", "status", "remedy"),
    [
        ("Container killed by YARN for exceeding physical memory limits. 1.5 GB of 1.5 GB physical memory used. Consider "
         "boosting spark.executor.memoryOverhead.", -104, "raise spark.executor.memoryOverhead"),
        ("Container killed by YARN for exceeding virtual memory limits. 3.2 GB of 3.1 GB virtual memory used.", -103,
         "yarn.nodemanager.vmem-check-enabled"),
        ("Container container_e01_1_0001_01_000002 on host: node3 was preempted.", -102, "YARN preempted the container"),
        ("Container from a bad node: container_1 on host: node3. Exit status: 137. Diagnostics: [2026-11-28 10:00:00.000]"
         "Container killed on request. Exit code is 137\n", 137, "SIGKILL, sent by the kernel for lack of memory"),
        ("Container from a bad node: container_1 on host: node3. Exit status: 143. Diagnostics: ...", 143, "SIGTERM, sent"),
        ("Command exited with code 137", 137, "SIGKILL, sent by the kernel for lack of memory"),
    ],
)  # fmt: skip
def test_lost_executor_is_explained_by_its_exit_status_with_a_remedy(reason: str, status: int, remedy: str) -> None:
    text = why_executor_lost(LOST.format(caused="caused", reason=reason))
    assert text.startswith("Spark reports for executor 2: ") and reason[:60] in text
    assert f"(exit status {status}: " in text and remedy in text


def test_guessed_reasons_of_spark_are_left_out_of_the_explanation() -> None:
    guess = "Remote RPC client disassociated. Likely due to containers exceeding thresholds, or network issues."
    text = why_executor_lost(LOST.format(caused="unrelated to the running tasks", reason=guess))
    assert text == "Spark lost executor 2 without a reason: Remote RPC client disassociated"
    unknown = why_executor_lost(LOST.format(caused="caused", reason="Command exited with code 52"))
    assert unknown == "Spark reports for executor 2: Command exited with code 52"
    crashed = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat org.apache"
    assert why_executor_lost(crashed) == "Spark reports that its Python process crashed; its executor is running"
    assert why_executor_lost("TaskKilled (its agent does not answer)") == ""


def connect(timeout_s: float) -> object:
    return asyncio.run(network.connect(Bootstrap(1, (), "", "", (), 10.0, ()), timeout_s, lambda: None))


def test_replacement_agent_retries_until_the_coordinator_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    async def refused_twice(*_: object) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("no address of the coordinator answers")
        return "connected"

    monkeypatch.setattr(tls, "connect", refused_twice)
    monkeypatch.setattr(network, "AGAIN_PAUSE_S", 0.001)
    assert connect(timeout_s=60.0) == "connected"
    tries.clear()
    with pytest.raises(ConnectionError):
        connect(timeout_s=0.0)
    assert len(tries) == 1
