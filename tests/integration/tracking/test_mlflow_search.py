"""Test of a search in a real MLflow server: each trial is a child run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.tracking.mlflow_server import MlflowServer
from tests.integration.tracking.test_mlflow import history, name_of, runs_of, tracked

pytestmark = pytest.mark.mlflow
__all__ = ["tracked"]


def train(lr: float) -> dict[str, float]:
    import hopsml

    if lr == 0.5:
        raise ValueError("too fast")
    for step in (1, 2):
        hopsml.report(step=step, accuracy=lr * step)
    return {"accuracy": lr * 2}


@pytest.mark.variant
@pytest.mark.parametrize(
    "workers", [pytest.param(1, id="lanes"), pytest.param(2, id="groups", marks=pytest.mark.variant)]
)
def test_every_trial_is_a_child_run_of_the_search(
    server: MlflowServer,
    tracked: Path,
    request: pytest.FixtureRequest,
    workers: int,
) -> None:
    result = experiment.search(
        train, {"lr": ("DISCRETE", [0.1, 0.2, 0.5])}, searcher="grid", num_trials=None, metric="accuracy", name="rates",
        retries=0, progress=False, workers_per_trial=workers,
    )  # fmt: skip
    search_folder = Path(result.run_dir.removeprefix("file://"))
    trials = {row["number"]: search_folder / "trials" / row["trial_id"] for row in result.rows}

    def all_sent() -> bool:
        orders = [order(path) for path in (search_folder, *trials.values())]
        return all(found.get("state") == "sent" for found in orders)

    wait_until(all_sent, "four runs", 60)
    runs = {run.data.tags.get("hopsml.run_dir", ""): run for run in runs_of(server, name_of(request))}
    assert len(runs) == 4
    parent = runs[result.run_dir]
    assert parent.info.status == "FINISHED" and "mlflow.parentRunId" not in parent.data.tags
    for row in result.rows:
        child = runs[f"file://{trials[row['number']]}"]
        assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert child.data.params["lr"] == str(row["config"]["lr"])
        assert child.info.status == ("FAILED" if row["state"] == "failed" else "FINISHED")
    best = runs[result.best.run_dir]
    assert history(server, best.info.run_id, "accuracy")[:2] == [(1, 0.2), (2, 0.4)]


def order(path: Path) -> dict[str, Any]:
    found = path / "mlflow.json"
    return dict(json.loads(found.read_text())) if found.exists() else {}
