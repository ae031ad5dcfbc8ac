"""Tests of the displayed status of nodes and queues."""

from __future__ import annotations

import pytest

from hopsml.service.scheduler import cluster_status
from hopsml.service.scheduler.cluster_status import JobOnNode, NodeStatus, QueueStatus
from hopsml.service.scheduler.job import QueuedJob
from hopsml.service.scheduler.resources import NOTHING, GangRequest, GangShape, Queue, Resources, SlotGroup
from tests.unit.service.scheduler.clusters import Cluster, gang

pytestmark = pytest.mark.fast


def uses(cluster: Cluster) -> dict[str, dict[str, int]]:
    """Node -> job -> GPUs."""
    return {
        node.name: {job.job_id: job.uses.gpus for job in node.jobs}
        for node in cluster_status.node_statuses(cluster.scheduler)
    }


def test_node_status_lists_jobs_with_their_usage_and_the_free_slots():
    cluster = Cluster({"node2": 4, "node1": 4})
    cluster.scheduler.nodes.others("node1", Resources(gpus=1, cores=1))
    cluster.submit("wide", gang(6), user="ana")
    node1, node2 = cluster_status.node_statuses(cluster.scheduler)
    assert (node1.name, node2.name) == ("node1", "node2") and node1.jobs[0].owner == "ana"
    assert uses(cluster) == {"node1": {"wide": 2}, "node2": {"wide": 4}}
    assert (node1.free.gpus, node1.others.gpus, node2.free.gpus) == (1, 1, 0)


def test_leaving_and_placed_jobs_are_both_shown_on_a_node():
    cluster = Cluster({"node1": 4})
    cluster.submit("low", gang(4), priority=10)
    cluster.submit("urgent", gang(4), priority=90)
    assert uses(cluster) == {"node1": {"low": 4, "urgent": 4}}
    assert cluster_status.node_statuses(cluster.scheduler)[0].free.gpus == 0
    (queue,) = cluster_status.queue_statuses(cluster.scheduler)
    assert (queue.running, queue.waiting, queue.has.gpus) == (1, 1, 4)


def test_removed_node_is_shown_while_a_job_is_recorded_on_it():
    cluster = Cluster({"node1": 4, "node2": 4})
    cluster.submit("stays", gang(3))
    (node,) = (name for name, jobs in uses(cluster).items() if jobs)
    for name in ("node1", "node2"):
        cluster.scheduler.nodes.remove_capacity(name)
    (gone,) = cluster_status.node_statuses(cluster.scheduler)
    assert (gone.name, gone.capacity.gpus, gone.free.gpus) == (node, 0, 0)
    cluster.ended("stays")
    assert cluster_status.node_statuses(cluster.scheduler) == []


def test_queue_status_has_usage_and_numbers_of_running_and_waiting_jobs():
    queues = (Queue("default"), Queue("research", 2.0, Resources(gpus=2), Resources(gpus=3, cores=64, memory_mib=1)))
    cluster = Cluster({"node1": 4}, queues=queues)
    for name, count in (("a", 2), ("b", 2), ("c", 1)):
        cluster.submit(name, gang(count), queue="research")
    default, research = cluster_status.queue_statuses(cluster.scheduler)
    assert (default.queue.name, default.running, default.waiting) == ("default", 0, 0)
    assert (research.running, research.waiting, research.has.gpus) == (2, 1, 3)


def test_node_status_has_all_fields():
    cluster = Cluster({})
    cluster.scheduler.nodes.set_node("v", Resources(gpus=4, cores=8, memory_mib=99), "v100")
    cluster.scheduler.nodes.others("v", Resources(cores=1))
    parts = (
        SlotGroup("driver", 1, Resources(cores=2, memory_mib=9), label="v100"),
        SlotGroup("w", 3, Resources(gpus=1, cores=1), label="v100"),
    )
    cluster.scheduler.submit(GangRequest("j", GangShape(parts), user="ana"), 0.0)
    (node,) = cluster_status.node_statuses(cluster.scheduler)
    assert node == NodeStatus(
        "v",
        "v100",
        capacity=Resources(4, 8, 99),
        free=Resources(1, 2, 90),
        others=Resources(cores=1),
        jobs=(JobOnNode("j", "ana", Resources(3, 5, 9)),),
    )


def test_closed_node_is_hidden_unless_a_job_is_on_it():
    cluster = Cluster({"a": 2, "b": 2, "c": 2})
    cluster.submit("stays", gang(2))
    for name in "ab":
        cluster.scheduler.nodes.close(name)
    assert [(node.name, len(node.jobs)) for node in cluster_status.node_statuses(cluster.scheduler)] == [
        ("a", 1),
        ("c", 0),
    ]


def test_jobs_of_a_node_are_in_order_of_submission():
    cluster = Cluster({"a": 4})
    for name in ("z", "x", "y"):
        cluster.submit(name, gang(1))
    cluster.scheduler.jobs["x"].sequence = 9  # as after a restart: they are adopted in any order
    (node,) = cluster_status.node_statuses(cluster.scheduler)
    assert [job.job_id for job in node.jobs] == ["z", "y", "x"]


def test_shrinking_job_is_shown_with_its_current_usage():
    cluster = Cluster({"a": 4})
    cluster.submit("elastic", gang(4, least=1))
    job = cluster.scheduler.jobs["elastic"]
    job.placement = ({"a": 1},)
    assert uses(cluster) == {"a": {"elastic": 4}}
    job.used = ()
    assert uses(cluster) == {"a": {"elastic": 1}}


def test_usage_of_a_job_on_a_node_is_the_sum_of_its_parts():
    parts = (SlotGroup("x", 3, Resources(gpus=2)), SlotGroup("y", 2, Resources(cores=3)))
    job = QueuedJob(GangRequest("j", GangShape(parts)), 1, 0.0)
    assert cluster_status.resources_by_node(job, ({"a": 1, "b": 2}, {"b": 2})) == {
        "a": Resources(gpus=2),
        "b": Resources(gpus=4, cores=6),
    }
    assert cluster_status.resources_by_node(job, ()) == {}


def test_queues_are_listed_in_configured_order():
    queues = (Queue("z", 2.0), Queue("a"), Queue("m"))
    cluster = Cluster({"node": 2}, queues=queues)
    cluster.submit("low", gang(2), queue="a", priority=1)
    cluster.submit("urgent", gang(2), queue="a", priority=9)  # placed: it waits for the other to leave
    cluster.submit("waits", gang(1), queue="m")
    assert cluster_status.queue_statuses(cluster.scheduler) == [
        QueueStatus(queues[0], NOTHING, running=0, waiting=0),
        QueueStatus(queues[1], Resources(gpus=2, cores=2), running=1, waiting=1),
        QueueStatus(queues[2], NOTHING, running=0, waiting=1),
    ]
