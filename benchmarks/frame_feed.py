"""A Spark DataFrame fed to two workers, and their later epochs, compared with methods without hopsml.

The peers: Spark's own ``noop`` writer, which computes the rows and drops them; Parquet written by Spark and read by the
same workers, or by Ray Data's; TensorFlowOnSpark's ``InputMode.SPARK``.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import environments
from benchmarks.figures import Figure, Report, measured, ratio_of
from benchmarks.launched import ROOT, Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.peers.base import SCRIPTS

ROWS, ROWS_OF_PEER = 2_500_000, 60_000
LAYOUTS = ("array", "wide")  # one column of 100 float32, or 100 columns, and a label
TFOS, RAY = "tensorflowonspark", "ray-train"
TIMEOUT_S = 1800.0


def run(options: Options) -> Report:
    """Measure for each layout the first epoch against the peers', then later epochs from the stored rows."""
    rounds, rows = options.rounds_of(5, 2), options.choose(ROWS, ROWS // 10)
    with temporary_folder() as name:
        found = _turns(options, Path(name), rounds, rows)
        rays = _ray(options, Path(name), rounds) if options.wants(RAY) else {}
    figures: list[Figure] = []
    for layout in LAYOUTS:
        took = found[layout]
        suffix = "" if layout == "array" else "_wide"
        figures += [
            ratio_of(f"data.noop{suffix}_ratio", took["feed"], took["noop"], "Spark's noop write"),
            ratio_of(f"data.parquet{suffix}_ratio", took["feed"], took["parquet"], "Parquet written, then read"),
            measured(f"data.rows{suffix}_per_s", [rows / seconds for seconds in took["feed"]], "rows/s"),
        ]
        if rays:
            both = [written + read for written, read in zip(took["write"], rays[layout], strict=True)]
            figures.append(
                ratio_of(f"data.ray{suffix}_ratio", took["feed"], both, "Parquet written, then read by Ray Data 2.60.0")
            )
        if layout == "array":
            figures.append(measured("data.first_batch_s", took["first"], "s"))
            figures.append(measured("data.first_batch_after_submit_s", took["first_of_all"], "s"))
    if options.wants(TFOS):
        figures += _beside_tfos(options, found, rows)
    figures += [
        measured("data.cache_numpy_gb_s", found["later"]["numpy"], "GB/s"),
        measured("data.cache_tf_gb_s", found["later"]["tensorflow"], "GB/s"),
        measured("data.cache_tf_eager_gb_s", found["later"]["eager"], "GB/s"),
        measured("data.stall_share", found["later"]["stall"], "share"),
    ]
    notes = [
        f"data: {rows:,} rows of 101 float32 ({rows * 404 / 1e9:.2f} GB) in Parquet, local-cluster[2,2,2048], two workers, "
        "one of two slots of each executor, agents warm; an epoch: from submit() to the last batch of 1024, parquet: with "
        "Spark's write before; first batch: after the end of Spark's first task, and after submit(); later epochs, "
        "shuffled in windows: one worker alone; tf: consumed by TensorFlow, eager: by a loop in Python; stall: of the time "
        "of a loop that computes 10 ms a step"
    ]
    return Report(figures, notes)


def _beside_tfos(options: Options, found: dict[str, dict[str, list[float]]], rows: int) -> list[Figure]:
    """Return the ratio of rows per second to the peer's, which gets fewer rows: more would take minutes."""
    theirs = _tfos(options, options.choose(ROWS_OF_PEER, ROWS_OF_PEER // 6))
    figures = []
    for layout in LAYOUTS:
        ours = [rows / seconds for seconds in found[layout]["feed"]]
        ratios = [statistics.median(ours) / one for one in theirs[layout]]
        figures.append(
            Figure(
                f"data.tfos_{layout}_ratio", round(statistics.median(ratios), 1), "ratio", len(ratios),
                round(min(ratios), 1), round(max(ratios), 1), "TensorFlowOnSpark 2.2.5, InputMode.SPARK",
                round(statistics.median(ratios), 1),
            )
        )  # fmt: skip
    return figures


def _turns(options: Options, folder: Path, rounds: int, rows: int) -> dict[str, dict[str, list[float]]]:
    variables = {"HOPSML_PROFILE": "local-cluster", "HOPSML_SPARK_MASTER": "local-cluster[2,2,2048]"}
    found: dict[str, Any] = _played(
        options, folder, sys.executable, "frame_feed_job.py", [str(rows), str(rounds)], variables
    )
    options.say(f"data: {found}")
    return found


def _ray(options: Options, folder: Path, rounds: int) -> dict[str, list[float]]:
    """Run Ray Data on the files that hopsml's rounds have written."""
    python = environments.ensure(RAY, options.say)
    found: dict[str, list[float]] = _played(options, folder, str(python), "ray_data_job.py", [str(rounds)], {})
    options.say(f"Ray Data, seconds: {found}")
    return found


def _tfos(options: Options, rows: int) -> dict[str, list[float]]:
    python = environments.ensure(TFOS, options.say)
    variables = {"SPARK_HOME": str(environments.pyspark_home(python))}
    script = "tensorflowonspark_feed_job.py"
    with temporary_folder() as name:
        theirs: dict[str, list[float]] = _played(options, Path(name), str(python), script, [str(rows), "3"], variables)[
            "rows_per_s"
        ]
    options.say(f"{TFOS}, rows/s: {theirs}")
    return theirs


def _played(
    options: Options, folder: Path, python: str, script: str, numbers: list[str], variables: dict[str, str]
) -> dict[str, Any]:
    variables = {
        "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1", "HOPSML_MLFLOW": "0",
        "HOPSML_PROJECT_URL": f"file://{folder}/project", "TF_CPP_MIN_LOG_LEVEL": "2",
        **variables,
    }  # fmt: skip
    answer = folder / f"{script}.json"
    command = [python, str(SCRIPTS / script), str(folder), *numbers, str(answer)]
    with Launched([Command(command, variables)], folder) as launched:
        launched.wait_until(answer.exists, TIMEOUT_S, f"the end of {script}")
        found: dict[str, Any] = json.loads(answer.read_text())
    return found
