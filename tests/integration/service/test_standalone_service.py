"""Test of the job service on a real standalone Spark cluster: drivers outlive the service, and jobs end in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hopsml.client import Client, ServiceJobDetail
from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tools.spark_standalone import StandaloneSpark

pytestmark = [pytest.mark.spark]

TRAIN = """
def main(name, folder):
    import os, time
    import hopsml
    print("rank", hopsml.distributed.rank(), "of", name, flush=True)
    open(f"{folder}/{name}.starts", "a").write("x")
    while not os.path.exists(f"{folder}/{name}.end"):
        time.sleep(0.05)
"""


class StandaloneService:
    """Server process whose jobs run on a standalone cluster."""

    def __init__(self, spark: StandaloneSpark, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.process: subprocess.Popen[str] | None = None
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text(TRAIN)
        settings = {
            "spark.master.ui.port": str(spark.web_port),
            "spark.executor.cores": "1",
            "spark.ui.enabled": "false",
        }
        profile = {"master": spark.url, "store": f"file://{folder}/project", "spark": settings}
        (folder / "alone.yaml").write_text(yaml.safe_dump(profile))

    def start(self) -> Client:
        """Start the server and return a client once it answers."""
        environment = {
            **os.environ,
            "HOPSML_CONF_DIR": str(self.folder),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [sys.executable, "-c", "from hopsml.cli import main; main()", "server", "--profile", "alone"]
        command += ["--state", str(self.folder / "state")]
        with open(self.folder / "server.log", "a") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        assert "?token=" in self.process.stdout.readline(), (self.folder / "server.log").read_text()
        return Client.of_state(self.folder / "state")

    def signal(self, number: int) -> int:
        """Send a signal and return the exit status."""
        assert self.process is not None and self.process.stdout is not None
        self.process.send_signal(number)
        status = self.process.wait(END_S)
        self.process.stdout.close()
        self.process = None
        return status

    def job(self, name: str, workers: int) -> Path:
        """Write the file of a job that runs until ``<name>.end``."""
        path = self.folder / "code" / f"{name}.yaml"
        path.write_text(
            f"name: {name}\ntasks: {{main: {{function: train.py:main, framework: distributed, count: {workers}, "
            f"arguments: {{name: {name}, folder: {self.folder}}}}}}}\n"
        )
        return path

    def starts(self, name: str) -> int:
        """Return how many workers of a job have started."""
        path = self.folder / f"{name}.starts"
        return len(path.read_text()) if path.exists() else 0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[StandaloneService]:
    """Yield a service that was not started yet, on two workers with a core each; it and its jobs end with the test."""
    with StandaloneSpark(workers=2, cores=1, memory_mb=2048) as spark:
        made = StandaloneService(spark, tmp_path)
        yield made
        if made.process is not None:
            made.signal(signal.SIGKILL)


def applications(spark: StandaloneSpark) -> int:
    """Return the number of applications that the master runs."""
    from hopsml.service.engine.standalone import active_master

    return len(active_master([f"http://127.0.0.1:{spark.web_port}/json/"])["activeapps"])


def reached(client: Client, job: str, state: Lifecycle) -> ServiceJobDetail:
    """Wait until a job has a state, and return the job."""
    wait_until(lambda: client.job(job).state == state or client.job(job).state.is_final, f"{job}: {state}")
    found = client.job(job)
    assert found.state == state, found.cause
    return found


def test_jobs_run_on_standalone_spark_beside_a_service_that_is_killed(service: StandaloneService) -> None:
    client = service.start()
    wait_until(lambda: not client.cluster()["problem"] and client.cluster()["capacity"]["cores"] == 2, "the workers")
    with pytest.raises(ArgumentError, match="can never run here"):
        client.submit(service.job("large", 3))
    first = client.submit(service.job("first", 2))
    second = client.submit(service.job("second", 1))
    wait_until(lambda: service.starts("first") == 2 or client.job(first.id).state.is_final, "both workers")
    assert client.job(first.id).state in (Lifecycle.STARTING, Lifecycle.RUNNING), client.log(first.id)
    assert client.job(second.id).state == Lifecycle.WAITING and client.why(second.id)

    service.signal(signal.SIGKILL)
    client = service.start()
    reached(client, first.id, Lifecycle.RUNNING)
    (service.folder / "first.end").touch()
    ended = client.wait(first.id, END_S)
    assert (ended.state, ended.tries) == (Lifecycle.FINISHED, 1), ended.cause
    assert "rank 1 of first" in "".join(client.rank_log(first.id, 1)) and "FINISHED" in client.log(first.id)[0]

    wait_until(lambda: service.starts("second") == 1 or client.job(second.id).state.is_final, "the second job")
    client.cancel(second.id)
    ended = client.wait(second.id, END_S)
    assert ended.state == Lifecycle.CANCELLED, ended.cause
    (run,) = [one for one in client.runs(second.id)]
    assert run.state == Lifecycle.CANCELLED, "the driver has stored the end of its run"
    wait_until(lambda: applications(service.spark) == 0, "no application is left")
    assert service.starts("first") == 2 and service.signal(signal.SIGTERM) == 0
