"""Step 3 of airflow_dags/digits_pipeline.py: evaluate the model exported in step 2 on the test part of step 1."""

import argparse

import hopsml


def evaluate(model, data):
    """Return accuracy, number of rows and worst digit of an exported model on the test rows."""
    import io
    import tempfile

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tensorflow as tf

    files = sorted(hopsml.hdfs.glob(f"{hopsml.tracking.data(data)}/part=test/*.parquet"))
    table = pa.concat_tables(pq.read_table(io.BytesIO(hopsml.hdfs.load(file))) for file in files)
    images = np.stack(table["image"].to_numpy(zero_copy_only=False)).reshape(-1, 8, 8, 1).astype("float32")
    with tempfile.TemporaryDirectory() as folder:
        network = tf.saved_model.load(hopsml.hdfs.copy_to_local(hopsml.tracking.data(model), folder))
        predicted = network.serve(images).numpy().argmax(axis=1)
    labels = table["label"].to_numpy()
    worst = min(range(10), key=lambda digit: (predicted == labels)[labels == digit].mean())
    return {"accuracy": float((predicted == labels).mean()), "rows": len(labels), "worst_digit": worst}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="run directory of pipeline_prepare.py")
    parser.add_argument("--model", required=True, help="run directory of pipeline_train.py")
    asked = parser.parse_args()
    settings = {"model": [f"{asked.model}/export/model"], "data": [f"{asked.data}/data"]}
    print(hopsml.experiment.launch(evaluate, settings, name="digits-evaluate").summary())
