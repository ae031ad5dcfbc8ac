"""Training step of airflow_dags/nightly_retraining.py: train on all days up to one, and store a version in the registry.

The group is elastic: it starts with one worker, and uses further executors when the night's cluster has room for them.
"""

import argparse

import hopsml

NAME = "nightly-digits"


def rows(files):
    """Return images and labels of Parquet files in the project's storage, in the files' order."""
    import io

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.concat_tables(pq.read_table(io.BytesIO(hopsml.hdfs.load(file))) for file in files)
    return np.stack(table["image"].to_numpy(zero_copy_only=False)).astype("float32"), table["label"].to_numpy()


def train(data, day, epochs=12, batch_size=64):
    """Train on the days up to ``day``; every fifth row evaluates. Return the accuracy and the version's number."""
    import keras
    import numpy as np
    import tensorflow as tf

    strategy = hopsml.tensorflow.strategy()
    days = sorted(path for path in hopsml.hdfs.glob(f"{hopsml.tracking.data(data)}/day=*") if path[-10:] <= day)
    images, labels = rows([file for path in days for file in sorted(hopsml.hdfs.glob(f"{path}/*.parquet"))])
    held_out = np.arange(len(labels)) % 5 == 0
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.005), loss, metrics=["accuracy"])
    dataset = tf.data.Dataset.from_tensor_slices((images[~held_out], labels[~held_out])).batch(batch_size)
    model.fit(dataset, epochs=epochs, verbose=0, callbacks=hopsml.tensorflow.callbacks())
    predicted = model.predict(images[held_out], verbose=0).argmax(axis=1)
    accuracy = float((predicted == labels[held_out]).mean())
    version = hopsml.model.export(model, NAME, metrics={"accuracy": accuracy}, description=f"days up to {day}")
    return {"accuracy": accuracy, "days": len(days), "version": version.version if version else None}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="folder with day=YYYY-MM-DD/*.parquet")
    parser.add_argument("--day", required=True, help="newest day to train on, YYYY-MM-DD")
    parser.add_argument("--max-workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=12)
    asked = parser.parse_args()
    settings = {"data": asked.data, "day": asked.day, "epochs": asked.epochs}
    result = hopsml.experiment.collective_all_reduce(
        train, args=settings, min_workers=1, max_workers=asked.max_workers, name=NAME
    )
    print(result.summary())
