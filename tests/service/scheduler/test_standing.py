"""What people are shown of nodes and queues."""

from __future__ import annotations

import pytest

from hopsml.service.scheduler import standing
from hopsml.service.scheduler.policy import Queue
from hopsml.service.scheduler.resources import Resources
from tests.service.scheduler.clusters import Cluster, gang

pytestmark = pytest.mark.fast


def uses(cluster: Cluster) -> dict[str, dict[str, int]]:
    """Node -> job -> GPUs."""
    return {node.name: {job.job_id: job.uses.gpus for job in node.jobs} for node in standing.nodes(cluster.scheduler)}


def test_a_node_says_who_has_how_much_and_what_is_left():
    cluster = Cluster({"node2": 4, "node1": 4})
    cluster.scheduler.nodes.others("node1", Resources(gpus=1, cores=1))
    cluster.submit("wide", gang(6), user="ana")
    node1, node2 = standing.nodes(cluster.scheduler)
    assert (node1.name, node2.name) == ("node1", "node2") and node1.jobs[0].owner == "ana"
    assert uses(cluster) == {"node1": {"wide": 2}, "node2": {"wide": 4}}
    assert (node1.free.gpus, node1.others.gpus, node2.free.gpus) == (1, 1, 0)


def test_who_leaves_and_who_is_to_come_are_both_there():
    cluster = Cluster({"node1": 4})
    cluster.submit("low", gang(4), priority=10)
    cluster.submit("urgent", gang(4), priority=90)
    assert uses(cluster) == {"node1": {"low": 4, "urgent": 4}}
    assert standing.nodes(cluster.scheduler)[0].free.gpus == 0
    (queue,) = standing.queues(cluster.scheduler)
    assert (queue.running, queue.waiting, queue.has.gpus) == (1, 1, 4)


def test_a_node_that_is_gone_is_shown_while_a_job_counts_as_there():
    cluster = Cluster({"node1": 4, "node2": 4})
    cluster.submit("stays", gang(3))
    (node,) = (name for name, jobs in uses(cluster).items() if jobs)
    for name in ("node1", "node2"):
        cluster.scheduler.nodes.gone(name)
    (gone,) = standing.nodes(cluster.scheduler)
    assert (gone.name, gone.capacity.gpus, gone.free.gpus) == (node, 0, 0)
    cluster.ended("stays")
    assert standing.nodes(cluster.scheduler) == []


def test_queues_say_what_they_have_and_how_many_wait():
    queues = (Queue("default"), Queue("research", 2.0, Resources(gpus=2), Resources(gpus=3, cores=64, memory_mib=1)))
    cluster = Cluster({"node1": 4}, queues=queues)
    for name, count in (("a", 2), ("b", 2), ("c", 1)):
        cluster.submit(name, gang(count), queue="research")
    default, research = standing.queues(cluster.scheduler)
    assert (default.queue.name, default.running, default.waiting) == ("default", 0, 0)
    assert (research.running, research.waiting, research.has.gpus) == (2, 1, 3)
