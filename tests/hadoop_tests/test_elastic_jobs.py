"""An elastic job on a real YARN makes room for another one, outlives the server, and grows again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.client import JobSize
from hopsml.states import Lifecycle
from tests.cluster.workloads import wait_until
from tests.hadoop_tests.test_job_service import WAIT_S, YarnService, own_cluster, reaches, served
from tests.service.test_elastic_jobs import TRAIN
from tools.hadoop.settings import Shape

pytestmark = [pytest.mark.hadoop, pytest.mark.timeout(600), pytest.mark.variant]

GROWING = {  # as conf/yarn-dynamic.yaml, with less patience
    "spark.dynamicAllocation.enabled": "true",
    "spark.executor.instances": "0",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
}
ELASTIC = """
name: elastic
tasks:
  main:
    function: elastic.py:train
    framework: distributed
    min: 1
    max: 2
    resources: {{cores: 1, memory: 1g}}
    arguments: {{folder: {folder}}}
"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[YarnService]:
    """On a cluster with room for two drivers, and a worker of each."""
    shape = Shape(datanodes=1, nodemanagers=1, gpus=0, memory_mb=4352, vcores=8)
    with own_cluster("elastic", shape) as cluster, served(cluster, tmp_path, monkeypatch, GROWING) as made:
        (tmp_path / "code" / "elastic.py").write_text(TRAIN)
        (tmp_path / "code" / "elastic.yaml").write_text(ELASTIC.format(folder=tmp_path))
        yield made


def trained(folder: Path) -> list[tuple[int, int]]:
    """Samples, in order, each with how many workers there were."""
    path = folder / "samples"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(sample), int(workers)) for sample, workers in map(str.split, lines)]


def test_it_makes_room_while_the_server_is_killed_and_grows_again(service: YarnService) -> None:
    folder = service.folder

    def newest(workers: int, since: int) -> bool:
        return any(size == workers for _, size in trained(folder)[since:])

    client = service.start()
    wait_until(lambda: client.cluster()["capacity"]["memory_mib"], "the node", WAIT_S)
    job = client.submit(folder / "code" / "elastic.yaml").id
    wait_until(lambda: newest(2, 0), "a training with two workers", WAIT_S)
    path = service.job("urgent", ", resources: {cores: 1, memory: 1g}")
    path.write_text(f"priority: 90\n{path.read_text()}")
    urgent = client.submit(path).id
    wait_until(lambda: client.job(job).sizes[0].target == 1, "the wish for one of its slots", WAIT_S)
    service.signal(signal.SIGKILL)
    client = service.start()
    wait_until(lambda: (folder / "urgent.starts").exists(), "the other job", WAIT_S)
    known = len(trained(folder))
    wait_until(lambda: newest(1, known), "the training with one worker", WAIT_S)
    assert client.job(job).sizes[0] == JobSize("main", 1, 1, 1, 2)
    service.end("urgent")
    assert client.wait(urgent, WAIT_S).state == Lifecycle.FINISHED
    known = len(trained(folder))
    wait_until(lambda: newest(2, known), "its growth after that", WAIT_S)
    (folder / "hurry").touch()
    wait_until(reaches(client, job, Lifecycle.FINISHED), "its end", WAIT_S)
    ended = client.job(job)
    assert (ended.tries, ended.preemptions, len(ended.applications)) == (1, 0, 1)
    assert sorted(sample for sample, _ in trained(folder)) == list(range(2000)), "each sample once"
    wait_until(lambda: not service.running(), "no application is left", WAIT_S)
    assert service.signal(signal.SIGTERM) == 0
