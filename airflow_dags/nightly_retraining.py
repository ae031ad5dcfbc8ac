"""Retrain each night: wait for the day's data, train an elastic group, and promote a version that is not less accurate.

A day's data is complete when ``day=YYYY-MM-DD/_SUCCESS`` exists below the parameter ``data``. Training is elastic, so that a
busy cluster delays it and does not fail it. The new version of the model becomes ``production`` if its accuracy is at
least that of the present one; otherwise the last task is skipped, and the version stays for inspection.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, Param, task

from hopsml.airflow import HopsMLOperator

JOBS = Path(__file__).resolve().parents[1] / "spark_jobs"
NAME = "nightly-digits"  # as in nightly_retrain.py

with DAG(
    dag_id="nightly_retraining",
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,  # two nights would both compare with the same version
    params={
        "profile": Param("local-cluster", type="string", description="a file of conf/"),
        "data": Param("Resources/digits", type="string", description="folder with a folder for each day"),
        "max_workers": Param(2, type="integer", minimum=1, description="executors, if they are free"),
    },
    default_args={"retries": 1, "retry_delay": timedelta(minutes=5)},
    doc_md=__doc__,
) as dag:

    @task.sensor(poke_interval=60, timeout=4 * 3600, mode="reschedule")
    def new_data(params: dict[str, str], ds: str) -> bool:
        """Return True when the day's data is complete."""
        from hopsml import hdfs

        return bool(hdfs.exists(f"{params['data']}/day={ds}/_SUCCESS"))

    train = HopsMLOperator(
        task_id="train",
        script=str(JOBS / "nightly_retrain.py"),
        profile="{{ params.profile }}",
        num_workers="{{ params.max_workers }}",
        arguments=["--data", "{{ params.data }}", "--day", "{{ ds }}", "--max-workers", "{{ params.max_workers }}"],
    )

    @task.short_circuit
    def is_not_worse(trained: dict[str, float]) -> bool:
        """Return True if no version is in production, or the new one is at least as accurate."""
        from hopsml import model

        present = model.aliases(NAME).get("production")
        if present is None:
            return True
        (before,) = (version for version in model.versions(NAME) if version.version == present)
        return trained["accuracy"] >= before.metrics["accuracy"]

    @task
    def promote(trained: dict[str, int]) -> int:
        """Make the new version the one in production; servings that follow the alias change to it."""
        from hopsml import model

        return int(model.set_alias(NAME, trained["version"], "production").version)

    new_data() >> train >> is_not_worse(train.output["metrics"]) >> promote(train.output["metrics"])

if __name__ == "__main__":
    dag.test()
