"""Driver whose Spark writes rows to HDFS and sends them to two workers, which read files there, too: fed.py URL."""

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


def read(url: str) -> dict[str, int]:
    """Twice through the Parquet files, the records and the whole files, in a group."""
    import numpy as np

    import hopsml

    counts, size = np.zeros(ROWS, np.int64), np.zeros(1, np.int64)
    for rows in (
        hopsml.data.parquet(f"{url}/rows"),
        hopsml.data.tfrecords(f"{url}/records", {"id": (), "x": (2,)}, cache=True),
    ):
        for batch in rows.batch(64).shuffle(seed=1).repeat(2):
            assert (batch["x"] == np.stack([batch["id"], -batch["id"]], 1)).all()
            counts += np.bincount(batch["id"], minlength=ROWS)
    for batch in hopsml.data.files(f"{url}/files", cache=True).batch(5).repeat(2):
        size += sum(map(len, batch["content"]))
    total = hopsml.all_reduce(counts, "sum")
    return {"least": int(total.min()), "most": int(total.max()), "bytes": int(hopsml.all_reduce(size, "sum")[0])}


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    from hopsml import experiment

    spark = SparkSession.builder.getOrCreate()
    made = spark.range(0, ROWS, 1, 6).selectExpr("id", "array(cast(id as double), cast(-id as double)) as x")
    url = sys.argv[1]
    made.write.parquet(f"{url}/rows")
    result = experiment.distributed(count, data={"rows": spark.read.parquet(f"{url}/rows")}, num_workers=2)
    print(json.dumps({name: result.metrics[name] for name in ("least", "most", "mine")}))
    assert (result.metrics["least"], result.metrics["most"]) == (2, 2)
    result = experiment.distributed(read, args={"url": url}, num_workers=2)
    print(json.dumps({name: result.metrics[name] for name in ("least", "most", "bytes")}))
    assert (result.metrics["least"], result.metrics["most"], result.metrics["bytes"]) == (4, 4, 2 * 6 * 100_000)
    spark.stop()
