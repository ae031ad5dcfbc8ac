"""Tests of Ctrl-C during the start of a SparkContext: it is awaited, and stopped in order."""

from __future__ import annotations

import functools
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hopsml import experiment
from hopsml.core import profiles
from hopsml.errors import ClusterError, UnsupportedVersion
from hopsml.experiment import applications
from hopsml.submission import spark_start
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast


class Context:
    """Stand-in for a SparkContext that records the calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def setLogLevel(self, level: str) -> None:
        self.asked.append(level)

    def stop(self) -> None:
        self.asked.append("stop")

    def cancelAllJobs(self) -> None:
        self.asked.append("cancel")


@pytest.fixture(autouse=True)
def usual_interrupt() -> object:
    before = signal.getsignal(signal.SIGINT)
    yield before
    signal.signal(signal.SIGINT, before)


def test_interrupt_during_spark_start_waits_and_stops_the_context() -> None:
    context, interrupted = Context(), threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def make() -> Context:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert interrupted.wait(END_S)
        return context

    signal.signal(signal.SIGINT, interrupt)
    with pytest.raises(KeyboardInterrupt, match="Spark was still starting; nothing runs"):
        applications._uninterrupted(make)
    assert context.asked == ["OFF", "stop"]


def test_interrupt_after_spark_start_cancels_jobs() -> None:
    context = Context()
    assert applications._uninterrupted(lambda: context) is context
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert context.asked == ["cancel"]


def test_error_at_spark_start_is_raised_and_other_threads_keep_the_signal_handler() -> None:
    def make() -> Context:
        raise ValueError("no such master")

    with pytest.raises(ValueError, match="no such master"):
        applications._uninterrupted(make)
    seen: list[Context] = []
    context = Context()
    thread = threading.Thread(target=lambda: seen.append(applications._uninterrupted(lambda: context)))
    before = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join(END_S)
    assert seen == [context] and signal.getsignal(signal.SIGINT) is before  # other threads receive no Ctrl-C


def test_note_explains_local_workers_after_stopped_spark() -> None:
    local: Any = functools.partial(applications.Application, "local-1", None, None, None, profile="local")
    assert "SparkSession.builder.getOrCreate()" in local(after_spark=True).other_application_note(None)
    assert (
        local(after_spark=True).other_application_note("local")
        == local(after_spark=False).other_application_note(None)
        == ""
    )


@pytest.mark.parametrize(
    "text",
    [
        "[INVALID_EXECUTOR_MEMORY] Insufficient executor memory.\nPlease increase it.\n\tat org.apache.spark.Memory",
        "An error occurred while calling None.JavaSparkContext.\n: [INVALID_EXECUTOR_MEMORY] Insufficient executor memory.\n"
        "Please increase it.\n\tat org.apache.spark.Memory",
    ],
    ids=["PySpark", "py4j"],
)
def test_spark_that_cannot_start_is_one_sentence_with_profile_and_remedy(text: str) -> None:
    profile = profiles.parse("tiny", "master: local-cluster[2,1,100]", "tiny.yaml")
    assert applications._start_failure(text, profile) == (
        "Spark could not start with profile 'tiny': [INVALID_EXECUTOR_MEMORY] Insufficient executor memory. Please increase "
        "it. Remedy: correct its master and the settings under spark:"
    )


EXITED = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."


def java_home(folder: Path, version: str) -> Path:
    """Create a folder for JAVA_HOME whose Java prints this version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("master", "version", "words"),
    [
        ("local-cluster[2,2,1024]", "11.0.2", ["Java 11 at ", "too old for Spark", "install Java 17", "JAVA_HOME"]),
        ("local-cluster[2,2,1024]", "", ["does not work: its version cannot be read", "install Java 17"]),
        ("yarn", "17.0.1", ["HADOOP_CONF_DIR is not set", "set HADOOP_CONF_DIR to the folder"]),
        ("yran", "17.0.1", ["'yran' is no master of Spark", "correct HOPSML_SPARK_MASTER: did you mean yarn?"]),
        ("local-cluster[2,2,1024]", "17.0.1", ["JAVA_GATEWAY_EXITED", "`hopsml doctor --profile tiny`"]),
    ],
)
def test_jvm_that_exits_at_its_start_is_reported_with_cause_and_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, master: str, version: str, words: list[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "java", version)))
    monkeypatch.setenv("HOPSML_SPARK_MASTER", master)
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    text = applications._jvm_failure(EXITED, profiles.parse("tiny", f"master: {master}", "tiny.yaml"))
    assert text.startswith("Spark could not start with profile 'tiny': ") and ". Remedy: " in text
    for word in words:
        assert word in text


def test_unreachable_master_is_reported_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_start, "MASTER_WAIT_S", 0.0)
    monkeypatch.setenv("HOPSML_SPARK_MASTER", "spark://127.0.0.1:1")
    profile = profiles.parse("standalone", "master: spark://127.0.0.1:1", "standalone.yaml")
    with pytest.raises(ClusterError) as caught:
        applications._create_context(profile)
    text = str(caught.value)
    assert "no Spark master accepts connections at spark://127.0.0.1:1 (127.0.0.1:1: Connection refused)" in text
    assert "Remedy: start the master there" in text and text.endswith("or correct HOPSML_SPARK_MASTER")


def test_spark_without_java_is_a_cluster_error_of_the_verbs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    monkeypatch.setenv("SPARK_WORKER_DIR", str(tmp_path))
    profile = profiles.parse("tiny", "master: local-cluster[1,1,1024]", "tiny.yaml")
    with pytest.raises(ClusterError, match=r"gone/bin/java \(from JAVA_HOME\) does not work.* Remedy: install Java 17"):
        applications._create_context(profile)


def test_spark_that_cannot_serialize_functions_of_this_python_is_refused_before_its_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import pyspark

    monkeypatch.setattr(pyspark, "__version__", "3.3.4")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")  # which the profile would set
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")
    monkeypatch.delenv("HOPSML_ANY_VERSION", raising=False)
    with pytest.raises(
        UnsupportedVersion, match=r"cloudpickle of Spark 3\.3 .* use Python 3\.10, or HOPSML_ANY_VERSION=1"
    ):
        experiment.launch(lambda: 1.0, profile="local-cluster", progress=False)
    assert pyspark.SparkContext._active_spark_context is None


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("spark", ["3.3", "4.3"])
def test_context_is_stopped_with_the_exit_status_that_its_spark_can_take(
    monkeypatch: pytest.MonkeyPatch, spark: str, failed: bool
) -> None:
    """Spark 3.3 has no ``stop(int)``: py4j raises a Py4JError then."""
    from py4j.protocol import Py4JError

    calls: list[str] = []

    class Scala:
        def stop(self, status: int) -> None:
            if spark == "3.3":
                raise Py4JError("Method stop([class java.lang.Integer]) does not exist")
            calls.append(f"stop({status})")

    class Stoppable:
        def __init__(self) -> None:
            self._jsc = self

        def sc(self) -> Scala:
            return Scala()

        def stop(self) -> None:
            calls.append("stop")

    monkeypatch.setattr(applications, "_failed", failed)
    applications._stop(Stoppable())
    assert calls == (["stop(1)", "stop"] if failed and spark == "4.3" else ["stop"])
