"""One Spark application that alternates between methods of predicting: FOLDER ROWS ROUNDS.

It writes the rows per second to FOLDER/passes.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.pairing import alternate

TASKS = 8
WIDTH = 64
EXPORT = """
import sys
import keras
import hopsml
keras.utils.set_random_seed(1)
layers = keras.layers
model = keras.Sequential([
    keras.Input((64,), name="pixels"), layers.Reshape((8, 8, 1)), layers.Conv2D(16, 3, activation="relu"),
    layers.Conv2D(32, 3, activation="relu"), layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(10),
])
version = hopsml.model.export(model, "digits")
model.save(sys.argv[1])
"""  # in a separate process: the driver imports no TensorFlow


def main(folder: Path, rows: int, rounds: int) -> None:
    """Make the data and the model, and measure all methods."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    keras_file = str(folder / "model.keras")
    subprocess.run([sys.executable, "-c", EXPORT, keras_file], check=True)
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.files.minPartitionNum", TASKS).getOrCreate()
    numbers = f.transform(f.sequence(f.lit(1), f.lit(WIDTH)), lambda k: ((f.col("id") * k) % 17).cast("float") / 16)
    made = session.range(0, rows, 1, TASKS).select("id", numbers.alias("pixels"))
    made.write.parquet(str(folder / "rows"))
    table = session.read.parquet(str(folder / "rows"))
    assert table.count() == rows
    ways = {
        "hopsml": lambda: _hopsml(table),
        "pandas UDF": lambda: _plain(table, keras_file),
        "predict_batch_udf": lambda: _batch_udf(table, keras_file),
    }
    found = alternate(
        rounds, {name: _timed(way, rows) for name, way in ways.items()}, lambda line: print(line, flush=True)
    )
    fresh = folder / "passes.json.part"
    fresh.write_text(json.dumps(found))
    fresh.rename(folder / "passes.json")
    session.stop()


def _timed(way: Callable[[], Any], rows: int) -> Callable[[], float]:
    def once() -> float:
        began = time.perf_counter()
        way().write.format("noop").mode("overwrite").save()
        return rows / (time.perf_counter() - began)

    return once


def _hopsml(table: Any) -> Any:
    import hopsml

    return hopsml.model.predict(table, "digits")


def _plain(table: Any, keras_file: str) -> Any:
    import pandas as pd
    from pyspark.sql.functions import pandas_udf

    def predict(columns: Iterator[pd.Series]) -> Iterator[pd.Series]:
        import keras
        import numpy as np

        model = keras.models.load_model(keras_file)
        for column in columns:
            yield pd.Series(list(model.predict(np.stack(column.to_list()), verbose=0)))

    predict.__annotations__ = {"columns": Iterator[pd.Series], "return": Iterator[pd.Series]}
    return table.select("id", "pixels", pandas_udf(predict, "array<float>")("pixels").alias("digit"))


def _batch_udf(table: Any, keras_file: str) -> Any:
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    def make() -> Any:
        import keras

        model = keras.models.load_model(keras_file)
        return lambda rows: model.predict(rows, verbose=0)

    udf = predict_batch_udf(make, return_type=ArrayType(FloatType()), batch_size=1024, input_tensor_shapes=[[WIDTH]])
    return table.select("id", "pixels", udf("pixels").alias("digit"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
