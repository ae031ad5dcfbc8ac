"""Fixture of one Spark application for all tests of this folder: two executors of two slots (``local-cluster``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.clock import END_S

ROOT = Path(__file__).parents[3]


# Of the contract that tests/integration/cluster/test_backends.py shows on local agents, what Spark itself has a part in.
ON_SPARK = (
    "test_result_values_are_returned_and_recorded",
    "test_failed_worker_is_named_and_the_others_are_ended[exception",
    "test_killed_agent_ends_the_run_and_the_next_run_works",
    "test_more_workers_than_slots_are_refused_at_once",
    "test_two_runs_execute_concurrently",
    "test_idle_agents_are_released",
    "test_warm_agents_serve_the_next_run",
    "test_cancel_ends_a_run",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The rest of the contract is for `make test-all`."""
    for item in items:
        if item.path.name == "test_backends_spark.py" and not item.name.startswith(ON_SPARK):
            item.add_marker(pytest.mark.variant)


@contextmanager
def spark_environment() -> Iterator[pytest.MonkeyPatch]:
    """Set the environment of a Spark context whose executors import this source tree; undone at the end."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(ROOT))
        environment.setenv("HOPSML_CONF_DIR", str(ROOT / "conf"))
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        for name in ("HOPSML_PROFILE", "TF_CONFIG", "CUDA_VISIBLE_DEVICES", "PYSPARK_GATEWAY_PORT"):
            environment.delenv(name, raising=False)
        yield environment


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The SparkContext that the first run creates, as a user's does."""
    from hopsml import experiment

    with spark_environment() as environment:
        environment.setenv("SPARK_WORKER_DIR", str(tmp_path_factory.mktemp("executors")))
        environment.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path_factory.mktemp('first')}")
        from pyspark import SparkContext

        def look() -> list[str]:
            import hopsml

            return [hopsml.__file__]

        try:
            result = experiment.submit(look, profile="local-cluster", progress=False).result(END_S)
            assert Path(result.value[0]).is_relative_to(ROOT)
            assert len(result.workers) == 4  # one for each slot of two executors
            experiment.shutdown()
            yield SparkContext._active_spark_context
        finally:
            experiment.shutdown()
            end_spark()


def end_spark() -> None:
    """Stop the context and its JVM, which would live as long as this process."""
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(END_S)


@pytest.fixture
def store(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new project folder for each test; the application's agents are released after it."""
    from hopsml import experiment

    project = tmp_path / "project"
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{project}")
    yield project
    experiment.shutdown()
    assert not [name for name in ("TF_CONFIG", "CUDA_VISIBLE_DEVICES") if name in os.environ]
