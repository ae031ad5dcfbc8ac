"""Search hyper-parameters, and register the best configuration's model: search, gate on the accuracy, alias ``candidate``.

The search is one task. If Airflow's worker is killed, the retry of the task follows the application that is still running.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param, get_current_context, task

from hopsml.airflow import HopsMLOperator

JOBS = Path(__file__).resolve().parents[1] / "spark_jobs"
NAME = "searched-digits"  # as in search_digits.py

with DAG(
    dag_id="search_to_model",
    schedule=None,
    catchup=False,
    params={
        "profile": Param("local-cluster", type="string", description="a file of conf/"),
        "num_workers": Param(2, type="integer", minimum=1, description="executors, each with one trial at a time"),
        "num_trials": Param(20, type="integer", minimum=1),
        "least_accuracy": Param(0.9, type="number", description="below it no version becomes the candidate"),
    },
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    doc_md=__doc__,
) as dag:
    search = HopsMLOperator(
        task_id="search",
        script=str(JOBS / "search_digits.py"),
        profile="{{ params.profile }}",
        num_workers="{{ params.num_workers }}",
        arguments=["--num-trials", "{{ params.num_trials }}"],
    )

    @task.short_circuit
    def is_good_enough(found: dict[str, float]) -> bool:
        """Return True if the best configuration reaches the accuracy that was asked for."""
        return found["accuracy"] >= get_current_context()["params"]["least_accuracy"]

    @task
    def register(found: dict[str, int]) -> int:
        """Make the version the candidate; whoever deploys asks the registry for this alias."""
        from hopsml import model

        return int(model.set_alias(NAME, found["version"], "candidate").version)

    is_good_enough(search.output["metrics"]) >> register(search.output["metrics"])

if __name__ == "__main__":
    dag.test()
