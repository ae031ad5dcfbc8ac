"""Tests of the GPUs of roles with other Spark settings than test_drivers.py; and with a Spark that refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.clock import END_S
from tests.integration.spark.conftest import ROOT
from tests.integration.spark.test_drivers import Driver, roles, workers_alone_hold_gpus

pytestmark = [pytest.mark.spark, pytest.mark.variant]

# Spark has executors of several kinds on clusters alone.
REFUSED = """
from pyspark import SparkConf, SparkContext
from hopsml.cluster.driver.backends.spark import SparkBackend
conf = SparkConf().setMaster("local[1]").setAppName("refused").set("spark.ui.enabled", "false")
conf.set("spark.dynamicAllocation.enabled", "true").set("spark.dynamicAllocation.shuffleTracking.enabled", "true")
context = SparkContext(conf=conf.set("spark.executor.resource.gpu.amount", "1"))
capacity = SparkBackend(context).capacity()
print("ALIKE", capacity.bare, capacity.alike)
context.stop()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    started: list[Driver] = []

    def start_one(cluster: str, **settings: str) -> Driver:
        started.append(Driver(tmp_path, cluster, gpus=1, **settings))
        return started[0]

    yield start_one
    for driver in started:
        driver.end()


@pytest.mark.parametrize("tasks", ["0", "1"])
def test_roles_hold_gpus_correctly_with_and_without_a_task_gpu_setting(
    start: Callable[..., Driver], tmp_path: Path, tasks: str
) -> None:
    driver = start("[2,2,1024]", task_resource_gpu_amount=tasks)
    workers_alone_hold_gpus(roles(driver, tmp_path / "run", servers=1, size=4))


def test_dynamic_allocation_gives_other_roles_executors_without_gpu(
    start: Callable[..., Driver], tmp_path: Path
) -> None:
    dynamic = {
        "dynamicAllocation_enabled": "true",
        "dynamicAllocation_shuffleTracking_enabled": "true",
        "dynamicAllocation_initialExecutors": "0",
        "dynamicAllocation_maxExecutors": "2",
        "executor_cores": "1",
    }
    held = roles(start("[4,1,1024]", **dynamic), tmp_path / "run", servers=1, size=4)
    workers_alone_hold_gpus(held)


def test_refusal_of_spark_is_reported_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    done = subprocess.run([sys.executable, "-c", REFUSED], cwd=ROOT, capture_output=True, text=True, timeout=END_S)
    assert "ALIKE 0 ResourceProfiles are only supported on YARN" in done.stdout, done.stdout + done.stderr[-2000:]
