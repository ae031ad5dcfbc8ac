"""Epochs over a DataFrame: frame_feed_job.py FOLDER ROWS ROUNDS ANSWER."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from hopsml import experiment

COLUMNS, BATCH = 100, 1024


def epoch(rows: Any = None, url: str = "") -> dict[str, float]:
    """Read one epoch and return the times of its first and last batch in Unix seconds, and the number of rows."""
    import time

    import hopsml

    source = rows if rows is not None else hopsml.data.parquet(url)
    first, seen = 0.0, 0
    for batch in source.batch(BATCH):
        first = first or time.time()
        seen += len(batch["label"])
    return {"first": first, "ended": time.time(), "rows": float(seen)}


def later(rows: Any) -> dict[str, list[float]]:
    """Read later epochs and return GB/s of arrays and of tensors, and the share of a loop's time spent waiting."""
    import time

    import numpy as np
    import tensorflow as tf

    matrix = np.ones((256, 256), np.float32)

    def gb_s(batches: Any, count: Any) -> float:
        began, size = time.perf_counter(), 0
        for batch in batches:
            size += count(batch)
        return size / 1e9 / (time.perf_counter() - began)

    def consumed(tensors: Any) -> float:
        """Return GB/s of a reduction inside TensorFlow, as in a loop of a tf.function."""
        began = time.perf_counter()
        seen = tensors.reduce(np.int64(0), lambda seen, element: seen + tf.shape(element[0], tf.int64)[0])
        return row * int(seen) / 1e9 / (time.perf_counter() - began)

    found: dict[str, list[float]] = {"numpy": [], "tensorflow": [], "eager": [], "stall": []}
    shuffled, row = rows.batch(BATCH).shuffle(seed=1), 4 * (COLUMNS + 1)
    gb_s(rows.batch(BATCH), lambda batch: 0)
    for _ in range(5):
        found["numpy"].append(gb_s(shuffled, lambda batch: batch["features"].nbytes + batch["label"].nbytes))
        found["tensorflow"].append(consumed(shuffled.tensorflow("features", "label")))
        tensors = shuffled.tensorflow("features", "label")
        found["eager"].append(gb_s(tensors, lambda element: row * int(element[0].shape[0])))
        waited, began, steps = 0.0, time.perf_counter(), 0
        batches = iter(shuffled)
        while steps < 300:
            asked = time.perf_counter()
            try:
                next(batches)
            except StopIteration:
                break
            waited += time.perf_counter() - asked if steps else 0.0
            until = time.perf_counter() + 0.01
            while time.perf_counter() < until:  # computes outside of Python, as a framework does
                matrix @ matrix
            began = began if steps else time.perf_counter()
            steps += 1
        found["stall"].append(waited / (time.perf_counter() - began))
    return found


def run(function: Any, workers: int, **given: Any) -> dict[str, Any]:
    """Run a function on some workers and return its value."""
    result = experiment.submit(function, num_workers=workers, progress=False, keep_warm=300.0, **given).result(600)
    return dict(result.value)


def fed(context: Any, frame: Any) -> dict[str, float]:
    """Run an epoch over a DataFrame; add the times of its submission and of the end of Spark's first task for it."""
    found = {"submitted": time.time()}
    run = experiment.submit(epoch, num_workers=2, progress=False, keep_warm=300.0, data={"rows": frame})
    tracker, group = context.statusTracker(), f"hopsml-data-{run.run_id}"
    while "partition" not in found and not run.done():
        stages = [tracker.getJobInfo(job).stageIds for job in tracker.getJobIdsForGroup(group)]
        done = [tracker.getStageInfo(stage).numCompletedTasks for one in stages for stage in one]
        if any(done):
            found["partition"] = time.time()
        time.sleep(0.01)
    return found | dict(run.result(600).value)


def main(folder: str, rows: int, rounds: int, answer: str) -> None:
    """Run all rounds and write their seconds to the file ``answer``."""
    run(lambda: {"warm": 1}, 2)
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    values = ", ".join(f"cast(rand({n}) as float) as f{n}" for n in range(COLUMNS))
    names = [f"f{n}" for n in range(COLUMNS)]
    base = spark.range(0, rows, 1, 8).selectExpr("cast(id % 10 as float) as label", *values.split(", "))
    base.write.parquet(f"{folder}/wide")
    base.selectExpr("label", f"array({', '.join(names)}) as features").write.parquet(f"{folder}/array")
    found: dict[str, Any] = {}
    for layout in ("array", "wide"):
        took: dict[str, list[float]] = {
            "noop": [],
            "feed": [],
            "first": [],
            "first_of_all": [],
            "parquet": [],
            "write": [],
        }
        for number in range(rounds + 1):  # the first round is for the compilers
            frame = spark.read.parquet(f"{folder}/{layout}")
            began = time.time()
            frame.write.format("noop").mode("overwrite").save()
            noop = time.time() - began
            ours = fed(spark.sparkContext, frame)
            staged_at = time.time()
            frame.write.option("compression", "none").parquet(f"{folder}/staged")
            written_at = time.time()
            staged = run(epoch, 2, args={"url": f"file://{folder}/staged"})
            shutil.rmtree(f"{folder}/staged")
            if number:
                took["noop"].append(noop)
                took["feed"].append(ours["ended"] - ours["submitted"])
                took["first"].append(ours["first"] - ours["partition"])
                took["first_of_all"].append(ours["first"] - ours["submitted"])
                took["parquet"].append(staged["ended"] - staged_at)
                took["write"].append(written_at - staged_at)
        found[layout] = took
    found["later"] = run(later, 1, data={"rows": spark.read.parquet(f"{folder}/array")})
    part = Path(f"{answer}.part")
    part.write_text(json.dumps(found))
    part.rename(answer)
    experiment.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
