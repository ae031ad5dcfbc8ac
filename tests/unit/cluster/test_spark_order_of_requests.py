"""Tests that agents without GPU are requested after those with GPU: Spark serves the oldest job first."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hopsml.cluster.driver.backends.spark import SparkBackend
from tests.unit.cluster.test_spark_capacity import Settings

pytestmark = pytest.mark.fast


class Tracker(Settings):
    """SparkContext whose status tracker returns the job of a group after ``late`` calls."""

    def __init__(self, late: int) -> None:
        super().__init__("local-cluster[2,2,1024]", executors=2)
        self.late = late
        self.asked_groups: list[str] = []

    def getJobIdsForGroup(self, group: str) -> list[int]:
        self.asked_groups.append(group)
        return [0] if len(self.asked_groups) > self.late else []


def waited_for(alive: bool) -> list[str]:
    """Return the groups that Spark was asked about until request 2 continued; requests 1 and 3 are others."""
    context: Any = Tracker(late=2)
    backend = SparkBackend(context)
    end = threading.Event()
    for request_id in (1, 3):
        backend._jobs[request_id] = threading.Thread(target=end.wait)
        backend._jobs[request_id].start()
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


def test_ended_older_request_is_not_waited_for() -> None:
    assert waited_for(alive=False) == []
