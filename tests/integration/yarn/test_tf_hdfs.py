"""Tests of TensorFlow on ``hdfs://`` by hopsml's file system, on a real HDFS.

Successful cases are in jobs/tensorflow_files.py and run in one process; failures are here, each in a separate process,
since the library's threads live as long as their process.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.storage.filesystem import close_all, for_url
from tests.helpers import clock, pages
from tests.helpers.clock import END_S
from tests.integration.yarn.conftest import Hadoop
from tests.integration.yarn.jobs.tensorflow_files import CASES
from tools import build_tf_hdfs

pytestmark = [pytest.mark.hadoop, pytest.mark.variant]

SCRIPT = Path(__file__).parent / "jobs" / "tensorflow_files.py"
REGISTERED = (
    "import tensorflow as tf\nfrom hopsml.tensorflow import register_hdfs\nregister_hdfs()\ngfile = tf.io.gfile\n"
)


@pytest.fixture(scope="module", autouse=True)
def library() -> Path:
    """Build the library on first use."""
    try:
        return build_tf_hdfs.build()
    except build_tf_hdfs.NoCargo as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def outcomes(hadoop: Hadoop, library: Path) -> Iterator[dict[str, str]]:
    """Return case -> error text, "" for success."""
    base = f"{hadoop.namenode_url}/tests/{secrets.token_hex(8)}"
    command = [sys.executable, str(SCRIPT), base]
    done = subprocess.run(command, env=environment(hadoop), capture_output=True, text=True, timeout=END_S)
    entries = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    yield {entry["case"]: entry["problem"] for entry in entries} | (
        {"": done.stderr[-4000:]} if done.returncode else {}
    )
    for_url(base).delete(base, recursive=True)
    close_all()


@pytest.mark.parametrize("name", list(CASES))
def test_tensorflow_file_operation_succeeds_on_hdfs(outcomes: dict[str, str], name: str) -> None:
    assert name in outcomes, f"not played: the process ended early: {outcomes.get('')}"
    assert outcomes[name] == ""


def environment(hadoop: Hadoop, **more: str) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if key != "HADOOP_USER_NAME"}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    root = str(Path(__file__).parents[3])
    return {**inherited, **quiet, "PYTHONPATH": root, "HADOOP_CONF_DIR": str(hadoop.conf_dir), **more}


class Process:
    """TensorFlow process that runs lines of Python and answers each with its exception, or ok."""

    def __init__(self, hadoop: Hadoop, **more: str) -> None:
        loop = (
            REGISTERED + "import sys, time\nnames = dict(globals())\nfor line in sys.stdin:\n"
            "    began = time.monotonic()\n"
            "    try:\n        exec(line.strip().replace('\\\\n', chr(10)), names); said = 'ok'\n"
            "    except Exception as error:\n        said = type(error).__name__ + ': ' + str(error)\n"
            "    print('answer', round(time.monotonic() - began, 1), said.replace(chr(10), ' '), flush=True)\n"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", loop],
            env=environment(hadoop, **more),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, line: str) -> tuple[float, str]:
        """Run a line; return its duration in seconds and the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line.replace("\n", "\\n") + "\n")
        self._process.stdin.flush()
        for printed in self._process.stdout:
            if printed.startswith("answer "):
                _, seconds, answer = printed.strip().split(" ", 2)
                return float(seconds), answer
        raise AssertionError(f"ended with {self._process.wait()}")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def at(hadoop: Hadoop) -> Iterator[str]:
    """Yield a new folder on HDFS."""
    url = f"{hadoop.namenode_url}/tests/{secrets.token_hex(8)}"
    for_url(url).make_dirs(url)
    for_url(url).write_bytes(f"{url}/f", b"x" * 3_000_000)
    yield url
    for_url(url).delete(url, recursive=True)
    close_all()


@pytest.fixture
def process(hadoop: Hadoop, library: Path) -> Iterator[Process]:
    process = Process(hadoop, HOPSML_STORAGE_TIMEOUT_S="3")
    yield process
    process.end()


def test_frozen_namenode_times_out_each_operation(hadoop: Hadoop, at: str, process: Process) -> None:
    assert process.ask(f"assert gfile.exists('{at}/f')") == (pytest.approx(0, abs=3), "ok")
    hadoop.kill("nn", signal_number=signal.SIGSTOP)
    try:
        for call in (f"gfile.stat('{at}/f')", f"tf.io.read_file('{at}/f')", f"gfile.GFile('{at}/g', 'wb').write(b'x')"):
            seconds, answer = process.ask(call)
            assert "no answer from HDFS in 3 s (HOPSML_STORAGE_TIMEOUT_S)" in answer and at in answer, answer
            assert answer.startswith("DeadlineExceededError") and seconds < 15
    finally:
        hadoop.kill("nn", signal_number=signal.SIGCONT)
    assert process.ask(f"assert len(tf.io.read_file('{at}/f').numpy()) == 3_000_000")[1] == "ok"


def test_frozen_datanodes_time_out_a_read(hadoop: Hadoop, at: str, process: Process) -> None:
    assert process.ask(f"gfile.exists('{at}/f')")[1] == "ok"
    datanodes = hadoop.names("dn")
    for name in datanodes:
        hadoop.kill(name, signal_number=signal.SIGSTOP)
    try:
        seconds, answer = process.ask(f"tf.io.read_file('{at}/f')")
        assert answer.startswith(("DeadlineExceededError", "UnavailableError")) and at in answer, answer
        assert seconds < 30
    finally:
        for name in datanodes:
            hadoop.kill(name, signal_number=signal.SIGCONT)
    assert process.ask(f"tf.io.read_file('{at}/f')")[1] == "ok"


def test_one_frozen_datanode_does_not_fail_a_read(hadoop: Hadoop, at: str, process: Process) -> None:
    assert process.ask(f"for n in range(6): gfile.GFile(f'{at}/{{n}}', 'wb').write('x' * 300_000)")[1] == "ok"
    silent = hadoop.names("dn")[0]
    hadoop.kill(silent, signal_number=signal.SIGSTOP)
    try:
        for number in range(6):
            seconds, answer = process.ask(f"assert len(tf.io.read_file('{at}/{number}').numpy()) == 300_000")
            assert answer == "ok" and seconds < 10
    finally:
        hadoop.kill(silent, signal_number=signal.SIGCONT)


def test_namenode_outage_is_an_error_until_it_is_restarted(hadoop: Hadoop, at: str, process: Process) -> None:
    assert process.ask(f"gfile.exists('{at}/f')")[1] == "ok"
    hadoop.kill("nn")
    try:
        seconds, answer = process.ask(f"gfile.stat('{at}/f')")
        assert answer.startswith(("UnavailableError", "DeadlineExceededError")) and at in answer, answer
        assert seconds < 15
    finally:
        hadoop.revive("nn")
    assert process.ask(f"tf.io.read_file('{at}/f')")[1] == "ok"


def test_missing_permission_is_a_permission_error(hadoop: Hadoop, at: str, library: Path) -> None:
    for_url(at).set_permission(at, 0o700)
    process = Process(hadoop, HADOOP_USER_NAME="stranger")
    try:
        for call in (f"gfile.GFile('{at}/g', 'wb').write(b'x')", f"gfile.listdir('{at}')", f"gfile.stat('{at}/f')"):
            answer = process.ask(call)[1]
            assert answer.startswith("PermissionDeniedError") and at in answer, answer
    finally:
        process.end()


def test_safe_mode_refuses_writes_and_permits_reads(hadoop: Hadoop, at: str, process: Process) -> None:
    hadoop.dfsadmin("-safemode", "enter")
    try:
        answer = process.ask(f"gfile.GFile('{at}/g', 'wb').write(b'x')")[1]
        assert answer.startswith("UnavailableError") and "safe mode" in answer and at in answer, answer
        assert process.ask(f"tf.io.read_file('{at}/f')")[1] == "ok"
    finally:
        hadoop.dfsadmin("-safemode", "leave")


def test_exceeded_quota_is_an_error(hadoop: Hadoop, at: str, process: Process) -> None:
    path = "/" + at.split("/", 3)[3]
    hadoop.dfsadmin("-setQuota", "2", path)
    answer = process.ask(f"gfile.GFile('{at}/g', 'wb').write(b'x')")[1]
    assert answer.startswith("ResourceExhaustedError") and at in answer, answer


def test_file_deleted_during_a_read_gives_its_bytes_or_an_error(at: str, process: Process) -> None:
    """Its blocks may exist for a while: all bytes, or an error that names the file; never fewer bytes."""
    process.ask(f"file = gfile.GFile('{at}/f', 'rb'); assert len(file.read(1000)) == 1000")
    for_url(at).delete(f"{at}/f", recursive=False)
    answer = process.ask("rest = file.read(); assert len(rest) == 2_999_000, len(rest)")[1]
    assert answer == "ok" or (not answer.startswith("AssertionError") and at in answer), answer


def test_file_replaced_during_a_read_gives_the_old_bytes_or_an_error(at: str, process: Process) -> None:
    """Neither truncated nor mixed, as on a local disk; its blocks exist for a while."""
    process.ask(
        f"file = gfile.GFile('{at}/f', 'rb'); assert len(file.read(1000)) == 1000; import time; time.sleep(0.2)"
    )
    for_url(at).write_bytes(f"{at}/f", b"short")
    answer = process.ask("rest = file.read(2_999_000); assert rest == b'x' * 2_999_000, len(rest)")[1]
    assert answer == "ok" or (not answer.startswith("AssertionError") and at in answer), answer
    assert process.ask(f"assert tf.io.read_file('{at}/f').numpy() == b'short'")[1] == "ok"


def test_unreadable_folder_does_not_hide_the_others_in_a_glob(hadoop: Hadoop, at: str, library: Path) -> None:
    for name in ("mine", "theirs"):
        for_url(at).write_bytes(f"{at}/{name}/f", b"x")
    for_url(at).set_permission(at, 0o755)
    for_url(at).set_permission(f"{at}/theirs", 0o755)
    for_url(at).set_permission(f"{at}/mine", 0o700)
    process = Process(hadoop, HADOOP_USER_NAME="stranger")
    try:
        found = f"[path.rsplit('/', 2)[1] for path in gfile.glob('{at}/*/*')]"
        assert process.ask(f"assert {found} == ['theirs'], {found}")[1] == "ok"
    finally:
        process.end()


def test_failed_write_is_an_error_at_close(hadoop: Hadoop, at: str, process: Process) -> None:
    writing = "import os; file = gfile.GFile('{at}/g', 'wb'); file.write(os.urandom(4_000_000)); file.flush()"
    assert process.ask(writing.format(at=at))[1] == "ok"
    datanodes = hadoop.names("dn")
    for name in datanodes:
        hadoop.kill(name, signal_number=signal.SIGSTOP)
    try:
        answer = "ok"
        deadline = clock.awake() + 60
        while answer == "ok" and clock.awake() < deadline:  # until buffers of both sides are full
            answer = process.ask("file.write(os.urandom(4_000_000)); file.flush()")[1]
        assert answer.startswith(("DeadlineExceededError", "UnavailableError")), answer
        answer = process.ask("file.close()")[1]
        assert "a part is lost" in answer and at in answer, answer
    finally:
        for name in datanodes:
            hadoop.kill(name, signal_number=signal.SIGCONT)


def test_documented_snippet_reads_a_dataset(at: str, process: Process) -> None:
    write = f"tf.io.TFRecordWriter('{at}/a.tfrecord').write(b'x')"
    shown = pages.snippet("docs/how-to/storage.md", "tf.io.gfile.glob(").rstrip().replace("hdfs:///data/clicks", at)
    assert process.ask(write)[1] == "ok"
    assert process.ask(f"{shown}\n    assert [one.numpy() for one in dataset] == [b'x']\ntrain()")[1] == "ok"


def test_training_function_opens_hdfs_itself(hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    """As in published code: TensorFlow and the helpers both write to a path on HDFS."""
    url = f"{hadoop.namenode_url}/Projects/{secrets.token_hex(8)}"
    monkeypatch.setenv("HOPSML_PROJECT_URL", url)
    monkeypatch.setenv("HOPSML_PROFILE", "local")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))

    def train(folder: str) -> dict[str, Any]:
        import tensorflow as tf

        import hopsml

        logdir = hopsml.tensorboard.logdir()
        with tf.summary.create_file_writer(logdir).as_default():
            tf.summary.scalar("loss", 1.0, step=1)
        hopsml.hdfs.mkdir(logdir + "/model")
        rank = hopsml.distributed.rank()
        with tf.io.TFRecordWriter(f"{folder}/{rank}.tfrecord") as writer:
            for number in range(10):
                writer.write(f"{rank} {number}".encode())
        hopsml.barrier()
        files = sorted(tf.io.gfile.glob(f"{folder}/*.tfrecord"))
        tf.train.Checkpoint(v=tf.Variable(float(rank))).write(f"{folder}/checkpoint-{rank}")
        return {"records": sum(1 for _ in tf.data.TFRecordDataset(files)), "logdir": logdir}

    try:
        for_url(url).make_dirs(f"{url}/data")
        result = experiment.collective_all_reduce(train, args={"folder": f"{url}/data"}, num_workers=2, progress=False)
        assert result.metrics["records"] == 20
        names = {entry.url.rsplit("/", 1)[1] for entry in for_url(url).list_dir(f"{url}/data")}
        assert {"0.tfrecord", "1.tfrecord", "checkpoint-0.index", "checkpoint-1.index"} <= names
        events = [entry.url.rsplit("/", 1)[1] for entry in for_url(url).list_dir(result.logdir)]
        assert "model" in events and any("tfevents" in name for name in events), events
    finally:
        experiment.shutdown()
        close_all()
