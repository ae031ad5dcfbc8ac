"""Driver that trains a model, feeds it rows of a DataFrame, and predicts with it, on two executors; prints one JSON line."""

from __future__ import annotations

import json
import sys
from typing import Any

ROWS = 100


def train(rows: Any) -> dict[str, Any]:
    import keras
    import numpy as np

    import hopsml

    fed = np.concatenate([batch["x"] for batch in rows.batch(8)])
    strategy = hopsml.tensorflow.strategy(implementation="hopsml")  # by the library of the wheel
    x = np.linspace(-1, 1, 64, dtype="float32").reshape(-1, 1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,), name="x"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.5), "mse")
    model.fit(x, 2 * x, batch_size=32, epochs=16, verbose=0)
    hopsml.model.export(model, "doubling")
    return {
        "rows": int(hopsml.all_reduce(np.array([len(fed)]), "sum")[0]),
        "sum": float(hopsml.all_reduce(np.array([fed.sum()]), "sum")[0]),
        "kernel": float(model.layers[-1].kernel.numpy()[0, 0]),
        "replicas": strategy.num_replicas_in_sync,
    }


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    import hopsml

    spark = SparkSession.builder.getOrCreate()
    frame = spark.range(0, ROWS, 1, 4).selectExpr("cast(id as float) as x")
    result = hopsml.experiment.collective_all_reduce(train, data={"rows": frame}, num_workers=2, progress=False)
    predicted = hopsml.model.predict(frame.selectExpr("array(x / 100) as x"), "doubling")
    values = [row[-1] for row in predicted.collect()]
    values = [one[0] if isinstance(one, list) else one for one in values]
    print(
        result.json(
            library=hopsml.__file__,
            spark=spark.version,
            python=sys.version.split()[0],
            executors=len({worker["executor"] for worker in result.workers}),
            predicted=[len(values), round(sum(values), 2)],
        )
    )
    print(json.dumps({name: result.metrics[name] for name in ("rows", "sum", "kernel", "replicas")}))
    spark.stop()
