"""Rows per second of ``hopsml.model.predict`` and of code without it, on the same Spark, one after the other.

The peers: a pandas UDF that loads the model in each task and calls ``model.predict``, as in tutorials; and Spark's own
``predict_batch_udf``, which stores the model in the Python worker, around the same call.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.figures import Report, measured, ratio_of
from benchmarks.launched import ROOT, Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.peers.base import SCRIPTS

OURS, PLAIN, BATCH_UDF = "hopsml", "pandas UDF", "predict_batch_udf"
TIMEOUT_S = 1500.0


def run(options: Options) -> Report:
    """Measure the ratio to the plain UDF and rows per second, without the first round, which starts Python workers."""
    rows, rounds = options.choose(200_000, 20_000), options.rounds_of(3, 1) + 1
    found = _passes(options, rows, rounds)
    warm = {name: values[1:] for name, values in found.items()}
    cold = ", ".join(f"{name} {values[0]:,.0f}" for name, values in found.items())
    return Report(
        [
            ratio_of("predict.rows_ratio", warm[OURS], warm[PLAIN], "a pandas UDF that loads the model"),
            ratio_of("predict.batch_udf_ratio", warm[OURS], warm[BATCH_UDF], "Spark's predict_batch_udf"),
            *(measured(f"predict.rows_per_s.{name.replace(' ', '_')}", warm[name], "rows/s") for name in warm),
        ],
        [
            f"predict: {rows:,} rows of 64 numbers in Parquet, 8 tasks, all cores, a convolutional network for digits, "
            f"results discarded; the first round, in which they came in this order and the first one started "
            f"Spark's Python workers: {cold} rows/s"
        ],
    )


def _passes(options: Options, rows: int, rounds: int) -> dict[str, list[float]]:
    with temporary_folder() as name:
        folder = Path(name)
        script = [sys.executable, str(SCRIPTS / "predict_job.py"), str(folder), str(rows), str(rounds)]
        variables = {
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "HOPSML_PROJECT_URL": f"file://{folder}/project",
            "HOPSML_MODEL_CACHE": str(folder / "models"),
            "HOPSML_MLFLOW": "0",
        }
        answer = folder / "passes.json"
        with Launched([Command(script, variables)], folder) as launched:
            launched.wait_until(answer.exists, TIMEOUT_S, "the end of the passes")
            found: dict[str, list[float]] = json.loads(answer.read_text())
    for name, values in found.items():
        options.say(f"{name}: {', '.join(f'{value:,.0f}' for value in values)} rows/s")
    return found
