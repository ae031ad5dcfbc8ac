"""Cases of TensorFlow's use of ``hdfs://``, each run in a separate process by test_tf_hdfs.py.

    python tensorflow_files.py hdfs://host:port/folder [CASE ...]

Prints a line of JSON for each case: its name, and its failure, "" for none. Each case has a separate folder. The
first half are TensorFlow's cases for file systems, written for ``tf.io.gfile``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest

Case = Callable[[Any, str], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def write(tf: Any, path: str, data: bytes) -> None:
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(data)


def read(tf: Any, path: str) -> bytes:
    with tf.io.gfile.GFile(path, "rb") as file:
        return bytes(file.read())


def refuses(error: Any, call: Callable[[], Any]) -> None:
    """``call`` raises this error, and its text names a path on HDFS."""
    with pytest.raises(error, match="hdfs://"):
        call()


@case
def new_file(tf: Any, at: str) -> None:
    write(tf, f"{at}/f", b"hello\nworld\n")
    assert read(tf, f"{at}/f") == b"hello\nworld\n"
    assert list(tf.io.gfile.GFile(f"{at}/f")) == ["hello\n", "world\n"]
    assert tf.io.gfile.stat(f"{at}/f").length == 12


@case
def empty_file(tf: Any, at: str) -> None:
    write(tf, f"{at}/f", b"")
    assert read(tf, f"{at}/f") == b"" and tf.io.gfile.stat(f"{at}/f").length == 0


@case
def overwritten_file(tf: Any, at: str) -> None:
    write(tf, f"{at}/f", b"long " * 1000)
    write(tf, f"{at}/f", b"short")
    assert read(tf, f"{at}/f") == b"short"


@case
def file_in_a_missing_folder(tf: Any, at: str) -> None:
    write(tf, f"{at}/a/b/f", b"x")  # HDFS makes the folders, as an object store would
    assert tf.io.gfile.isdir(f"{at}/a/b")


@case
def write_in_a_folders_place(tf: Any, at: str) -> None:
    tf.io.gfile.makedirs(f"{at}/d")
    refuses(tf.errors.FailedPreconditionError, lambda: write(tf, f"{at}/d", b"x"))


@case
def read_a_missing_file(tf: Any, at: str) -> None:
    refuses(tf.errors.NotFoundError, lambda: read(tf, f"{at}/none"))


@case
def read_a_folder(tf: Any, at: str) -> None:
    tf.io.gfile.makedirs(f"{at}/d")
    refuses(tf.errors.FailedPreconditionError, lambda: read(tf, f"{at}/d"))


@case
def seek_and_tell(tf: Any, at: str) -> None:
    data = bytes(range(256)) * 10_000
    write(tf, f"{at}/f", data)
    with tf.io.gfile.GFile(f"{at}/f", "rb") as file:
        for offset in (0, 5, 2_000_000, 100, 2_559_999, 101):
            file.seek(offset)
            assert file.read(700) == data[offset : offset + 700] and file.tell() == min(offset + 700, len(data))
        assert file.size() == len(data)


@case
def append(tf: Any, at: str) -> None:
    for part in (b"one", b"two"):
        with tf.io.gfile.GFile(f"{at}/f", "ab") as file:
            file.write(part)
    assert read(tf, f"{at}/f") == b"onetwo"


@case
def tell_while_appending(tf: Any, at: str) -> None:
    write(tf, f"{at}/f", b"12345")
    with tf.io.gfile.GFile(f"{at}/f", "ab") as file:
        assert file.tell() == 5
        file.write(b"678")
        assert file.tell() == 8


@case
def append_to_a_folder(tf: Any, at: str) -> None:
    tf.io.gfile.makedirs(f"{at}/d")

    def do() -> None:
        with tf.io.gfile.GFile(f"{at}/d", "ab") as file:
            file.write(b"x")

    refuses(tf.errors.FailedPreconditionError, do)


@case
def flushed_is_seen(tf: Any, at: str) -> None:
    with tf.io.gfile.GFile(f"{at}/f", "wb") as file:
        file.write(b"first")
        file.flush()
        assert read(tf, f"{at}/f") == b"first"
        file.write(b" second")
    assert read(tf, f"{at}/f") == b"first second"


@case
def large_writes(tf: Any, at: str) -> None:
    data = os.urandom(3_500_001)
    with tf.io.gfile.GFile(f"{at}/f", "wb") as file:
        for begin in range(0, len(data), 1_300_000):
            file.write(data[begin : begin + 1_300_000])
    assert read(tf, f"{at}/f") == data
    assert tf.io.read_file(f"{at}/f").numpy() == data


@case
def folders(tf: Any, at: str) -> None:
    gfile = tf.io.gfile
    gfile.mkdir(f"{at}/d")
    gfile.mkdir(f"{at}/d")  # TensorFlow's mkdir accepts an existing folder
    gfile.makedirs(f"{at}/a/b/c")
    gfile.makedirs(f"{at}/a/b/c")
    assert gfile.isdir(f"{at}/a/b/c") and not gfile.isdir(f"{at}/none")
    refuses(tf.errors.NotFoundError, lambda: gfile.mkdir(f"{at}/none/d"))
    write(tf, f"{at}/f", b"x")
    assert not gfile.isdir(f"{at}/f")
    refuses(tf.errors.FailedPreconditionError, lambda: gfile.makedirs(f"{at}/f/d"))


@case
def remove(tf: Any, at: str) -> None:
    gfile = tf.io.gfile
    write(tf, f"{at}/d/f", b"x")
    refuses(tf.errors.FailedPreconditionError, lambda: gfile.remove(f"{at}/d"))
    gfile.remove(f"{at}/d/f")
    assert not gfile.exists(f"{at}/d/f")
    refuses(tf.errors.NotFoundError, lambda: gfile.remove(f"{at}/d/f"))


@case
def remove_a_tree(tf: Any, at: str) -> None:
    gfile = tf.io.gfile
    write(tf, f"{at}/d/e/f", b"x")
    gfile.rmtree(f"{at}/d")
    assert not gfile.exists(f"{at}/d")
    refuses(tf.errors.NotFoundError, lambda: gfile.rmtree(f"{at}/d"))


@case
def rename(tf: Any, at: str) -> None:
    gfile = tf.io.gfile
    write(tf, f"{at}/f", b"1")
    gfile.rename(f"{at}/f", f"{at}/g")
    assert read(tf, f"{at}/g") == b"1" and not gfile.exists(f"{at}/f")
    write(tf, f"{at}/h", b"2")
    try:
        gfile.rename(f"{at}/g", f"{at}/h")
        raise AssertionError("renamed onto another file, unasked")
    except tf.errors.AlreadyExistsError:
        pass
    gfile.rename(f"{at}/g", f"{at}/h", overwrite=True)
    assert read(tf, f"{at}/h") == b"1"
    write(tf, f"{at}/d/e/f", b"3")
    gfile.rename(f"{at}/d", f"{at}/moved")
    assert read(tf, f"{at}/moved/e/f") == b"3"
    refuses(tf.errors.NotFoundError, lambda: gfile.rename(f"{at}/none", f"{at}/n"))


@case
def copy(tf: Any, at: str) -> None:
    import tempfile

    gfile = tf.io.gfile
    write(tf, f"{at}/f", b"1" * 2_000_000)
    gfile.copy(f"{at}/f", f"{at}/g")
    with tempfile.TemporaryDirectory() as local:
        gfile.copy(f"{at}/g", f"{local}/h")
        gfile.copy(f"{local}/h", f"{at}/i")
    assert read(tf, f"{at}/i") == b"1" * 2_000_000


@case
def list_and_walk(tf: Any, at: str) -> None:
    gfile = tf.io.gfile
    for name in ("a/f", "a/g", "b/c/h"):
        write(tf, f"{at}/{name}", b"x")
    assert sorted(gfile.listdir(f"{at}/a")) == ["f", "g"]
    found = {folder.removeprefix(at): (sorted(folders), sorted(files)) for folder, folders, files in gfile.walk(at)}
    assert found == {"": (["a", "b"], []), "/a": ([], ["f", "g"]), "/b": (["c"], []), "/b/c": ([], ["h"])}, found
    refuses(tf.errors.NotFoundError, lambda: gfile.listdir(f"{at}/none"))
    refuses(tf.errors.NotFoundError, lambda: gfile.listdir(f"{at}/a/f"))  # TensorFlow calls is_directory first


@case
def glob(tf: Any, at: str) -> None:
    for name in ("a/x.txt", "a/y.txt", "a/z.csv", "b/x.txt", "b/c/x.txt"):
        write(tf, f"{at}/{name}", b"x")

    def found(pattern: str) -> list[str]:
        return sorted(path.removeprefix(f"{at}/") for path in tf.io.gfile.glob(f"{at}/{pattern}"))

    assert found("*/*.txt") == ["a/x.txt", "a/y.txt", "b/x.txt"]
    assert found("a/[x-y].t?t") == ["a/x.txt", "a/y.txt"]
    assert found("[^a]/*") == ["b/c", "b/x.txt"]
    assert found("*/c/x.txt") == ["b/c/x.txt"]
    assert found("none/*") == found("a/x.txt/*") == [] and found("a/x.txt") == ["a/x.txt"]
    assert sorted(path.decode().removeprefix(at) for path in tf.io.matching_files(f"{at}/*/x.txt").numpy()) == [
        "/a/x.txt",
        "/b/x.txt",
    ]


@case
def odd_names(tf: Any, at: str) -> None:
    for name in ("ü x%20+#?", "a:b", "[1]", "*", "'\""):
        if name != "a:b":  # a NameNode takes no colon
            write(tf, f"{at}/{name}", name.encode())
            assert read(tf, f"{at}/{name}") == name.encode()
    assert "ü x%20+#?" in tf.io.gfile.listdir(at)
    refuses(tf.errors.OpError, lambda: write(tf, f"{at}/a:b", b"x"))
    write(tf, f"{at}/d/f", b"x")
    assert read(tf, f"{at}//d/.//../d/f") == b"x"


@case
def default_file_system(tf: Any, at: str) -> None:
    write(tf, f"{at}/f", b"x")
    assert read(tf, "hdfs:///" + at.split("/", 3)[3] + "/f") == b"x"


@case
def records(tf: Any, at: str) -> None:
    for number in range(4):
        with tf.io.TFRecordWriter(f"{at}/{number}.tfrecord") as writer:
            for index in range(500):
                writer.write(f"{number} {index}".encode() * 20)
    files = sorted(tf.io.gfile.glob(f"{at}/*.tfrecord"))
    wanted = [f"{number} {index}".encode() * 20 for number in range(4) for index in range(500)]
    assert [record.numpy() for record in tf.data.TFRecordDataset(files)] == wanted
    for options in ({"num_parallel_reads": 4}, {"buffer_size": 0}):
        assert sorted(r.numpy() for r in tf.data.TFRecordDataset(files, **options)) == sorted(wanted), options
    mixed = tf.data.Dataset.list_files(f"{at}/*.tfrecord").interleave(tf.data.TFRecordDataset, num_parallel_calls=2)
    assert sum(1 for _ in mixed) == 2000


@case
def corrupt_records(tf: Any, at: str) -> None:
    with tf.io.TFRecordWriter(f"{at}/whole") as writer:
        for index in range(100):
            writer.write(str(index).encode() * 50)
    data = bytearray(read(tf, f"{at}/whole"))
    data[len(data) // 2] ^= 255
    write(tf, f"{at}/corrupt", bytes(data))
    try:
        list(tf.data.TFRecordDataset(f"{at}/corrupt"))
        raise AssertionError("read, though corrupt")
    except tf.errors.DataLossError:
        pass


@case
def other_datasets(tf: Any, at: str) -> None:
    tf.data.Dataset.range(100).save(f"{at}/saved")
    assert sum(1 for _ in tf.data.Dataset.load(f"{at}/saved")) == 100
    cached = tf.data.Dataset.range(100).cache(f"{at}/cache")
    assert [sum(1 for _ in cached) for _ in range(2)] == [100, 100]
    write(tf, f"{at}/t", b"a\nb\n")
    assert [line.numpy() for line in tf.data.TextLineDataset(f"{at}/t")] == [b"a", b"b"]


@case
def events_while_they_are_written(tf: Any, at: str) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = tf.summary.create_file_writer(at)
    board = EventAccumulator(at)

    def newest() -> int:
        board.Reload()
        return int(board.Tensors("loss")[-1].step)

    for end in (50, 100):
        with writer.as_default():
            for step in range(end - 50, end):
                tf.summary.scalar("loss", 1.0, step=step)
        writer.flush()
        deadline = time.monotonic() + 10  # a reader at the end polls every 100 ms
        while newest() != end - 1:
            assert time.monotonic() < deadline, f"step {newest()}, and not {end - 1}"
    writer.close()
    assert newest() == 99


@case
def checkpoints(tf: Any, at: str) -> None:
    variable = tf.Variable(tf.random.normal([1000]))
    wanted = variable.numpy()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(v=variable), at, max_to_keep=2)
    for _ in range(4):
        manager.save()
    assert tf.train.latest_checkpoint(at) == f"{at}/ckpt-4"
    assert sorted(name for name in tf.io.gfile.listdir(at) if name.endswith("index")) == [
        "ckpt-3.index",
        "ckpt-4.index",
    ]
    variable.assign(tf.zeros([1000]))
    manager.restore_or_initialize()
    assert (variable.numpy() == wanted).all()


@case
def saved_model(tf: Any, at: str) -> None:
    class Doubling(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return x * 2.0

    tf.saved_model.save(Doubling(), f"{at}/model")
    assert float(tf.saved_model.load(f"{at}/model")(3.0)) == 6.0


@case
def keras_files(tf: Any, at: str) -> None:
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x = np.ones((8, 4), "float32")
    model.save(f"{at}/m.keras")
    assert np.allclose(keras.models.load_model(f"{at}/m.keras").predict(x, verbose=0), model.predict(x, verbose=0))
    model.save_weights(f"{at}/m.weights.h5")
    model.load_weights(f"{at}/m.weights.h5")
    callbacks = [
        keras.callbacks.TensorBoard(f"{at}/board"),
        keras.callbacks.ModelCheckpoint(f"{at}/epoch-{{epoch}}.keras"),
        keras.callbacks.BackupAndRestore(f"{at}/backup", delete_checkpoint=False),
    ]
    model.fit(x, np.ones((8, 2), "float32"), epochs=2, verbose=0, callbacks=callbacks)
    names = set(tf.io.gfile.listdir(at))
    assert {"m.keras", "epoch-1.keras", "epoch-2.keras", "board", "backup"} <= names, names


@case
def threads(tf: Any, at: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def many(thread: int) -> None:
        for index in range(20):
            data = f"{thread} {index} ".encode() * 5_000
            write(tf, f"{at}/{thread}-{index}", data)
            assert read(tf, f"{at}/{thread}-{index}") == data

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(many, range(8)))


@case
def ten_thousand_opens(tf: Any, at: str) -> None:
    """Memory, threads and descriptors stay as they are."""
    import psutil

    write(tf, f"{at}/f", b"x" * 1000)
    own = psutil.Process()

    def open_often(times: int) -> tuple[int, int, int]:
        for _ in range(times):
            tf.io.read_file(f"{at}/f")
        return own.memory_info().rss, own.num_threads(), own.num_fds()

    before, after = open_often(1_000), open_often(9_000)
    assert after[0] - before[0] < 30_000_000, (before, after)
    assert after[1] <= before[1] + 2 and after[2] <= before[2] + 4, (before, after)  # sockets remain open for 3 s


@case
def forked_after_use(tf: Any, at: str) -> None:
    """A forked child gets an error, and the parent's data are unaffected."""
    write(tf, f"{at}/f", b"parent" * 1000)
    child = os.fork()
    if child == 0:
        try:
            read(tf, f"{at}/f")
            os._exit(1)
        except tf.errors.FailedPreconditionError as error:
            os._exit(0 if "forked" in str(error) else 2)
    assert os.waitpid(child, 0)[1] == 0
    assert read(tf, f"{at}/f") == b"parent" * 1000


def main(base: str, names: list[str]) -> None:
    """Run the cases, each in a folder below ``base``."""
    import tensorflow as tf

    from hopsml.tensorflow import register_hdfs

    register_hdfs()
    register_hdfs()  # no harm
    for name in names or list(CASES):
        tf.io.gfile.makedirs(f"{base}/{name}")
        try:
            CASES[name](tf, f"{base}/{name}")
            problem = ""
        except Exception:  # noqa: BLE001 reported to the test
            problem = traceback.format_exc()
        print(json.dumps({"case": name, "problem": problem}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
