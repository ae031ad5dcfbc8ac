"""Test of a real Spark standalone cluster: a job with distinct GPUs, and no leftovers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import clock
from tests.helpers.clock import END_S
from tools.hadoop import spark
from tools.spark_standalone import StandaloneError, StandaloneSpark, processes_of

pytestmark = pytest.mark.spark

# Both tasks wait for each other, so that two executors run them.
JOB = """
import json, sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession

def held(index):
    folder = Path(sys_folder)
    (folder / f"task-{index}").touch()
    while len(list(folder.glob("task-*"))) < 2:
        time.sleep(0.05)
    return TaskContext.get().resources()["gpu"].addresses

sys_folder = sys.argv[1]
context = SparkSession.builder.appName("standalone").getOrCreate().sparkContext
print("HELD " + json.dumps(context.parallelize(range(2), 2).map(held).collect()))
context.stop()
"""


@pytest.mark.variant  # of the tool alone; GPUs that are told apart: tests/integration/yarn/test_yarn_jobs.py
def test_standalone_job_uses_two_distinct_gpus_of_one_worker(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    conf = {
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.resource.gpu.amount": "1",
        "spark.task.resource.gpu.amount": "1",
        "spark.executor.extraJavaOptions": spark.QUICK_JVM,
        "spark.driver.extraJavaOptions": spark.QUICK_JVM,
        "spark.ui.enabled": "false",
        "spark.local.dir": str(tmp_path),
    }
    with StandaloneSpark(workers=1, cores=2, gpus=2) as cluster:
        home = cluster.home
        command = spark.submit_command(
            script, str(tmp_path), conf=conf | {"spark.master": cluster.url}, deploy_mode="client"
        )
        environment = spark.submit_env(tmp_path)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=END_S)
        assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("HELD ")]
    assert sorted(json.loads(line.removeprefix("HELD "))) == [["0"], ["1"]]
    assert not processes_of(home)
    assert not home.exists()


STARTER = """
import sys
from tools.spark_standalone import StandaloneSpark
with StandaloneSpark(workers=1) as cluster:
    print(cluster.home, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def starter() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has started a standalone cluster and waits."""
    command = [sys.executable, "-c", STARTER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


@pytest.mark.variant  # of the tool alone
def test_standalone_cluster_ends_with_a_killed_starter(starter: tuple[subprocess.Popen[str], Path]) -> None:
    process, home = starter
    assert len(processes_of(home)) == 2
    process.kill()
    deadline = clock.awake() + 10
    while (left := processes_of(home)) or home.exists():
        assert clock.awake() < deadline, f"{left} and {home} are left"
        time.sleep(0.05)


def test_daemon_that_cannot_start_is_named_with_its_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho no Java here >&2\nexit 7\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with (
        pytest.raises(StandaloneError, match=r"the master ended with status 7:\nno Java here"),
        StandaloneSpark(),
    ):
        pass


def test_standalone_cluster_without_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="workers=0"):
        StandaloneSpark(workers=0)
