"""Tests that many runs of all kinds in one session leave no resources behind."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import hopsml
from hopsml import experiment
from hopsml.errors import RunCancelled, WorkerFailed
from hopsml.experiment import applications
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.local_application import SLOTS

pytestmark = pytest.mark.chaos

WARM_UP = 2  # rounds, after which caches and pools are as large as they get
GROWTH_MB = 0.25  # a run, of the driver's memory


def step() -> dict[str, int]:
    state = hopsml.elastic.State(n=0)
    for _ in state.resume(hopsml.elastic.Sampler(40, 10)):
        state.n += 1
        state.commit(every=1)
    return {"n": state.n}


def return_at_once() -> dict[str, int]:
    return {"n": 1}


def raise_error() -> None:
    raise ValueError("a bug in the user's code")


def sleep_long() -> None:
    time.sleep(600)


def trial(x: float) -> float:
    return x


def finish(function: Callable[..., Any], **named: Any) -> None:
    assert experiment.collective_all_reduce(function, progress=False, **named).metrics["n"] in (1, 4)


def fail(**named: Any) -> None:
    with pytest.raises(WorkerFailed):
        experiment.collective_all_reduce(raise_error, progress=False, **named)


def cancel(**named: Any) -> None:
    run = experiment.submit(sleep_long, progress=False, **named)
    wait_until(lambda: run.status()["phase"] == "running", "the run's workers")
    run.cancel()
    with pytest.raises(RunCancelled):
        run.result(END_S)


def cancel_before_it_begins(**named: Any) -> None:
    run = experiment.submit(sleep_long, progress=False, **named)
    run.cancel()
    with pytest.raises(RunCancelled):
        run.result(END_S)


def search(**named: Any) -> None:
    result = experiment.search(
        trial, {"x": ("DOUBLE", [0.0, 1.0])}, searcher="random", num_trials=3, metric="metric", progress=False, **named
    )
    assert result.counts["completed"] == 3


ELASTIC = {"min_workers": 1, "max_workers": 3}
ROUND: list[Callable[[], None]] = [
    lambda: finish(return_at_once, num_workers=2),
    lambda: finish(step, **ELASTIC),
    lambda: search(),
    lambda: fail(**ELASTIC),
    lambda: cancel(**ELASTIC),
    lambda: fail(num_workers=2),
    lambda: cancel_before_it_begins(**ELASTIC),
    lambda: search(workers_per_trial=2),
    lambda: cancel(num_workers=3),
    lambda: finish(step, min_workers=2, max_workers=2),
]


POOL = "uvloop"  # the coordinator's loop has threads for what blocks: one more whenever all of them are busy, up to a bound
MOST_IN_POOL = min(32, (os.cpu_count() or 1) + 4)


@dataclass
class Usage:
    """Resources in use by the driver and all processes below it."""

    descriptors: int
    threads: list[str]
    processes: int
    agents_descriptors: int
    memory_mb: float

    @classmethod
    def now(cls) -> Usage:
        gc.collect()
        me = psutil.Process()
        below = me.children(recursive=True)
        descriptors = 0
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                descriptors += process.num_fds()
        threads = sorted(thread.name.rstrip("0123456789-_") for thread in threading.enumerate())
        return cls(len(os.listdir("/proc/self/fd")), threads, len(below), descriptors, me.memory_info().rss / (1 << 20))

    def without_pool(self) -> list[str]:
        return [name for name in self.threads if name != POOL]

    def is_no_more_than(self, other: Usage) -> bool:
        """But for what agents keep open of the runs that were the last ones there."""
        return (
            self.descriptors <= other.descriptors + 3
            and len(self.without_pool()) <= len(other.without_pool())
            and self.threads.count(POOL) <= MOST_IN_POOL
            and self.processes <= other.processes
            and self.agents_descriptors <= other.agents_descriptors + 16
        )


def play(rounds: int) -> None:
    for _ in range(rounds):
        for run in ROUND:
            run()
            pool = applications.get_or_start().coordinator.pool
            wait_until(lambda pool=pool: not [a for a in pool.agents.values() if a.run_id], "agents given back")
            assert len(pool.agents) <= SLOTS, "more agents than any run has asked for"


def settled(before: Usage | None = None) -> Usage:
    """The usage once it is no more than ``before``, or after a while as it is: threads and sockets end in their time."""
    deadline = time.monotonic() + 10
    while True:
        usage = Usage.now()
        if before is None or time.monotonic() > deadline or usage.is_no_more_than(before):
            return usage
        time.sleep(0.1)


@pytest.mark.variant
@pytest.mark.parametrize("runs", [20, pytest.param(200, marks=pytest.mark.variant)])
def test_many_runs_of_all_kinds_leave_no_resources_behind(store: Path, runs: int) -> None:
    rounds = runs // len(ROUND)
    warm_up = min(WARM_UP, rounds - 1)
    play(warm_up)
    before = settled()
    play(rounds - warm_up)
    after = settled(before)
    assert after.is_no_more_than(before), f"{before} became {after}"
    grown = after.memory_mb - before.memory_mb
    assert grown <= 8 + GROWTH_MB * runs, f"the driver's memory has grown by {grown:.1f} MB in {runs} runs"
