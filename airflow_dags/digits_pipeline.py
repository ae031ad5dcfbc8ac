"""Digits from raw data to a served model: prepare (PySpark), train (two workers), evaluate, register, serve.

Each step passes its run directory to the next through XCom. The DAG run's parameter ``profile`` selects the cluster:
any file of conf/. HOPSML_PYTHON names the interpreter with pyspark and TensorFlow, HOPSML_PROJECT_URL the storage.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from hopsml.airflow import HopsMLOperator

JOBS = Path(__file__).resolve().parents[1] / "spark_jobs"

with DAG(
    dag_id="digits_pipeline",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,  # only a person starts it
    params={
        "profile": Param("local-cluster", type="string", description="a file of conf/"),
        "num_workers": Param(2, type="integer", minimum=1, description="executors"),
        "epochs": Param(12, type="integer", minimum=1),
        "least_accuracy": Param(0.9, type="number", description="below it nothing is registered"),
    },
    # A retry continues with the job that is running; only a failed job is started again.
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10), "poll_interval_s": 1.0},
    doc_md=__doc__,
) as dag:
    prepare = HopsMLOperator(
        task_id="prepare",
        script=str(JOBS / "pipeline_prepare.py"),
        profile="{{ params.profile }}",
        num_workers="{{ params.num_workers }}",
    )
    train = HopsMLOperator(
        task_id="train",
        script=str(JOBS / "pipeline_train.py"),
        profile="{{ params.profile }}",
        num_workers="{{ params.num_workers }}",
        arguments=["--data", prepare.output["run_dir"], "--epochs", "{{ params.epochs }}"],
    )
    evaluate = HopsMLOperator(
        task_id="evaluate",
        script=str(JOBS / "pipeline_evaluate.py"),
        profile="{{ params.profile }}",
        num_workers=1,
        arguments=["--data", prepare.output["run_dir"], "--model", train.output["run_dir"]],
    )
    register = HopsMLOperator(
        task_id="register",
        script=str(JOBS / "pipeline_register.py"),
        profile="local",
        arguments=[
            "--name", "digits",
            "--model", train.output["run_dir"],
            "--evaluation", evaluate.output["run_dir"],
            "--least-accuracy", "{{ params.least_accuracy }}",
        ],
    )  # fmt: skip
    serve = HopsMLOperator(
        task_id="serve",
        script=str(JOBS / "pipeline_serve.py"),
        profile="local",
        arguments=["--name", "digits", "--version", "{{ ti.xcom_pull('register')['metrics']['version'] }}"],
    )
    register >> serve

if __name__ == "__main__":
    dag.test()
