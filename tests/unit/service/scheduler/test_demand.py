"""Tests of the demand for nodes: the jobs that wait only for room, in order."""

from __future__ import annotations

import pytest

from hopsml.service.scheduler import cluster_status
from hopsml.service.scheduler.cluster_status import Demand, GangEnd
from hopsml.service.scheduler.resources import GangRequest, GangShape, Queue, Resources, SlotGroup
from hopsml.service.scheduler.scheduler import Scheduler
from tests.unit.service.scheduler.clusters import BY_PRIORITY, Cluster, gang

pytestmark = pytest.mark.fast


def demanded(cluster: Cluster) -> list[str]:
    return [job for job, _ in cluster_status.demand_of(cluster.scheduler, cluster.now).gangs]


def test_demand_lists_waiting_jobs_by_priority_without_running_ones() -> None:
    cluster = Cluster({"a": 2})
    for name, priority in (("runs", 99), ("late", 40), ("first", 60), ("same", 60)):
        cluster.submit(name, gang(2), priority=priority)
    assert demanded(cluster) == ["first", "same", "late"]


def test_demand_stays_within_the_queue_limit_over_all_waiting_jobs() -> None:
    cluster = Cluster({"a": 1}, BY_PRIORITY, (Queue("q", limit=Resources(gpus=5, cores=5)),))
    for number in range(4):
        cluster.submit(f"j{number}", gang(2), queue="q")
    assert demanded(cluster) == ["j0", "j1"]


def test_demand_alternates_between_queues_by_weight() -> None:
    cluster = Cluster({"a": 1}, BY_PRIORITY, (Queue("one", weight=2.0), Queue("two")))
    for number in range(3):
        for queue in ("one", "two"):
            cluster.submit(f"{queue}{number}", gang(2), queue=queue)
    assert demanded(cluster) == ["one0", "two0", "one1", "one2", "two1", "two2"]


def test_job_in_backoff_is_not_in_the_demand() -> None:
    cluster = Cluster({"a": 2})
    cluster.submit("one", gang(2))
    cluster.runs.clear()
    cluster.carry_out(cluster.scheduler.requeue_unfilled("one", cluster.now))
    cluster.submit("two", gang(3))
    assert demanded(cluster) == ["two"]
    cluster.now += 30.0
    assert demanded(cluster) == ["one", "two"]


def test_demand_has_known_job_ends_and_a_copy_of_the_nodes() -> None:
    cluster = Cluster({"a": 3})
    cluster.submit("known", gang(1), expected_s=100.0)
    cluster.submit("unknown", gang(1))
    found = cluster_status.demand_of(cluster.scheduler, cluster.now)
    assert [(end.at_s, end.placement) for end in found.ends] == [(100.0, ({"a": 1},))]
    found.nodes.promise(gang(1), ({"a": 1},))
    assert cluster.scheduler.nodes.free() == Resources(gpus=1, cores=1)
    cluster.now = 150.0  # it should have ended
    assert cluster_status.demand_of(cluster.scheduler, cluster.now).ends == ()


def test_demand_lists_gangs_with_their_full_shape() -> None:
    cluster = Cluster({"a": 1})
    cluster.scheduler.nodes.close("a")
    for number in range(4):
        cluster.submit(f"j{number}", gang(number + 1, least=1))
    found = cluster_status.demand_of(cluster.scheduler, 0.0)
    assert found.gangs == tuple((f"j{number}", gang(number + 1, least=1)) for number in range(4))


@pytest.mark.parametrize(("most", "count"), [(2, 2), (3, 3), (9, 3)])
def test_number_of_gangs_in_the_demand_is_bounded(most: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_status, "MOST", most)
    cluster = Cluster({"a": 1}, BY_PRIORITY, (Queue("one"), Queue("two")))
    for number, queue in enumerate(("one", "two", "one")):
        cluster.submit(f"j{number}", gang(2), queue=queue)
    assert len(demanded(cluster)) == count


def test_queues_with_equal_shares_are_served_by_name() -> None:
    cluster = Cluster({"a": 1}, BY_PRIORITY, (Queue("z"), Queue("a")))
    for queue in "za":
        cluster.submit(queue, gang(2), queue=queue)
    assert demanded(cluster) == ["a", "z"]


def test_running_jobs_count_in_the_share_and_the_limit_of_their_queue() -> None:
    limit = Resources(gpus=4, cores=4)
    cluster = Cluster({"a": 3}, BY_PRIORITY, (Queue("a", limit=limit), Queue("z")))
    cluster.submit("runs", gang(2), queue="a")
    for name, count, queue in (("a1", 2, "a"), ("a2", 1, "a"), ("z1", 2, "z"), ("z2", 2, "z")):
        cluster.submit(name, gang(count), queue=queue)
    assert "a2" in cluster.runs
    assert demanded(cluster) == ["z1", "z2"]  # with one more slot than it has, `a1` is beyond the limit
    cluster.ended("a2")
    assert demanded(cluster) == ["z1", "a1", "z2"]


def test_job_beyond_the_driver_memory_limit_is_not_in_the_demand() -> None:
    scheduler = Scheduler(BY_PRIORITY, (Queue("q", driver_limit_mib=10),))
    scheduler.nodes.set_node("a", Resources(cores=1, memory_mib=99))
    for name in ("runs", "waits"):
        driver = GangShape((SlotGroup("driver", 1, Resources(cores=1, memory_mib=6), is_driver=True),))
        scheduler.submit(GangRequest(name, driver, "q"), 0.0)
    assert cluster_status.demand_of(scheduler, 0.0).gangs == ()
    scheduler.queue(Queue("q", driver_limit_mib=12))
    assert [job for job, _ in cluster_status.demand_of(scheduler, 0.0).gangs] == ["waits"]


def test_job_end_is_listed_until_it_is_reached_with_the_slots_it_releases() -> None:
    cluster = Cluster({"a": 3, "b": 3})
    cluster.now = 10.0
    cluster.submit("long", gang(2), expected_s=100.0)
    cluster.submit("short", gang(3), expected_s=50.0)
    ends = cluster_status.demand_of(cluster.scheduler, 59.9).ends
    assert ends == (GangEnd(110.0, gang(2), ({"a": 2},)), GangEnd(60.0, gang(3), ({"b": 3},)))
    assert cluster_status.demand_of(cluster.scheduler, 60.0).ends == ends[:1]


def test_empty_demand_has_no_gangs_nodes_or_ends() -> None:
    nothing = Demand.nothing()
    assert (nothing.gangs, nothing.ends, nothing.nodes.rows) == ((), (), {})
