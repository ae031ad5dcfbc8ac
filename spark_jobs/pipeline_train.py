"""Step 2 of airflow_dags/digits_pipeline.py: train on the Parquet files of a run of step 1, on every executor."""

import argparse

import hopsml


def load(data, part):
    """Return the images and labels of one part, the same rows in the same order on every rank."""
    import io

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted(hopsml.hdfs.glob(f"{data}/part={part}/*.parquet"))
    table = pa.concat_tables(pq.read_table(io.BytesIO(hopsml.hdfs.load(file))) for file in files).sort_by("id")
    images = np.stack(table["image"].to_numpy(zero_copy_only=False)).reshape(-1, 8, 8, 1).astype("float32")
    return images, table["label"].to_numpy()


def build_model(lr):
    """Return the compiled network."""
    import keras

    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(lr), loss, metrics=["accuracy"])
    return model


def train(data, epochs=12, batch_size=128, lr=0.004):
    """Train the network and export it; return its training accuracy."""
    import keras
    import tensorflow as tf

    strategy = hopsml.tensorflow.strategy()
    keras.utils.set_random_seed(1)
    images, labels = load(hopsml.tracking.data(data), "train")
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels), seed=1).batch(batch_size)
    with strategy.scope():
        model = build_model(lr)
    history = model.fit(dataset, epochs=epochs, verbose=0, callbacks=hopsml.tensorflow.callbacks())
    hopsml.tensorflow.export(model)
    return {"train_accuracy": history.history["accuracy"][-1]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="run directory of pipeline_prepare.py")
    parser.add_argument("--epochs", type=int, default=12)
    asked = parser.parse_args()
    settings = {"data": f"{asked.data}/data", "epochs": asked.epochs}
    print(hopsml.experiment.collective_all_reduce(train, args=settings, name="digits-train").summary())
