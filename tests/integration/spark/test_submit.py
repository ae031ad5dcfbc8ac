"""Tests of ``hopsml submit`` with a local driver: Ctrl-C or SIGTERM cancels the run with a short message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.clock import END_S
from tests.integration.spark.conftest import ROOT, spark_environment

pytestmark = pytest.mark.spark

JOB = """
import hopsml

def train():
    import time
    print("it trains", flush=True)
    time.sleep(600)

hopsml.experiment.collective_all_reduce(train, num_workers=1)
"""
HOPSML = str(Path(sys.executable).with_name("hopsml"))
FEW_LINES = 20  # Python's own traceback among them


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, None], ids=["INT", "TERM", "cancel"])
@pytest.mark.variant
def test_cancelled_submission_prints_no_java_stack_trace(tmp_path: Path, number: signal.Signals | None) -> None:
    """The submission is cancelled by a signal, or by ``hopsml runs cancel`` from another terminal."""
    profile = (ROOT / "conf" / "local-cluster.yaml").read_text().replace("[2,2,1024]", "[1,1,1024]")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "one.yaml").write_text(profile)
    (tmp_path / "executors").mkdir()
    (tmp_path / "job.py").write_text(JOB)
    with spark_environment() as environment:
        environment.setenv("HOPSML_CONF_DIR", str(tmp_path / "conf"))
        environment.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")
        environment.setenv("SPARK_WORKER_DIR", str(tmp_path / "executors"))
        environment.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "executors"))
        job = subprocess.Popen(
            [HOPSML, "submit", "job.py", "--profile", "one"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
    assert job.stdout is not None
    with job:
        while "it trains" not in (line := job.stdout.readline()):
            assert line, "it ended before"
        if number is None:
            (run,) = (tmp_path / "project").glob("Experiments/*")
            cancelled = subprocess.run([HOPSML, "runs", "cancel", run], capture_output=True, text=True, timeout=END_S)
            assert (cancelled.returncode, cancelled.stdout) == (0, f"{run.name}: CANCELLED\n"), cancelled.stderr
        else:
            os.killpg(job.pid, number)  # as a terminal does it: every process of the foreground group
        output = job.stdout.read()
    assert job.returncode == (1 if number is None else 128 + number)
    assert "\tat " not in output and "java." not in output and len(output.splitlines()) <= FEW_LINES, output
    (status,) = (tmp_path / "project").glob("Experiments/*/status.json")
    assert json.loads(status.read_text())["state"] == "CANCELLED"


LOOKS = """
import pathlib, sys
from hopsml.experiment import applications

conf = dict(applications.get_or_start("secret").backend.context.getConf().getAll())
lines = [path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
java = [line for line in lines if b"SparkSubmit" in line]
print("java", len(java) > 0, "shown", sum(b"s3cr3t-31415" in line for line in lines))
print("known", conf["spark.example.password"], conf["spark.executorEnv.COLOUR"], conf["spark.example.plain"])
print("by default", conf.get("spark.example.default"))
applications.shutdown(spark=True)
"""


@pytest.mark.variant  # of integration/yarn/test_planted.py
@pytest.mark.parametrize("door", ["submit", "script"])
def test_command_lines_contain_no_secret_of_the_profile(tmp_path: Path, door: str) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "secret.yaml").write_text(
        'master: local[1]\nspark: {spark.ui.enabled: false, spark.example.password: "s3cr3t-31415 =x", '
        "spark.executorEnv.COLOUR: s3cr3t-31415, spark.example.plain: 1}\n"
    )
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.example.default yes\nspark.example.password no\n")
    (tmp_path / "job.py").write_text(LOOKS)
    command = [str(Path(sys.executable).with_name("hopsml")), "submit", "job.py", "--profile", "secret"]
    with spark_environment() as environment:
        environment.setenv("HOPSML_CONF_DIR", str(tmp_path / "conf"))
        environment.setenv("SPARK_CONF_DIR", str(tmp_path / "conf"))
        environment.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")
        done = subprocess.run(
            command if door == "submit" else [sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert "java True shown 0" in done.stdout and "known s3cr3t-31415 =x s3cr3t-31415 1" in done.stdout
    assert "by default yes" in done.stdout


@pytest.mark.variant
def test_interrupt_during_spark_start_is_reported_briefly(tmp_path: Path) -> None:
    (tmp_path / "executors").mkdir()
    (tmp_path / "job.py").write_text(JOB)
    with spark_environment() as environment:
        environment.setenv("HOPSML_PROFILE", "local-cluster")
        environment.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")
        environment.setenv("SPARK_WORKER_DIR", str(tmp_path / "executors"))
        environment.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "executors"))
        job = subprocess.Popen(
            [sys.executable, "job.py"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
        )  # fmt: skip
    assert job.stdout is not None
    with job:
        while "Setting Spark log level" not in (line := job.stdout.readline()):
            assert line, "it ended before"
        os.killpg(job.pid, signal.SIGINT)
        output = job.stdout.read()
    assert job.returncode == -signal.SIGINT
    assert "Spark was still starting; nothing runs" in output and "py4j" not in output and "ERROR" not in output, output
