"""The DAG of airflow_dags/ from raw digits to a registered model, on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.airflow_tests.harness import ROOT, RUN_AFTER, Airflow

pytestmark = [pytest.mark.spark, pytest.mark.airflow, pytest.mark.tensorflow]


@pytest.mark.timeout(600)
def test_the_pipeline_hands_each_run_directory_on(airflow: Airflow) -> None:
    file = ROOT / "airflow_dags" / "digits_pipeline.py"
    quick_jvm = (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # as conf/local-cluster.yaml has it; here no profile starts Spark
    )
    airflow.more |= {
        "AIRFLOW__CORE__DAGS_FOLDER": str(file.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": quick_jvm,
    }
    conf = json.dumps({"profile": "local", "num_workers": 2, "epochs": 8})
    ended = airflow.run("test", str(file), "digits_pipeline", RUN_AFTER, conf, timeout_s=500)
    told = ended.told
    assert told["state"] == "success", ended.output[-6000:]
    results = {task: xcoms["return_value"] for task, xcoms in told["xcoms"].items()}
    assert {task: result["state"] for task, result in results.items()} == dict.fromkeys(
        ("prepare", "train", "evaluate", "register"), "FINISHED"
    )
    rows = results["prepare"]["metrics"]
    assert (
        rows["train_rows"] + rows["test_rows"] == 1797 and results["evaluate"]["metrics"]["rows"] == rows["test_rows"]
    )
    train = json.loads(Path(results["train"]["run_dir"].removeprefix("file://"), "run.json").read_text())
    assert (train["workers"], train["arguments"]["data"]) == (2, f"{results['prepare']['run_dir']}/data")

    registered = results["register"]["metrics"]
    model = Path(registered["model"].removeprefix("file://"))
    card = json.loads((model / "model.json").read_text())
    assert (card["version"], card["model_run"]) == (1, results["train"]["run_dir"])
    assert card["evaluation_run"] == results["evaluate"]["run_dir"]
    assert card["metrics"]["accuracy"] == results["evaluate"]["metrics"]["accuracy"] >= 0.9
    assert (model / "model" / "saved_model.pb").stat().st_size > 0
