"""Tests that files written by TensorFlow are read as TensorFlow reads them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow

WRITE = """
import json, sys
import tensorflow as tf
import hopsml

folder = sys.argv[1]
for kind in ("", "GZIP"):
    with tf.io.TFRecordWriter(f"{folder}/a{kind}.tfrecord", kind or None) as writer:
        for number in range(50):
            lists = {
                "id": tf.train.Feature(int64_list=tf.train.Int64List(value=[number - 25])),
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=[number / 7, -number * 1e20])),
                "text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x" * number])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString())
wanted = {
    "id": tf.io.FixedLenFeature([], tf.int64), "x": tf.io.FixedLenFeature([2], tf.float32),
    "text": tf.io.FixedLenFeature([], tf.string),
}
def told(one):
    return [int(one["id"]), one["x"].numpy().tolist(), one["text"].numpy().decode()]

records = tf.data.TFRecordDataset(f"{folder}/a.tfrecord").map(lambda record: tf.io.parse_single_example(record, wanted))
found = {"tensorflow": [told(one) for one in records]}
for name in ("a", "aGZIP"):
    batches = hopsml.data.tfrecords(f"{folder}/{name}.tfrecord").batch(7).tensorflow()
    found[name] = [told(one) for one in batches.unbatch()]
whole = hopsml.data.files(folder, [".tfrecord"]).batch(2).tensorflow("content", "path")
found["files"] = [[path.decode(), len(content)] for one in whole.unbatch().as_numpy_iterator() for content, path in [one]]
print(json.dumps(found))
"""


@pytest.mark.variant  # of training/test_tfrecords, test_input_batches
def test_tfrecords_and_files_equal_those_read_by_tensorflow(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE, str(tmp_path)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(found["tensorflow"]) == 50
    assert found["a"] == found["aGZIP"] == found["tensorflow"]
    assert found["files"] == [[str(path), path.stat().st_size] for path in sorted(tmp_path.iterdir())]
