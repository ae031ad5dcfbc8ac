"""Tests of the detection, from Spark's messages, of executors that were granted and never registered."""

from __future__ import annotations

import sys

import pytest

from hopsml.cluster.driver.backends.base import FAILED_AT_LAUNCH
from hopsml.cluster.driver.backends.spark_executors import (
    Launches,
    driver_addresses,
    job_failure,
    parse,
    why_no_executor,
)
from hopsml.cluster.driver.run_state import RunState
from hopsml.cluster.driver.run_texts import error_of
from hopsml.cluster.gang.events import ConcludeRun, Phase
from hopsml.core import profiles

pytestmark = pytest.mark.fast

ADDRESS = "10.0.0.9:7078"
STANDALONE = """Executor added: app-1/0 on worker-20261128-10.0.0.5-40355 (10.0.0.5:40355) with 1 core(s)
Executor updated: app-1/0 is now RUNNING
Executor added: app-1/1 on worker-20261128-10.0.0.6-40356 (10.0.0.6:40356) with 1 core(s)
Executor updated: app-1/0 is now EXITED (Command exited with code 1)
Executor updated: app-1/1 is now RUNNING
"""
YARN = """Requesting driver to remove executor 3 for reason Container from a bad node: container_1 on n5. Exit status: 1.
[2026-11-28 10:00:00]Container exited with a non-zero exit code 1.
Last 4096 bytes of stderr :
Caused by: java.io.IOException: Failed to connect to /10.0.0.9:7078
"""


def test_executors_of_a_standalone_cluster_are_distinguished() -> None:
    found = parse(STANDALONE)
    assert found == Launches({"app-1/0": "10.0.0.5", "app-1/1": "10.0.0.6"}, {"app-1/0": "Command exited with code 1"})
    text = why_no_executor(found, None, ADDRESS, ["java.net.ConnectException: refused"])
    assert text.startswith(
        "Spark was granted 2 executors, of which none has registered with the driver; 1 of them ended: Command exited with "
        "code 1; its last lines:\n    java.net.ConnectException: refused\nAn executor must reach the driver at 10.0.0.9:7078"
    )


def test_reason_of_a_failed_yarn_container_includes_its_last_log_lines() -> None:
    text = why_no_executor(parse(YARN), 0, ADDRESS)
    assert "granted 1 executor, of which none has registered" in text and "Exit status: 1.; its last lines:" in text
    assert "\n    Caused by: java.io.IOException: Failed to connect to /10.0.0.9:7078\n" in text


def test_containers_without_executors_are_explained_by_an_unreachable_driver() -> None:
    text = why_no_executor(Launches(), 2, ADDRESS)
    assert text.startswith(
        "Spark was granted 2 executors, of which none has registered with the driver. An executor must"
    )
    settings = ("10.0.0.9:7078", "SPARK_LOCAL_IP", "spark.driver.host", "spark.driver.port", "spark.blockManager.port")
    assert all(word in text for word in settings)


def test_cluster_that_granted_no_executor_is_reported_as_full() -> None:
    text = why_no_executor(Launches(), 0, ADDRESS)
    assert text.startswith("Spark has granted no executor: the cluster is full") and ADDRESS not in text


def test_both_causes_are_named_if_the_number_of_granted_executors_is_unknown() -> None:
    text = why_no_executor(Launches(), None, ADDRESS)
    assert "the cluster is full" in text and "cannot reach the driver" in text and ADDRESS in text


def test_error_about_failed_executors_does_not_suggest_a_new_session() -> None:
    reason = f"{FAILED_AT_LAUNCH}: {why_no_executor(parse(YARN), None, ADDRESS)}"
    outcome = ConcludeRun(Phase.FAILED, "application", reason)
    text = str(error_of(outcome, RunState("app_1", 1), "file:///runs/app_1", None, "", ""))
    assert "could not be launched" in text and "Failed to connect to" in text and "new Spark session" not in text


@pytest.mark.parametrize(
    "text",
    [
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: (3, 10) than that in driver: 3.12, PySpark",
        "Exception: Python in worker has different version 3.10 than that in driver 3.12, PySpark cannot run with",
    ],
    ids=["Spark 4", "Spark 3"],
)
def test_different_python_of_the_executors_is_named_with_the_remedy(text: str) -> None:
    found = job_failure(RuntimeError(f"Job aborted\n  {text}\n  at org.apache.spark"))
    assert found.startswith(
        "the executors have Python 3.10, the driver has Python 3.12; set PYSPARK_PYTHON to a Python 3.12"
    )


def test_ipv6_address_of_a_driver_is_announced_without_brackets() -> None:
    def addresses(**settings: str) -> tuple[str, str]:
        known = {f"spark.driver.{name}": value for name, value in settings.items()}
        return driver_addresses(known.get)

    assert addresses(host="[fd00::5]") == ("fd00::5", "fd00::5")
    assert addresses(host="[fd00::5]", bindAddress="[::]") == ("::", "fd00::5")
    assert addresses(host="node1", bindAddress="0.0.0.0") == ("0.0.0.0", "node1")


@pytest.mark.parametrize(
    ("given", "expected"), [("fd00::5", "[fd00::5]"), ("[fd00::5]", "[fd00::5]"), ("10.0.0.5", "10.0.0.5")]
)
def test_profile_adds_brackets_to_an_ipv6_address_of_the_driver(given: str, expected: str) -> None:
    keys = ("spark.driver.host", "spark.driver.bindAddress")
    text = "\n".join(["master: yarn", "spark:", *(f"  {key}: '{given}'" for key in keys)])
    assert profiles.parse("mine", text, "mine.yaml").spark == dict.fromkeys(keys, expected)


def test_executor_python_without_hopsml_is_named_with_remedy() -> None:
    error = RuntimeError(
        "Job aborted\n  Traceback\n  ModuleNotFoundError: No module named 'hopsml'\n  at org.apache.spark"
    )
    found = job_failure(error, "python3")
    assert found.startswith(
        "the executors' Python (python3) cannot start an agent: ModuleNotFoundError: No module named 'h"
    )
    assert "before the Spark session is created, set PYSPARK_PYTHON" in found and sys.executable in found
