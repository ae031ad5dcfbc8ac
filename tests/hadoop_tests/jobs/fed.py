"""A driver that has Spark write rows to HDFS, read them again and bring them to two workers: fed.py URL."""

from __future__ import annotations

import json
import sys
from typing import Any

ROWS = 1000


def count(rows: Any) -> dict[str, int]:
    import numpy as np

    import hopsml

    counts, mine = np.zeros(ROWS, np.int64), 0
    for batch in rows.batch(64).shuffle(seed=1).repeat(2):
        assert (batch["x"] == np.stack([batch["id"], -batch["id"]], 1)).all()
        counts += np.bincount(batch["id"], minlength=ROWS)
        mine += len(batch["id"])
    total = hopsml.all_reduce(counts, "sum")
    return {"least": int(total.min()), "most": int(total.max()), "mine": mine}


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    from hopsml import experiment

    spark = SparkSession.builder.getOrCreate()
    made = spark.range(0, ROWS, 1, 6).selectExpr("id", "array(cast(id as double), cast(-id as double)) as x")
    made.write.parquet(sys.argv[1])
    result = experiment.distributed(count, data={"rows": spark.read.parquet(sys.argv[1])}, num_workers=2)
    print(json.dumps({name: result.metrics[name] for name in ("least", "most", "mine")}))
    assert (result.metrics["least"], result.metrics["most"]) == (2, 2)
    spark.stop()
