"""Tests of local elastic jobs: start with free slots, shrink for others, grow again, and train on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from hopsml.client import Client, JobSize
from hopsml.core.states import Lifecycle
from hopsml.errors import ServiceError
from tests.helpers.cluster.workloads import wait_until
from tests.integration.service.test_job_service import WAIT_S, JobService, reaches, run_scenario_twice, service

__all__ = ["service"]  # the fixture

pytestmark = pytest.mark.local

TRIALS = 60
# A running trial has a file; two exist at once if the search has two slots.
SEARCH = """
def find(x, folder):
    import os, time
    mine = f"{folder}/runs-{x}"
    open(mine, "w").close()
    time.sleep(0.0 if os.path.exists(f"{folder}/hurry") else 0.3)
    os.remove(mine)
    open(f"{folder}/tried", "a").write(f"{x}\\n")
    return x
"""
# What a script itself starts: a training whose group changes, then a search.
CALLS = """
import argparse
from hopsml import experiment
from train import train
from find import find
parser = argparse.ArgumentParser()
parser.add_argument("--folder")
folder = parser.parse_args().folder
experiment.distributed(train, args={"folder": folder}, min_workers=1, max_workers=2)
space = experiment.Searchspace(x=("DOUBLE", [0.0, 1.0]))
experiment.search(find, space, "random", num_trials=6, max_executors=2, args={"folder": folder}, seed=1)
"""

# A training of 2000 samples: all workers meet in each step, and each writes down its samples and how many trained.
TRAIN = """
def train(folder):
    import os, time, numpy, hopsml
    from hopsml import distributed
    state = hopsml.elastic.State(seen=0)
    for batch in state.resume(hopsml.elastic.Sampler(2000, global_batch_size=1, seed=1, epochs=1)):
        while os.path.exists(f"{folder}/hold"):
            time.sleep(0.02)
        hopsml.all_reduce(numpy.ones(4, numpy.float32))
        with open(f"{folder}/samples", "a") as file:
            file.write("".join(f"{int(sample)} {distributed.world_size()}\\n" for sample in batch))
        state.seen += 1
        state.commit(every=1)
        time.sleep(0.0 if os.path.exists(f"{folder}/hurry") else 0.04)
    return {"seen": state.seen}
"""


def elastic_job(service: JobService) -> Path:
    (service.code / "train.py").write_text(TRAIN)
    path = service.code / "elastic.yaml"
    path.write_text(
        "name: elastic\ntasks: {main: {function: train.py:train, framework: distributed, min: 1, max: 2, "
        f"arguments: {{folder: {service.jobs}}}}}}}\n"
    )
    return path


def trained_samples(service: JobService) -> list[tuple[int, int]]:
    """Return the samples in order, each with the number of workers."""
    path = service.jobs / "samples"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(sample), int(workers)) for sample, workers in map(str.split, lines)]


def has_trained_with(service: JobService, workers: int, since: int) -> bool:
    """Return True if ``workers`` workers trained together after the first ``since`` samples."""
    return any(size == workers for _, size in trained_samples(service)[since:])


def size(client: Client, job: str) -> JobSize:
    return client.job(job).sizes[0]


def agents(service: JobService) -> int:
    """Return the number of agent processes of this service's trainings."""
    drivers, found = service.runs(), 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            found += parent in drivers and b"cluster.agent.agent" in (stat.parent / "cmdline").read_bytes()
    return found


@pytest.mark.variant  # its parts are lifecycle/test_resizing, driver/test_slot_requests, scheduler/test_promises
def test_elastic_job_starts_small_grows_shrinks_across_a_server_crash_and_regrows(
    service: JobService,
) -> None:
    client = service.start(cores=2)
    first = client.submit(service.job("first"))
    wait_until(reaches(client, first.id, Lifecycle.RUNNING), "the first")
    job = client.submit(elastic_job(service)).id
    wait_until(lambda: has_trained_with(service, 1, 0), "a training with one worker")
    assert size(client, job) == JobSize("main", 1, 1, 1, 2)
    assert client.why(job) == (
        "main runs with 1 slot of 1 to 2, and gets more when free slots are not needed by waiting jobs"
    )
    service.end("first")
    wait_until(lambda: has_trained_with(service, 2, 0), "its growth")
    assert size(client, job) == JobSize("main", 2, 2, 1, 2) and agents(service) == 2

    (service.jobs / "hold").touch()  # no step ends, so it gives nothing back for now
    urgent = client.submit(service.job("urgent", priority=90)).id
    wait_until(lambda: size(client, job).target == 1, "the wish for one of its slots")
    service.kill()
    client = service.start(cores=2)
    wait_until(lambda: "has to release 1 by" in client.why(urgent), "the next server to know of it")
    assert size(client, job) == JobSize("main", 2, 1, 1, 2)
    assert client.why(job).startswith("main runs with 2 slots of 1 to 2, and has to release 1, or is stopped at ")
    assert service.starts("urgent") == []
    known = len(trained_samples(service))
    (service.jobs / "hold").unlink()
    wait_until(lambda: service.starts("urgent"), "the other one")
    assert agents(service) == 1
    wait_until(lambda: has_trained_with(service, 1, known), "the training with one worker")
    assert client.job(job).state == Lifecycle.RUNNING and size(client, job).slots == 1

    known = len(trained_samples(service))
    service.end("urgent")
    wait_until(lambda: has_trained_with(service, 2, known), "its growth after that")
    (service.jobs / "hurry").touch()
    ended = client.wait(job, WAIT_S)
    assert (ended.state, ended.tries, ended.preemptions) == (Lifecycle.FINISHED, 1, 0)
    assert sorted(sample for sample, _ in trained_samples(service)) == list(range(2000)), (
        "each sample once: no step was repeated"
    )
    causes = [change.cause for change in client.changes(job) if not change.task]
    begins = causes.index("main grows from 1 to 2 slots, which no waiting job needs")
    assert causes[begins : begins + 4] == [
        "main grows from 1 to 2 slots, which no waiting job needs",
        "main must release 1 of 2 slots for urgent-3, which has precedence",
        "slots were released: main has 1",
        "main grows from 1 to 2 slots, which no waiting job needs",
    ]
    service.stop()


@pytest.mark.variant  # of the one above, and of test_job_service's
@pytest.mark.parametrize("act", [6, 10, 14, 18])
def test_server_crash_at_any_action_during_resizing_repeats_no_step(service: JobService, act: int) -> None:
    elastic, urgent = elastic_job(service), service.job("urgent", priority=90)

    def until(done: Callable[[], object], what: str) -> None:
        def check() -> object:
            if service.process is None or service.process.poll() is not None:
                raise ServiceError("the server is gone")  # its client would retry for a minute
            return done()

        wait_until(check, what)

    def scenario(client: Client) -> None:
        job = client.submit(elastic, idempotency_key="a").id
        until(lambda: has_trained_with(service, 2, 0), "a training with two workers")
        other = client.submit(urgent, idempotency_key="b").id
        until(lambda: service.starts("urgent"), "the other one")
        service.end("urgent")
        until(reaches(client, other, Lifecycle.FINISHED), "its end")
        known = len(trained_samples(service))
        until(lambda: has_trained_with(service, 2, known) or client.job(job).state.is_final, "the growth after that")
        (service.jobs / "hurry").touch()
        until(reaches(client, job, Lifecycle.FINISHED), "the end of all")

    client = run_scenario_twice(service, scenario, act)
    assert [job.state for job in client.jobs(limit=10)] == [Lifecycle.FINISHED] * 2
    assert sorted(sample for sample, _ in trained_samples(service)) == list(range(2000)), "each sample once"
    assert len(service.starts("urgent")) == 1 and not (service.jobs / "DOUBLED").exists()
    wait_until(lambda: not service.runs(), "no application is left")
    service.stop()


def search_job(service: JobService) -> Path:
    (service.code / "find.py").write_text(SEARCH)
    path = service.code / "search.yaml"
    path.write_text(
        f"name: search\nsearch: {{space: {{x: [0.0, 1.0]}}, searcher: random, num_trials: {TRIALS}, seed: 1}}\n"
        f"tasks: {{main: {{function: find.py:find, min: 1, max: 2, arguments: {{folder: {service.jobs}}}}}}}\n"
    )
    return path


def script_job(service: JobService) -> Path:
    for name, text in (("train", TRAIN), ("find", SEARCH), ("calls", CALLS)):
        (service.code / f"{name}.py").write_text(text)
    path = service.code / "calls.yaml"
    path.write_text(
        f"name: calls\ntasks: {{main: {{script: calls.py, min: 1, max: 2, arguments: {{folder: {service.jobs}}}}}}}\n"
    )
    return path


def finished_trials(service: JobService) -> list[str]:
    path = service.jobs / "tried"
    return path.read_text().split() if path.exists() else []


def running_trials(service: JobService) -> int:
    """Return the number of running trials."""
    return len(list(service.jobs.glob("runs-*")))


@pytest.mark.variant  # its parts are cluster/test_shares, experiment/test_lanes
def test_search_starts_on_one_free_slot_grows_and_releases_slots(service: JobService) -> None:
    client = service.start(cores=2)
    first = client.submit(service.job("first"))
    wait_until(reaches(client, first.id, Lifecycle.RUNNING), "the first")
    job = client.submit(search_job(service)).id
    wait_until(lambda: finished_trials(service), "a trial on one slot")
    assert size(client, job) == JobSize("main", 1, 1, 1, 2) and agents(service) == 1
    service.end("first")
    wait_until(lambda: running_trials(service) == 2, "two trials at once")
    assert size(client, job) == JobSize("main", 2, 2, 1, 2)
    urgent = client.submit(service.job("urgent", priority=90)).id
    wait_until(lambda: service.starts("urgent"), "the other one")
    assert agents(service) == 1 and client.job(job).state == Lifecycle.RUNNING
    (service.jobs / "hurry").touch()
    ended = client.wait(job, WAIT_S)
    assert (ended.state, ended.tries, ended.preemptions) == (Lifecycle.FINISHED, 1, 0), ended.cause
    assert len(finished_trials(service)) == len(set(finished_trials(service))) == TRIALS, (
        "each trial once: none was broken off"
    )
    service.end("urgent")
    assert client.wait(urgent, WAIT_S).state == Lifecycle.FINISHED
    service.stop()


@pytest.mark.variant  # of the one above, and of the first
def test_runs_of_a_script_use_the_free_slots(service: JobService) -> None:
    client = service.start(cores=2)
    first = client.submit(service.job("first"))
    wait_until(reaches(client, first.id, Lifecycle.RUNNING), "the first")
    job = client.submit(script_job(service)).id
    wait_until(lambda: has_trained_with(service, 1, 0), "a training with one worker")
    assert size(client, job) == JobSize("main", 1, 1, 1, 2) and agents(service) == 1
    service.end("first")
    wait_until(lambda: has_trained_with(service, 2, 0), "its growth")
    urgent = client.submit(service.job("urgent", priority=90)).id
    wait_until(lambda: service.starts("urgent"), "the other one")
    assert agents(service) == 1
    (service.jobs / "hurry").touch()
    ended = client.wait(job, WAIT_S)
    assert (ended.state, ended.tries, ended.preemptions) == (Lifecycle.FINISHED, 1, 0), ended.cause
    assert (
        sorted(sample for sample, _ in trained_samples(service)) == list(range(2000))
        and len(finished_trials(service)) == 6
    )
    service.end("urgent")
    assert client.wait(urgent, WAIT_S).state == Lifecycle.FINISHED
    service.stop()
