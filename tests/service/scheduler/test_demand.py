"""What is told to whoever can add nodes: who waits for room and for nothing else, in order."""

from __future__ import annotations

import pytest

from hopsml.service.scheduler import demand
from hopsml.service.scheduler.policy import Queue
from hopsml.service.scheduler.resources import Resources
from tests.service.scheduler.clusters import BY_PRIORITY, Cluster, gang

pytestmark = pytest.mark.fast


def told(cluster: Cluster) -> list[str]:
    return [job for job, _ in demand.of(cluster.scheduler, cluster.now).gangs]


def test_who_goes_first_is_told_first_and_what_runs_is_not() -> None:
    cluster = Cluster({"a": 2})
    for name, priority in (("runs", 99), ("late", 40), ("first", 60), ("same", 60)):
        cluster.submit(name, gang(2), priority=priority)
    assert told(cluster) == ["first", "same", "late"]


def test_nothing_beyond_a_limit_of_its_queue_all_that_waits_counted() -> None:
    cluster = Cluster({"a": 1}, BY_PRIORITY, (Queue("q", limit=Resources(gpus=5, cores=5)),))
    for number in range(4):
        cluster.submit(f"j{number}", gang(2), queue="q")
    assert told(cluster) == ["j0", "j1"]


def test_queues_take_turns_by_their_weights() -> None:
    cluster = Cluster({"a": 1}, BY_PRIORITY, (Queue("one", weight=2.0), Queue("two")))
    for number in range(3):
        for queue in ("one", "two"):
            cluster.submit(f"{queue}{number}", gang(2), queue=queue)
    assert told(cluster) == ["one0", "two0", "one1", "one2", "two1", "two2"]


def test_not_who_is_put_off() -> None:
    cluster = Cluster({"a": 2})
    cluster.submit("one", gang(2))
    cluster.runs.clear()
    cluster.did(cluster.scheduler.not_filled("one", cluster.now))
    assert told(cluster) == []
    cluster.now += 30.0
    assert told(cluster) == ["one"]


def test_ends_are_those_that_are_known_and_the_nodes_are_a_copy() -> None:
    cluster = Cluster({"a": 3})
    cluster.submit("known", gang(1), expected_s=100.0)
    cluster.submit("unknown", gang(1))
    found = demand.of(cluster.scheduler, cluster.now)
    assert [(end.at_s, end.placement) for end in found.ends] == [(100.0, ({"a": 1},))]
    found.nodes.promise(gang(1), ({"a": 1},))
    assert cluster.scheduler.nodes.free() == Resources(gpus=1, cores=1)
    cluster.now = 150.0  # it should have ended
    assert demand.of(cluster.scheduler, cluster.now).ends == ()
