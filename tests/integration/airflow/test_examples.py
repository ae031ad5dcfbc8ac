"""Tests of the smaller DAGs in airflow_dags/ on this machine: retraining each night, and a search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hopsml import model
from tests.helpers.airflow.harness import ROOT, RUN_AFTER, Airflow

pytestmark = [pytest.mark.airflow, pytest.mark.variant]
DAY = RUN_AFTER[:10]


@pytest.fixture
def project(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the project that the tasks use, which is this process's project, too."""
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{airflow.home}/project")
    return airflow.home / "project"


def results(airflow: Airflow, dag_id: str, **conf: Any) -> dict[str, Any]:
    """Run a DAG to its end; return its tasks' states and results."""
    file = ROOT / "airflow_dags" / f"{dag_id}.py"
    airflow.more["AIRFLOW__CORE__DAGS_FOLDER"] = str(file.parent)
    ended = airflow.run("test", str(file), dag_id, RUN_AFTER, json.dumps({"profile": "local", **conf}), timeout_s=380)
    assert ended.told["state"] == "success", ended.output[-6000:]
    return {"tasks": ended.told["tasks"], **{task: x.get("return_value") for task, x in ended.told["xcoms"].items()}}


def write_day(folder: Path, day: str, first: int, end: int, labels_are_wrong: bool = False) -> None:
    """Write digits ``first`` to ``end`` as the data of a day, complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    labels = (labels[::-1] if labels_are_wrong else labels)[first:end]
    path = folder / f"day={day}"
    path.mkdir(parents=True)
    pq.write_table(pa.table({"image": (images[first:end] / 16.0).tolist(), "label": labels}), path / "part-0.parquet")
    (path / "_SUCCESS").touch()


@pytest.mark.tensorflow
def test_nightly_retraining_promotes_only_a_better_version(airflow: Airflow, project: Path) -> None:
    data = project / "Resources" / "digits"
    write_day(data, "2026-01-01", 0, 900)
    write_day(data, DAY, 900, 1400)
    first = results(airflow, "nightly_retraining", max_workers=2)
    assert first["train"]["metrics"]["days"] == 2 and first["train"]["metrics"]["accuracy"] > 0.85
    assert (first["promote"], model.aliases("nightly-digits")) == (1, {"production": 1})

    (data / f"day={DAY}" / "part-0.parquet").unlink()
    (data / f"day={DAY}" / "_SUCCESS").unlink()
    (data / f"day={DAY}").rmdir()
    write_day(data, DAY, 900, 1790, labels_are_wrong=True)
    second = results(airflow, "nightly_retraining", max_workers=1)
    assert second["train"]["metrics"]["accuracy"] < first["train"]["metrics"]["accuracy"]
    assert second["tasks"]["promote"]["state"] == "skipped" and model.aliases("nightly-digits") == {"production": 1}
    assert [version.version for version in model.versions("nightly-digits")] == [1, 2]


@pytest.mark.local
def test_search_dag_registers_a_version_with_an_alias(airflow: Airflow, project: Path) -> None:
    found = results(airflow, "search_to_model", num_workers=2, num_trials=9, least_accuracy=0.5)
    (version,) = model.versions("searched-digits")
    assert model.aliases("searched-digits") == {"candidate": version.version} == {"candidate": found["register"]}
    assert version.metrics["accuracy"] == found["search"]["metrics"]["accuracy"]
