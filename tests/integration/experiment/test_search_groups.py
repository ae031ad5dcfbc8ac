"""Tests of trials that are distributed trainings, on local agents without TensorFlow."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import hopsml
from hopsml import experiment

pytestmark = pytest.mark.local


def folder(result: Any) -> Path:
    return Path(result.run_dir.removeprefix("file://"))


def test_distributed_trial_has_its_own_group_folder_and_ranks(store: Path, tmp_path: Path) -> None:
    def train(x: int, notes: str) -> dict[str, float]:
        config = json.loads(os.environ["TF_CONFIG"])
        members = sum(len(addresses) for addresses in config["cluster"].values())
        Path(notes, f"{x}-{config['task']['type']}-{config['task']['index']}").write_text(str(members))
        for step in range(3):
            hopsml.report(step=step, accuracy=x * step)
        trial = hopsml.trial()
        assert trial is not None and trial.config == {"x": x}
        return {"accuracy": float(x)}

    result = experiment.search(
        train, {"x": ("DISCRETE", [1, 2, 3])}, searcher="grid", num_trials=None, metric="accuracy", progress=False,
        workers_per_trial=lambda config: 1 if config["x"] == 1 else 2, args={"notes": str(tmp_path)},
    )  # fmt: skip
    assert result.value == 3 and result.counts["completed"] == 3
    sizes = {path.name: path.read_text() for path in tmp_path.iterdir() if path.name[0].isdigit()}
    assert sizes == {"1-chief-0": "1", "2-chief-0": "2", "2-worker-0": "2", "3-chief-0": "2", "3-worker-0": "2"}
    assert len(list(folder(result).parent.iterdir())) == 1  # no run directories except that of the search
    for row in result.rows:
        left = folder(result) / "trials" / row["trial_id"]
        assert json.loads((left / "trial.json").read_text())["step_history"] == [0, 1, 2]
        assert json.loads((left / ".hparams.json").read_text()) == row["config"]
        assert json.loads((left / ".outputs.json").read_text())["accuracy"] == row["value"]
        assert json.loads((left / "status.json").read_text())["state"] == "FINISHED"
    assert json.loads((folder(result) / "status.json").read_text())["state"] == "FINISHED"
    assert result.curves[result.best.number] == [(0, 0.0), (1, 3.0), (2, 6.0)]


def test_stopped_trial_ends_its_group_and_a_failed_one_not_the_search(store: Path) -> None:
    def train(level: int) -> float:
        if level == 4:
            raise ValueError("level 4 is forbidden")
        for step in range(400):
            hopsml.report(step=step, metric=level)
            time.sleep(0.005)
            if level >= 8 and step == 10:
                break
        return float(level)

    result = experiment.search(
        train, {"level": ("DISCRETE", [9, 8, 4, 1])}, searcher="grid", stopper="median", num_trials=None, progress=False,
        workers_per_trial=2, max_executors=2, retries=0, stopper_args={"min_trials": 2}, patience=5.0,
    )  # fmt: skip
    states = {row["config"]["level"]: row["state"] for row in result.rows}
    assert states == {9: "completed", 8: "completed", 4: "failed", 1: "stopped"} and result.value == 9
    errors = {row["config"]["level"]: row["error"] for row in result.rows}
    assert "level 4 is forbidden" in errors[4] and not errors[1]


@pytest.mark.variant
@pytest.mark.parametrize("workers", [1, 2], ids=["lanes", "groups"])
def test_last_report_is_the_value_of_a_function_without_result(store: Path, workers: int) -> None:
    def train(x: int) -> None:
        hopsml.report(step=1, accuracy=float(x))
        hopsml.report(step=2, accuracy=x / 2)

    result = experiment.search(
        train, {"x": ("DISCRETE", [1, 2])}, searcher="grid", num_trials=None, metric="accuracy", progress=False,
        workers_per_trial=workers, retries=0,
    )  # fmt: skip
    assert [(row["value"], row["error"]) for row in result.rows] == [(0.5, ""), (1.0, "")]
    assert result.metrics["accuracy"] == result.value == 1.0


def test_promoted_trial_grows_to_more_workers(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running training grows past the step, in the middle; before it, it has what it began with."""

    def train(x: int) -> dict[str, int]:
        state = hopsml.elastic.State(sizes=[])
        for _ in state.resume(hopsml.elastic.Sampler(4000, 4)):
            size = hopsml.distributed.world_size()
            state.sizes = sorted({*state.sizes, size})
            if state.batches <= 40 or size < 4:
                hopsml.report(step=state.batches, metric=1.0)
                time.sleep(0.02)
            state.commit()
        return {"metric": 1, "first": state.sizes[0], "last": state.sizes[-1]}

    monkeypatch.setenv("HOPSML_LOCAL_SLOTS", "4")
    result = experiment.search(
        train, {"x": ("DISCRETE", [1])}, searcher="grid", num_trials=None, progress=False, workers_per_trial=2,
        promoted_workers={20: 4},
    )  # fmt: skip
    assert (result.metrics["first"], result.metrics["last"]) == (2, 4)
