"""Tests of the job service on a real YARN: jobs outlive it, none runs twice, only its stray applications are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from hopsml.client import Client, ServiceJobDetail
from hopsml.core.states import Lifecycle
from hopsml.service.spec import load
from hopsml.storage import filesystem
from hopsml.yarn import ResourceManager
from tests.helpers import leaks
from tests.helpers.cluster.workloads import wait_until
from tests.integration.yarn.conftest import Hadoop
from tools.hadoop.jars import CACHE, ensure_jars
from tools.hadoop.settings import Shape

pytestmark = [pytest.mark.hadoop]

TRAIN = """
def main(name, folder):
    import os, time
    open(f"{folder}/{name}.starts", "a").write("x")
    while not os.path.exists(f"{folder}/{name}.end"):
        time.sleep(0.05)
    return {"accuracy": 1.0}
"""
JOB = "name: {name}\ntasks: {{main: {{function: train.py:main, framework: distributed, arguments: {arguments}}}}}\n"
WAIT_S = 180.0


class YarnService:
    """Server process on the session's YARN."""

    def __init__(self, hadoop: Hadoop, folder: Path, spark: Mapping[str, str] | None = None) -> None:
        """``spark``: further settings of its profile."""
        self.hadoop, self.folder = hadoop, folder
        self.process: subprocess.Popen[str] | None = None
        self.options: tuple[str, ...] = ()  # further options of the server
        self.client: Client  # of the newest server
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text(TRAIN)
        profile = {
            "master": "yarn",
            "deploy_mode": "cluster",
            "store": f"{hadoop.namenode_url}/Projects/{folder.name}",
            "spark": hadoop.spark_conf(executors=1) | dict(spark or {}),
        }
        (folder / "small.yaml").write_text(yaml.safe_dump(profile))

    def start(self) -> Client:
        """Start the server and return a client once it answers."""
        environment = {
            **self.hadoop.submit_env(),
            "HOPSML_CONF_DIR": str(self.folder),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-c", "from hopsml.cli import main; main()", "server", "--profile", "small"]
        command += ["--state", str(self.folder / "state"), *self.options]
        with open(self.folder / "server.log", "a") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        assert "?token=" in self.process.stdout.readline(), (self.folder / "server.log").read_text()
        self.client = Client.of_state(self.folder / "state")  # follows the token of the next server
        return self.client

    def signal(self, number: int) -> int:
        """Send a signal and return the exit status."""
        assert self.process is not None and self.process.stdout is not None
        self.process.send_signal(number)
        status = self.process.wait(WAIT_S)
        self.process.stdout.close()
        self.process = None
        return status

    def job(self, name: str, more: str = "") -> Path:
        """Write the file of a job that runs until ``end``, with one worker unless ``more`` sets another number."""
        path = self.folder / "code" / f"{name}.yaml"
        arguments = json.dumps({"name": name, "folder": str(self.folder)})
        path.write_text(JOB.format(name=name, arguments=f"{arguments}{more}"))
        assert load(path).name == name
        return path

    def end(self, name: str) -> None:
        """Let the job end."""
        (self.folder / f"{name}.end").touch()

    def running(self) -> list[str]:
        """Return the ids of applications that have not ended."""
        listed = self.hadoop.resource_manager.applications()
        return [app["id"] for app in listed if app["state"] not in ("FINISHED", "FAILED", "KILLED")]


@pytest.fixture
def service(hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[YarnService]:
    with served(hadoop, tmp_path, monkeypatch) as made:
        yield made


@contextlib.contextmanager
def served(
    hadoop: Hadoop, folder: Path, monkeypatch: pytest.MonkeyPatch, spark: Mapping[str, str] | None = None
) -> Iterator[YarnService]:
    """Yield a service and end it afterwards; ``spark``: further settings of its profile."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    made = YarnService(hadoop, folder, spark)
    yield made
    if made.process is not None:
        made.signal(signal.SIGKILL)
    filesystem.close_all()


@contextlib.contextmanager
def own_cluster(name: str, shape: Shape) -> Iterator[Hadoop]:
    """Start a separate cluster of the given shape for one test."""
    cluster = Hadoop(CACHE / f"{name}-{os.getpid()}")
    with leaks.not_of_this_test():
        cluster.start(ensure_jars(), shape, guarded=True)
    yield cluster
    cluster.stop(now=True, remove=True)


def reaches(client: Client, job: str, *states: Lifecycle) -> Callable[[], ServiceJobDetail | None]:
    def find() -> ServiceJobDetail | None:
        found = client.job(job)
        return found if found.state in states else None

    return find


@pytest.mark.variant
def test_service_crash_during_a_submission_loses_no_yarn_job(hadoop: Hadoop, service: YarnService) -> None:
    client = service.start()
    runs = client.submit(service.job("runs"))
    wait_until(reaches(client, runs.id, Lifecycle.RUNNING), "the first job", WAIT_S)
    starts = client.submit(service.job("starts"))
    wait_until(reaches(client, starts.id, Lifecycle.STARTING), "the second job", WAIT_S)
    service.signal(signal.SIGKILL)
    client = service.start()
    for name in ("runs", "starts"):
        service.end(name)
    for job in (runs, starts):
        ended = client.wait(job.id, WAIT_S)
        assert ended.state == Lifecycle.FINISHED, (ended.cause, (service.folder / "server.log").read_text())
    wait_until(lambda: not service.running(), "no application is left", WAIT_S)
    assert [len((service.folder / f"{name}.starts").read_text()) for name in ("runs", "starts")] == [1, 1]
    assert "FINISHED" in client.log(runs.id)[0] or client.log(runs.id)[0] == ""  # its log may not be aggregated yet
    assert service.signal(signal.SIGTERM) == 0


@pytest.mark.variant
def test_service_survives_a_resource_manager_outage_and_kills_only_its_strays(
    hadoop: Hadoop, service: YarnService
) -> None:
    client = service.start()
    job = client.submit(service.job("one"))
    found = wait_until(reaches(client, job.id, Lifecycle.RUNNING), "the job", WAIT_S)
    prefix = found.applications[0].tag.rpartition("-")[0].rpartition("-")[0]
    hadoop.kill("rm")
    wait_until(lambda: client.cluster()["problem"], "the service to notice", WAIT_S)
    assert client.job(job.id).state == Lifecycle.RUNNING
    hadoop.revive("rm")
    wait_until(lambda: not client.cluster()["problem"], "the service to see it again", WAIT_S)
    with contextlib.ExitStack() as stack:
        for tag in (f"{prefix},{prefix}-99-1", "somebody-elses"):
            conf = hadoop.spark_conf(executors=1) | {"spark.yarn.tags": tag}
            sleeper = service.folder / "sleeper.py"
            sleeper.write_text(
                "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate()\nimport time\ntime.sleep(600)\n"
            )
            from tools.hadoop import spark

            process = subprocess.Popen(
                spark.submit_command(sleeper, conf=conf, deploy_mode="cluster"),
                env=hadoop.submit_env(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        yarn = ResourceManager.from_environment()
        stray = wait_until(lambda: yarn.find_by_tag(f"{prefix}-99-1"), "the stray", WAIT_S)[0]
        wait_until(lambda: yarn.application(stray.id).state == "KILLED", "its end", WAIT_S)
        other = wait_until(lambda: yarn.find_by_tag("somebody-elses"), "the other one", WAIT_S)[0]
        wait_until(lambda: yarn.application(other.id).state == "RUNNING", "it to run", WAIT_S)
        yarn.kill(other.id)
    service.end("one")
    assert client.wait(job.id, WAIT_S).state == Lifecycle.FINISHED
    service.signal(signal.SIGTERM)


def check_no_job_is_lost_or_started_twice(
    service: YarnService, start_outage: Callable[[], None], end_outage: Callable[[], None]
) -> None:
    """Assert that jobs survive an outage in which one runs, one is being stopped, and one was just submitted."""
    client = service.start()
    runs, stops = (client.submit(service.job(name)) for name in ("runs", "stops"))
    for job in (runs, stops):
        wait_until(reaches(client, job.id, Lifecycle.RUNNING), "the jobs", WAIT_S)
    wait_until(lambda: all((service.folder / f"{name}.starts").exists() for name in ("runs", "stops")), "both", WAIT_S)
    start_outage()
    waits = client.submit(service.job("waits"))
    client.cancel(stops.id)
    end_outage()
    client = service.client
    wait_until(reaches(client, stops.id, Lifecycle.CANCELLED), "the end of the one", WAIT_S)
    wait_until(reaches(client, waits.id, Lifecycle.RUNNING), "the start of the other", WAIT_S)
    assert client.job(runs.id).state == Lifecycle.RUNNING
    for name, job in (("runs", runs), ("waits", waits)):
        service.end(name)
        ended = client.wait(job.id, WAIT_S)
        assert ended.state == Lifecycle.FINISHED, (name, ended.cause, (service.folder / "server.log").read_text())
    wait_until(lambda: not service.running(), "no application is left", WAIT_S)
    assert [len((service.folder / f"{name}.starts").read_text()) for name in ("runs", "stops", "waits")] == [1, 1, 1]
    assert service.signal(signal.SIGTERM) == 0


@pytest.mark.variant
@pytest.mark.parametrize("away_s", [20, 60])
def test_jobs_survive_a_service_outage(service: YarnService, away_s: int) -> None:
    def end_outage() -> None:
        service.signal(signal.SIGKILL)
        time.sleep(away_s)  # what is tried is the length of an outage
        service.start()

    check_no_job_is_lost_or_started_twice(service, lambda: None, end_outage)


@pytest.mark.variant
@pytest.mark.parametrize("away_s", [20, 60])
def test_jobs_survive_a_resource_manager_outage(hadoop: Hadoop, service: YarnService, away_s: int) -> None:
    def end_outage() -> None:
        time.sleep(away_s)
        hadoop.revive("rm")

    check_no_job_is_lost_or_started_twice(service, lambda: hadoop.kill("rm"), end_outage)


@pytest.mark.variant
def test_paused_job_ends_in_order_and_resumes_in_another_application(hadoop: Hadoop, service: YarnService) -> None:
    client = service.start()
    job = client.submit(service.job("one"))
    wait_until(lambda: (service.folder / "one.starts").exists(), "the job", WAIT_S)
    client.pause(job.id)
    wait_until(reaches(client, job.id, Lifecycle.PAUSED), "the pause", WAIT_S)
    assert not service.running()
    client.resume(job.id)
    service.end("one")
    ended = client.wait(job.id, WAIT_S)
    assert ended.state == Lifecycle.FINISHED and ended.tries == 2
    assert len((service.folder / "one.starts").read_text()) == 2
    service.signal(signal.SIGTERM)
