"""Rows per second of TensorFlowOnSpark's InputMode.SPARK: tensorflowonspark_feed_job.py FOLDER ROWS ROUNDS ANSWER."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

COLUMNS, BATCH = 100, 1024


def read(arguments: Any, context: Any) -> None:
    """Read all batches of the feed; the function of a worker."""
    feed = context.get_data_feed(train_mode=True)
    while not feed.should_stop():
        feed.next_batch(BATCH)


def main(folder: str, rows: int, rounds: int, answer: str) -> None:
    """Write the rows per second of each layout, without the shutdown of the cluster, which waits."""
    from pyspark.sql import SparkSession
    from tensorflowonspark import TFCluster

    spark = (
        SparkSession.builder.master("local-cluster[2,1,2048]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    values = [f"cast(rand({n}) as float) as f{n}" for n in range(COLUMNS)]
    base = spark.range(0, rows, 1, 8).selectExpr("cast(id % 10 as float) as label", *values)
    base.write.parquet(f"{folder}/wide")
    names = ", ".join(f"f{n}" for n in range(COLUMNS))
    base.selectExpr("label", f"array({names}) as features").write.parquet(f"{folder}/array")
    found: dict[str, list[float]] = {"array": [], "wide": []}
    for _ in range(rounds):
        for layout, speeds in found.items():
            cluster = TFCluster.run(
                spark.sparkContext, read, {}, num_executors=2, num_ps=0, input_mode=TFCluster.InputMode.SPARK
            )
            began = time.perf_counter()
            cluster.train(spark.read.parquet(f"{folder}/{layout}").rdd, num_epochs=1)
            speeds.append(rows / (time.perf_counter() - began))
            cluster.shutdown(grace_secs=1)
    part = Path(f"{answer}.part")
    part.write_text(json.dumps({"rows_per_s": found}))
    part.rename(answer)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
