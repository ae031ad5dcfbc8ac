"""Tests of searches on real Spark executors: both call forms, and a killed executor and driver."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.integration.experiment.test_search_killed import journal_ends
from tests.integration.spark.test_drivers import Driver
from tests.integration.spark.test_trouble import executor_of

pytestmark = pytest.mark.spark


def test_grid_search_on_executors_returns_the_best_combination(store: Path) -> None:
    def train(a: int, b: int) -> dict[str, Any]:
        return {"accuracy": a * b, "application": "hopsml"}

    best_dir, config, outputs = experiment.grid_search(
        train, {"a": [1, 2, 3], "b": [5, 7]}, direction="max", optimization_key="accuracy", progress=False, keep_warm=60
    )
    assert config == {"a": 3, "b": 7} and outputs["accuracy"] == 21 and best_dir.endswith("/a=3&b=7/events")
    root = Path(best_dir.removeprefix("file://")).parents[1]
    assert len(json.loads((root / ".summary.json").read_text())["combinations"]) == 6
    assert root.name.startswith("app-")  # ML_ID: the application and a number


@pytest.mark.variant
def test_trials_can_be_distributed_tensorflow_trainings(store: Path) -> None:
    def train(rate: float) -> dict[str, Any]:
        import tensorflow as tf

        import hopsml

        strategy = hopsml.tensorflow.strategy()
        with strategy.scope():
            weight = tf.Variable(0.0)

        def step() -> Any:
            mean = tf.distribute.get_replica_context().all_reduce("MEAN", tf.constant(1.0))
            weight.assign_add(rate * mean)
            return weight.read_value()

        for number in range(5):
            value = float(strategy.reduce("MEAN", strategy.run(tf.function(step)), axis=None))
            hopsml.report(step=number, height=value)
        return {"height": value, "replicas": strategy.num_replicas_in_sync}

    result = experiment.search(
        train, {"rate": ("DISCRETE", [0.1, 0.2, 0.3])}, searcher="grid", num_trials=None, workers_per_trial=2,
        metric="height", progress=False, keep_warm=60,
    )  # fmt: skip
    assert result.counts["completed"] == 3 and result.value == pytest.approx(1.5)
    for row in result.rows:
        left = Path(result.run_dir.removeprefix("file://")) / "trials" / row["trial_id"]
        assert json.loads((left / ".outputs.json").read_text())["replicas"] == 2


def test_search_completes_although_an_executor_is_killed(store: Path, tmp_path: Path) -> None:
    def train(x: int, folder: str) -> float:
        Path(folder, f"began-{x}-{os.getpid()}").touch()
        time.sleep(0.3)
        return float(x)

    run = experiment.submit_search(
        train, {"x": ("DISCRETE", list(range(16)))}, searcher="grid", num_trials=None, args={"folder": str(tmp_path)},
        progress=False, retries=0, keep_warm=60,
    )  # fmt: skip
    mark = wait_until(lambda: next(tmp_path.glob("began-4-*"), None), "the fifth trial to begin", 60)
    os.kill(executor_of(int(mark.name.split("-")[2])), signal.SIGKILL)
    result = run.result(END_S)
    assert result.counts["completed"] == 16 and result.value == 15.0
    assert sum(row["lost"] for row in result.rows) >= 1  # lost trials ran again, and made no other trial fail


@pytest.mark.variant  # of tests/integration/experiment/test_search_killed.py, on executors
def test_search_continues_in_another_session_after_its_driver_was_killed(store: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    folder = tmp_path / "first"
    folder.mkdir()
    driver = Driver(folder)
    try:
        driver.say("search", folder=str(notes))
        ended = notes / "ended"
        wait_until(lambda: ended.exists() and len(ended.read_text().split()) >= 5, "five trials to end", 90)
        driver.process.kill()
        driver.process.wait()
    finally:
        driver.end()
    (root,) = (folder / "project" / "Experiments").iterdir()
    reported = {row["number"]: row["value"] for row in journal_ends(root)}
    result = experiment.continue_search(f"file://{root}", progress=False)
    assert result.counts["completed"] == 12 and result.value == 11.0
    rows = {row["number"]: row for row in result.rows}
    times = Counter(map(int, ended.read_text().split()))
    assert len(reported) >= 3 and set(times) == set(range(12))
    for number, value in reported.items():  # no reported result is lost, and no reported trial ran again
        assert rows[number]["value"] == value and times[rows[number]["config"]["x"]] == 1
    assert json.loads((root / "status.json").read_text())["state"] == "FINISHED"
