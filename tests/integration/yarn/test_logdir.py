"""Tests of ``tensorboard.logdir()`` on a real HDFS in all ways of published code, in one function.

The path is passed to TensorFlow, which cannot open ``hdfs://``, to the helpers, and to code that expects ``hdfs://`` in
it. docs/decisions/2026-11-27-logdir.md describes the solution of this conflict.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from hopsml import experiment
from hopsml.storage import filesystem
from hopsml.storage.filesystem import for_url
from tests.integration.yarn.conftest import Hadoop
from tools import build_tf_hdfs

pytestmark = pytest.mark.hadoop


@pytest.fixture
def project(hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    url = f"{hadoop.namenode_url}/Projects/{secrets.token_hex(8)}"
    monkeypatch.setenv("HOPSML_PROJECT_URL", url)
    monkeypatch.setenv("HOPSML_PROFILE", "local")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    yield url
    experiment.shutdown()
    filesystem.close_all()


def train() -> dict[str, Any]:
    """Local calls, helpers, Keras' callbacks and TensorFlow's writers on what ``logdir()`` returns."""
    import json
    import os

    import keras
    import numpy as np
    import tensorflow as tf

    from hopsml import hdfs, tensorboard

    logdir = tensorboard.logdir()
    os.makedirs(logdir + "/plots")
    with open(os.path.join(logdir, "plots", "loss.txt"), "w") as file:
        file.write("falls")
    hdfs.mkdir(logdir + "/model")
    hdfs.dump("of the helpers", logdir + "/model/notes.txt")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    watch = keras.callbacks.TensorBoard(log_dir=logdir)
    keep = keras.callbacks.ModelCheckpoint(filepath=logdir + "/best.keras")
    model.fit(np.ones((8, 2)), np.ones((8, 1)), epochs=2, verbose=0, callbacks=[watch, keep])
    with tf.summary.create_file_writer(logdir + "/custom").as_default():
        tf.summary.scalar("accuracy", 0.5, step=1)
    tf.train.Checkpoint(model=model).write(logdir + "/ckpt")
    seen = {"is_local": tf.io.gfile.isdir(logdir) and os.path.isdir(logdir), "listed": sorted(os.listdir(logdir))}
    return {"logdir": logdir, "seen": json.dumps(seen)}


def train_by_url() -> dict[str, Any]:
    """Extract the URL from ``logdir()`` and pass it to TensorFlow, which opens it through hopsml's library."""
    import keras
    import numpy as np
    import tensorflow as tf

    from hopsml import hdfs, tensorboard

    logdir = tensorboard.logdir()
    url = logdir[logdir.index("hdfs://") :]
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    watch = keras.callbacks.TensorBoard(log_dir=url + "/direct")
    model.fit(np.ones((8, 2)), np.ones((8, 1)), epochs=1, verbose=0, callbacks=[watch])
    with tf.summary.create_file_writer(url).as_default():
        tf.summary.scalar("accuracy", 0.5, step=1)
    with tf.summary.create_file_writer(logdir).as_default():
        tf.summary.scalar("loss", 0.5, step=1)
    return {"logdir": logdir, "there": int(tf.io.gfile.exists(url + "/direct") and hdfs.isdir(logdir + "/direct"))}


def names(url: str) -> list[str]:
    return sorted(file.url[len(url) + 1 :] for file in filesystem.walk(url) if not file.is_dir)


def events(url: str) -> bytes:
    """Return the content of all event files directly in a folder on HDFS."""
    files = [entry.url for entry in for_url(url).list_dir(url) if "tfevents" in entry.name]
    return b"".join(map(for_url(url).read_bytes, files))


@pytest.mark.variant
def test_logdir_is_usable_by_local_calls_helpers_and_tensorflow(project: str) -> None:
    result = experiment.collective_all_reduce(train, num_workers=1, progress=False)
    logdir, seen = result.metrics["logdir"], json.loads(result.metrics["seen"])
    assert logdir.endswith(result.logdir) and result.logdir.startswith("hdfs://")
    assert seen["is_local"] and {"best.keras", "plots", "train", "custom"} <= set(seen["listed"])
    there = names(result.logdir)
    assert {"plots/loss.txt", "model/notes.txt", "best.keras", "ckpt.index"} <= set(there), there
    assert any(name.startswith("train/events.out.tfevents") for name in there), there
    assert b"accuracy" in events(f"{result.logdir}/custom")
    assert for_url(project).read_bytes(f"{result.logdir}/plots/loss.txt") == b"falls"


@pytest.mark.variant  # of test_tf_hdfs.py: what needs the library in Rust
def test_url_within_logdir_is_opened_by_tensorflow(project: str) -> None:
    try:
        build_tf_hdfs.build()
    except build_tf_hdfs.NoCargo as missing:
        pytest.skip(str(missing))
    result = experiment.collective_all_reduce(train_by_url, num_workers=1, progress=False)
    assert result.metrics["there"] == 1
    assert b"accuracy" in events(result.logdir) and b"loss" in events(result.logdir), names(result.logdir)
    assert any(name.startswith("direct/train/events.out.tfevents") for name in names(result.logdir))
