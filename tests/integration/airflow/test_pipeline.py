"""Test of the DAG in airflow_dags/ on this machine, from raw digits to a served model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hopsml import model, serving
from tests.helpers.airflow.harness import ROOT, RUN_AFTER, Airflow, Ended, pipelines_server

pytestmark = [pytest.mark.spark, pytest.mark.airflow, pytest.mark.tensorflow]


@pytest.mark.variant  # two minutes; of test_operator.py and tests/integration/docs/test_snippets.py
def test_pipeline_passes_run_directories_on_and_serves_its_model(airflow: Airflow, tmp_path: Path) -> None:
    file = ROOT / "airflow_dags" / "digits_pipeline.py"
    quick_jvm = (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # as conf/local-cluster.yaml has it; here no profile starts Spark
    )
    airflow.more |= {
        "AIRFLOW__CORE__DAGS_FOLDER": str(file.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 pyspark-shell",
        "JDK_JAVA_OPTIONS": quick_jvm,
    }
    conf = json.dumps({"profile": "local", "num_workers": 2, "epochs": 4})
    with pipelines_server(airflow, tmp_path / "machine"):
        check(airflow.run("test", str(file), "digits_pipeline", RUN_AFTER, conf, timeout_s=500))
        answered = serving.predict("digits", np.zeros((3, 8, 8, 1), "float32"))
        assert np.asarray(answered).shape == (3, 10)


def check(ended: Ended) -> None:
    """Assert that each step received the results of the previous one, and that the registered version is served."""
    result = ended.told
    assert result["state"] == "success", ended.output[-6000:]
    results = {task: xcoms["return_value"] for task, xcoms in result["xcoms"].items()}
    assert {task: result["state"] for task, result in results.items()} == dict.fromkeys(
        ("prepare", "train", "evaluate", "register", "serve"), "FINISHED"
    )
    rows = results["prepare"]["metrics"]
    assert (
        rows["train_rows"] + rows["test_rows"] == 1797 and results["evaluate"]["metrics"]["rows"] == rows["test_rows"]
    )
    train = json.loads(Path(results["train"]["run_dir"].removeprefix("file://"), "run.json").read_text())
    assert (train["workers"], train["arguments"]["data"]) == (2, f"{results['prepare']['run_dir']}/data")

    registered, served = results["register"]["metrics"], results["serve"]["metrics"]
    (version,) = model.versions("digits")
    assert (version.version, registered["version"], served["version"], served["rolled"]) == (1, 1, 1, False)
    assert model.aliases("digits") == {"production": 1}
    assert version.metrics["accuracy"] == results["evaluate"]["metrics"]["accuracy"] >= 0.9
    assert version.description.lineage.run_url == results["train"]["run_dir"]
    assert results["evaluate"]["run_dir"] in version.description.description
    assert list(version.description.artifacts) == ["saved_model"]
