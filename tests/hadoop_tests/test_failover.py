"""The job service where a ResourceManager dies and another takes over: jobs run on, wait, are stopped; none is doubled."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.states import Lifecycle
from hopsml.storage import filesystem
from tests import leaks
from tests.cluster.workloads import wait_until
from tests.hadoop_tests.conftest import Hadoop
from tests.hadoop_tests.test_job_service import WAIT_S, YarnService, reaches
from tools.hadoop.jars import CACHE, ensure_jars
from tools.hadoop.settings import Shape

pytestmark = [pytest.mark.hadoop, pytest.mark.timeout(600), pytest.mark.variant]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[YarnService]:
    cluster = Hadoop(CACHE / f"failover-{os.getpid()}")
    with leaks.not_of_this_test():
        shape = Shape(datanodes=1, nodemanagers=1, resourcemanagers=2, gpus=0, memory_mb=8192)
        cluster.start(ensure_jars(), shape, guarded=True)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.conf_dir))
    made = YarnService(cluster, tmp_path)
    yield made
    if made.process is not None:
        made.signal(signal.SIGKILL)
    filesystem.close_all()
    cluster.stop(now=True, remove=True)


def test_another_resource_manager_takes_over(service: YarnService) -> None:
    cluster, client = service.hadoop, service.start()
    runs, stops = (client.submit(service.job(name)) for name in ("runs", "stops"))
    for job in (runs, stops):
        wait_until(reaches(client, job.id, Lifecycle.RUNNING), "the jobs", WAIT_S)
    for name in ("runs", "stops"):
        wait_until(lambda name=name: (service.folder / f"{name}.starts").exists(), "their functions", WAIT_S)
    cluster.kill("rm")
    wait_until(lambda: client.cluster()["problem"], "the service to notice", WAIT_S)
    waits = client.submit(service.job("waits"))
    client.cancel(stops.id)
    cluster.fail_over("rm2")
    wait_until(reaches(client, stops.id, Lifecycle.CANCELLED), "the end of the one", WAIT_S)
    wait_until(reaches(client, waits.id, Lifecycle.RUNNING), "the start of the other", WAIT_S)
    assert client.job(runs.id).state == Lifecycle.RUNNING
    for name, job in (("runs", runs), ("waits", waits)):
        service.end(name)
        assert client.wait(job.id, WAIT_S).state == Lifecycle.FINISHED
    wait_until(lambda: not service.running(), "no application is left", WAIT_S)
    assert [len((service.folder / f"{name}.starts").read_text()) for name in ("runs", "stops", "waits")] == [1, 1, 1]
    assert service.signal(signal.SIGTERM) == 0
