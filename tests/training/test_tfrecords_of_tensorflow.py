"""What TensorFlow has written is read as TensorFlow reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hopsml

pytestmark = pytest.mark.tensorflow

WRITE = """
import json, sys
import tensorflow as tf

folder, told = sys.argv[1], []
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
for one in tf.data.TFRecordDataset(f"{folder}/a.tfrecord").map(lambda record: tf.io.parse_single_example(record, wanted)):
    told.append([int(one["id"]), one["x"].numpy().tolist(), one["text"].numpy().decode()])
print(json.dumps(told))
"""


@pytest.mark.parametrize("name", ["a.tfrecord", "aGZIP.tfrecord"])
def test_records_that_tensorflow_has_written(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-c", WRITE, str(tmp_path)]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (batch,) = hopsml.data.tfrecords(str(tmp_path / name)).batch(100)
    found = zip(batch["id"].tolist(), batch["x"].tolist(), [one.decode() for one in batch["text"]], strict=True)
    assert [list(one) for one in found] == told
