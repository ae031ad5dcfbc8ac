"""Tests of the demand for nodes: the jobs that wait only for room, in order."""

from __future__ import annotations

import pytest

from hopsml.service.scheduler import cluster_status
from hopsml.service.scheduler.cluster_status import Demand, GangEnd
from hopsml.service.scheduler.resources import GangRequest, GangShape, Queue, Resources, SlotGroup
from hopsml.service.scheduler.scheduler import Scheduler
from tests.unit.service.scheduler.clusters import BY_PRIORITY, Cluster, gang

pytestmark = pytest.mark.fast


def told(cluster: Cluster) -> list[str]:
    return [job for job, _ in cluster_status.demand_of(cluster.scheduler, cluster.now).gangs]


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
    cluster.submit("two", gang(3))
    assert told(cluster) == ["two"]
    cluster.now += 30.0
    assert told(cluster) == ["one", "two"]


def test_ends_are_those_that_are_known_and_the_nodes_are_a_copy() -> None:
    cluster = Cluster({"a": 3})
    cluster.submit("known", gang(1), expected_s=100.0)
    cluster.submit("unknown", gang(1))
    found = cluster_status.demand_of(cluster.scheduler, cluster.now)
    assert [(end.at_s, end.placement) for end in found.ends] == [(100.0, ({"a": 1},))]
    found.nodes.promise(gang(1), ({"a": 1},))
    assert cluster.scheduler.nodes.free() == Resources(gpus=1, cores=1)
    cluster.now = 150.0  # it should have ended
    assert cluster_status.demand_of(cluster.scheduler, cluster.now).ends == ()


def test_the_gangs_of_all_jobs_that_wait_are_told_with_what_they_need_and_no_more_than_so_many() -> None:
    cluster = Cluster({"a": 1})
    cluster.scheduler.nodes.close("a")
    for number in range(4):
        cluster.submit(f"j{number}", gang(number + 1, least=1))
    found = cluster_status.demand_of(cluster.scheduler, 0.0)
    assert found.gangs == tuple((f"j{number}", gang(number + 1, least=1)) for number in range(4))


@pytest.mark.parametrize(("most", "count"), [(2, 2), (3, 3), (9, 3)])
def test_no_more_gangs_are_told_than_can_be_served_at_once(
    most: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_status, "MOST", most)
    cluster = Cluster({"a": 1}, BY_PRIORITY, (Queue("one"), Queue("two")))
    for number, queue in enumerate(("one", "two", "one")):
        cluster.submit(f"j{number}", gang(2), queue=queue)
    assert len(told(cluster)) == count


def test_of_queues_that_have_equal_shares_the_first_by_name_goes_first() -> None:
    cluster = Cluster({"a": 1}, BY_PRIORITY, (Queue("z"), Queue("a")))
    for queue in "za":
        cluster.submit(queue, gang(2), queue=queue)
    assert told(cluster) == ["a", "z"]


def test_what_a_queue_has_already_counts_in_its_share_and_its_limit() -> None:
    limit = Resources(gpus=4, cores=4)
    cluster = Cluster({"a": 3}, BY_PRIORITY, (Queue("a", limit=limit), Queue("z")))
    cluster.submit("runs", gang(2), queue="a")
    for name, count, queue in (("a1", 2, "a"), ("a2", 1, "a"), ("z1", 2, "z"), ("z2", 2, "z")):
        cluster.submit(name, gang(count), queue=queue)
    assert "a2" in cluster.runs
    assert told(cluster) == ["z1", "z2"]  # with one more slot than it has, `a1` is beyond the limit
    cluster.ended("a2")
    assert told(cluster) == ["z1", "a1", "z2"]


def test_not_who_lacks_memory_for_its_driver() -> None:
    scheduler = Scheduler(BY_PRIORITY, (Queue("q", driver_limit_mib=10),))
    scheduler.nodes.set_node("a", Resources(cores=1, memory_mib=99))
    for name in ("runs", "waits"):
        driver = GangShape((SlotGroup("driver", 1, Resources(cores=1, memory_mib=6), is_driver=True),))
        scheduler.submit(GangRequest(name, driver, "q"), 0.0)
    assert cluster_status.demand_of(scheduler, 0.0).gangs == ()
    scheduler.queue(Queue("q", driver_limit_mib=12))
    assert [job for job, _ in cluster_status.demand_of(scheduler, 0.0).gangs] == ["waits"]


def test_an_end_is_told_until_it_is_reached_and_with_what_is_given_back() -> None:
    cluster = Cluster({"a": 3, "b": 3})
    cluster.now = 10.0
    cluster.submit("long", gang(2), expected_s=100.0)
    cluster.submit("short", gang(3), expected_s=50.0)
    ends = cluster_status.demand_of(cluster.scheduler, 59.9).ends
    assert ends == (GangEnd(110.0, gang(2), ({"a": 2},)), GangEnd(60.0, gang(3), ({"b": 3},)))
    assert cluster_status.demand_of(cluster.scheduler, 60.0).ends == ends[:1]


def test_nothing_is_no_gangs_no_nodes_and_no_ends() -> None:
    nothing = Demand.nothing()
    assert (nothing.gangs, nothing.ends, nothing.nodes.rows) == ((), (), {})
