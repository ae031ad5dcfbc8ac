"""Tests that agents without GPU are requested after those with GPU: Spark serves the oldest job first."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hopsml.cluster.driver.backends.spark import SparkBackend
from tests.unit.cluster.test_spark_capacity import Settings

pytestmark = pytest.mark.fast


class Tracker(Settings):
    """SparkContext whose status tracker returns the first job of a group after ``late`` calls, then one more at each."""

    def __init__(self, late: int) -> None:
        super().__init__("local-cluster[2,2,1024]", executors=2)
        self.late = late
        self.asked_groups: list[str] = []

    def getJobIdsForGroup(self, group: str) -> list[int]:
        self.asked_groups.append(group)
        return list(range(len(self.asked_groups) - self.late))


def waited_for(alive: bool, jobs: int = 1) -> list[str]:
    """Return the groups that Spark was asked about until request 2 continued; requests 1 and 3 are others of these jobs."""
    context: Any = Tracker(late=2)
    backend = SparkBackend(context)
    end = threading.Event()
    for request_id in (1, 3):
        backend._jobs[request_id] = threading.Thread(target=end.wait)
        backend._jobs[request_id].start()
        backend._job_counts[request_id] = jobs
    if not alive:
        end.set()
        backend._jobs[1].join()
    backend._wait_for_older_requests(2)
    end.set()
    for job in backend._jobs.values():
        job.join()
    groups: list[str] = context.asked_groups
    return groups


def test_request_for_bare_agents_waits_until_spark_has_the_jobs_of_older_ones() -> None:
    assert waited_for(alive=True) == ["hopsml-agents-app-1-1"] * 3


def test_it_waits_for_each_job_of_an_older_request_whose_agents_have_jobs_of_their_own() -> None:
    assert waited_for(alive=True, jobs=3) == ["hopsml-agents-app-1-1"] * 5


def test_ended_older_request_is_not_waited_for() -> None:
    assert waited_for(alive=False) == []
