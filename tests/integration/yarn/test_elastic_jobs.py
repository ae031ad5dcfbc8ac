"""Tests of elastic jobs on a real YARN: shrink for others, outlive the server, grow again; all kinds of tasks."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.client import JobSize
from hopsml.core.states import Lifecycle
from tests.helpers.cluster.workloads import wait_until
from tests.integration.service.test_elastic_jobs import SEARCH, TRAIN
from tests.integration.yarn.conftest import Hadoop
from tests.integration.yarn.test_job_service import WAIT_S, YarnService, own_cluster, reaches, served
from tools.hadoop.settings import Shape

pytestmark = [pytest.mark.hadoop, pytest.mark.variant]

GROWING = {  # as conf/yarn-dynamic.yaml, with a shorter idle timeout
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
# As for torchrun, except for the State, with which other workers can continue.
SCRIPT = """
import argparse
import torch
from torch.nn.parallel import DistributedDataParallel
import hopsml
from hopsml import experiment

SAMPLES = 600

def train(folder):
    import os, time
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
    state = hopsml.elastic.State(model=model, optimizer=optimizer, loss=0.0)
    for batch in state.resume(hopsml.elastic.Sampler(SAMPLES, global_batch_size=2, seed=1, epochs=1)):
        optimizer.zero_grad()
        loss = model(x[batch]).square().mean()
        loss.backward()
        optimizer.step()
        with open(f"{folder}/samples", "a") as file:
            file.write("".join(f"{int(sample)} {torch.distributed.get_world_size()}\\n" for sample in batch))
        state.loss = loss.item()
        state.commit(every=1)
        time.sleep(0.0 if os.path.exists(f"{folder}/hurry") else 0.5)
    return {"loss": state.loss}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder")
    arguments = parser.parse_args()
    print(experiment.torch(train, args={"folder": arguments.folder}, min_workers=1, max_workers=2).summary())
"""
OF_SCRIPT = """
name: script
tasks:
  main:
    script: ddp.py
    min: 1
    max: 2
    resources: {{cores: 1, memory: 1g}}
    arguments: {{folder: {folder}}}
"""
TRIALS = 100
OF_SEARCH = """
name: search
search: {{space: {{x: [0.0, 1.0]}}, searcher: random, num_trials: {trials}, seed: 1}}
tasks:
  main:
    function: find.py:find
    min: 1
    max: 2
    resources: {{cores: 1, memory: 1g}}
    arguments: {{folder: {folder}}}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Hadoop]:
    """Yield a cluster with resources for two drivers and one worker of each."""
    shape = Shape(datanodes=1, nodemanagers=1, gpus=0, memory_mb=4352, vcores=8)
    with own_cluster("elastic", shape) as made:
        yield made


@pytest.fixture
def service(cluster: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[YarnService]:
    with served(cluster, tmp_path, monkeypatch, GROWING) as made:
        code = tmp_path / "code"
        for name, text in (("elastic", TRAIN), ("ddp", SCRIPT), ("find", SEARCH.replace("0.3", "2.0"))):
            (code / f"{name}.py").write_text(text)
        for name, text in (("elastic", ELASTIC), ("script", OF_SCRIPT), ("search", OF_SEARCH)):
            (code / f"{name}.yaml").write_text(text.format(folder=tmp_path, trials=TRIALS))
        yield made
    cluster.make_whole()


def trained_samples(folder: Path) -> list[tuple[int, int]]:
    """Return the samples in order, each with the number of workers."""
    path = folder / "samples"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(sample), int(workers)) for sample, workers in map(str.split, lines)]


def has_trained_with(service: YarnService, workers: int, since: int = 0) -> bool:
    """Return True if ``workers`` workers trained together after the first ``since`` samples."""
    return any(size == workers for _, size in trained_samples(service.folder)[since:])


def urgent_job(service: YarnService) -> Path:
    """Write the file of an urgent job with one worker that runs until ``end``."""
    path = service.job("urgent", ", resources: {cores: 1, memory: 1g}")
    path.write_text(f"priority: 90\n{path.read_text()}")
    return path


def test_elastic_training_shrinks_across_a_server_crash_and_grows_again(service: YarnService) -> None:
    check_growth_and_shrinking(service, "elastic")
    assert sorted(sample for sample, _ in trained_samples(service.folder)) == list(range(2000)), "each sample once"
    assert service.signal(signal.SIGTERM) == 0


def test_elastic_torch_script_shrinks_across_a_server_crash_and_grows_again(service: YarnService) -> None:
    """All workers restart in new processes each time, since DDP holds the group together."""
    first = service.job("first", ", resources: {cores: 1, memory: 1g}")
    check_growth_and_shrinking(service, "script", first)
    samples = [sample for sample, _ in trained_samples(service.folder)]
    assert sorted(samples) == list(range(600)), "each sample once"
    assert "FINISHED" in "".join(service.client.follow("script-2")), "what the script prints in the end"
    assert service.signal(signal.SIGTERM) == 0


def check_growth_and_shrinking(service: YarnService, name: str, first: Path | None = None) -> None:
    """Run a training that records its samples through growth and shrinking; ``first`` is a job that runs before it."""
    folder, client = service.folder, service.start()
    wait_until(lambda: client.cluster()["capacity"]["memory_mib"], "the node", WAIT_S)
    if first is not None:
        before = client.submit(first).id
        wait_until(reaches(client, before, Lifecycle.RUNNING), "the first", WAIT_S)
    job = client.submit(folder / "code" / f"{name}.yaml").id
    if first is not None:
        wait_until(lambda: has_trained_with(service, 1), "a training with the one that is free", WAIT_S)
        assert client.job(job).sizes[0] == JobSize("main", 1, 1, 1, 2)
        service.end(first.stem)
    wait_until(lambda: has_trained_with(service, 2), "a training with two workers", WAIT_S)
    urgent = client.submit(urgent_job(service)).id
    wait_until(lambda: client.job(job).sizes[0].target == 1, "the wish for one of its slots", WAIT_S)
    service.signal(signal.SIGKILL)
    client = service.start()
    wait_until(lambda: (folder / "urgent.starts").exists(), "the other job", WAIT_S)
    known = len(trained_samples(folder))
    wait_until(lambda: has_trained_with(service, 1, known), "the training with one worker", WAIT_S)
    assert client.job(job).sizes[0] == JobSize("main", 1, 1, 1, 2)
    service.end("urgent")
    assert client.wait(urgent, WAIT_S).state == Lifecycle.FINISHED
    known = len(trained_samples(folder))
    wait_until(lambda: has_trained_with(service, 2, known), "its growth after that", WAIT_S)
    (folder / "hurry").touch()
    wait_until(reaches(client, job, Lifecycle.FINISHED), "its end", WAIT_S)
    ended = client.job(job)
    assert (ended.tries, ended.preemptions, len(ended.applications)) == (1, 0, 1)
    wait_until(lambda: not service.running(), "no application is left", WAIT_S)


def finished_trials(folder: Path) -> list[float]:
    path = folder / "tried"
    return [float(line) for line in path.read_text().split()] if path.exists() else []


def test_elastic_search_starts_small_shrinks_and_grows_again(service: YarnService) -> None:
    """A trial on a slot to be released ends first: none is started twice."""
    folder, client = service.folder, service.start()

    def running_trials() -> int:
        return len(list(folder.glob("runs-*")))

    wait_until(lambda: client.cluster()["capacity"]["memory_mib"], "the node", WAIT_S)
    first = client.submit(service.job("first", ", resources: {cores: 1, memory: 1g}"))
    wait_until(reaches(client, first.id, Lifecycle.RUNNING), "the first", WAIT_S)
    job = client.submit(folder / "code" / "search.yaml").id
    wait_until(lambda: finished_trials(folder), "a trial on one slot", WAIT_S)
    assert client.job(job).sizes[0] == JobSize("main", 1, 1, 1, 2) and running_trials() <= 1
    service.end("first")
    wait_until(lambda: running_trials() == 2, "two trials at once", WAIT_S)
    urgent = client.submit(urgent_job(service)).id
    wait_until(lambda: (folder / "urgent.starts").exists(), "the other job", WAIT_S)
    assert client.job(job).sizes[0] == JobSize("main", 1, 1, 1, 2) and running_trials() <= 1
    known = len(finished_trials(folder))
    wait_until(lambda: len(finished_trials(folder)) > known, "trials on the slot that is left", WAIT_S)
    service.end("urgent")
    assert client.wait(urgent, WAIT_S).state == Lifecycle.FINISHED
    wait_until(lambda: running_trials() == 2, "its growth after that", WAIT_S)
    (folder / "hurry").touch()
    wait_until(reaches(client, job, Lifecycle.FINISHED), "its end", WAIT_S)
    ended = client.job(job)
    assert (ended.tries, ended.preemptions, len(ended.applications)) == (1, 0, 1)
    assert len(finished_trials(folder)) == len(set(finished_trials(folder))) == TRIALS, (
        "each trial once: none was lost, or broken off"
    )
    assert [run.metric for run in client.runs(job)] == [max(finished_trials(folder))], "the best of all"
    assert str(max(finished_trials(folder)))[:6] in "".join(client.follow(job))
    assert service.signal(signal.SIGTERM) == 0
