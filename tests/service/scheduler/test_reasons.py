"""What a person is told of a job that waits, and of one that could never run."""

from __future__ import annotations

import pytest

from hopsml.service.scheduler.admission import NodeKind, amount, refusal
from hopsml.service.scheduler.policy import GangRequest, Policy, Queue
from hopsml.service.scheduler.reasons import Cause, why
from hopsml.service.scheduler.resources import GangShape, Resources, SlotGroup
from hopsml.service.scheduler.scheduler import Scheduler
from tests.service.scheduler.clusters import BY_PRIORITY, NO_PREEMPTION, Cluster, gang

pytestmark = pytest.mark.fast
NOON = 12 * 3600.0


def clock(at: float) -> str:
    return f"{int(at // 3600):02d}:{int(at % 3600 // 60):02d}"


def told(cluster: Cluster, job_id: str) -> str:
    return why(cluster.scheduler, job_id, cluster.now).text(clock)


def three_nodes(policy: Policy = NO_PREEMPTION) -> Cluster:
    cluster = Cluster({"node2": 4, "node5": 4, "node7": 4}, policy)
    cluster.now = NOON
    return cluster


class TestWhy:
    def test_numbers_holders_a_forecast_and_what_would_help(self):
        cluster = three_nodes()
        cluster.submit("resnet-17", gang(7), user="alice", expected_s=8400.0)
        cluster.submit("wants", gang(8))
        assert told(cluster, "wants") == (
            "needs 8 slots of 1 GPU, 1 core, 5 are free (node7 4, node5 1); alice's resnet-17 holds 7 until about 14:20;"
            " starts about 14:20 at the earliest; would start now with 5"
        )

    def test_who_goes_first_and_many_holders(self):
        cluster = three_nodes()
        for number in range(6):
            cluster.submit(f"h{number}", gang(1, gpus=2))
        cluster.submit("first", gang(4))
        cluster.submit("second", gang(3))
        assert told(cluster, "second") == (
            "needs 3 slots of 1 GPU, 1 core, 0 are free; 1 of queue default goes first; h0 holds 1; h1 holds 1; h2 holds 1;"
            " 3 more jobs hold the rest"
        )

    def test_who_holds_what_is_counted_in_workers(self):
        cluster = Cluster({"node2": 3}, NO_PREEMPTION)
        core = Resources(cores=1)
        parts = (SlotGroup("main", 2, core), SlotGroup("driver", 1, core, is_driver=True))
        cluster.scheduler.submit(GangRequest("two workers", GangShape(parts)), 0.0)
        cluster.scheduler.submit(GangRequest("wants", GangShape((SlotGroup("main", 1, core),))), 0.0)
        assert told(cluster, "wants") == "needs 1 slot of 1 core, 0 are free; two workers holds 2"

    def test_others_are_about_to_leave(self):
        cluster = three_nodes(BY_PRIORITY)
        cluster.submit("low", gang(12), user="bob", priority=10)
        cluster.submit("urgent", gang(4), priority=90)
        reason = why(cluster.scheduler, "urgent", cluster.now)
        assert reason.cause == Cause.LEAVING
        assert reason.text(clock) == "has its place, from which others are about to leave; bob's low holds 4"

    def test_room_is_kept_for_another(self):
        cluster = three_nodes(Policy(levels_s=(), preempts=False, hold_after_s=60.0))
        cluster.submit("large", gang(9), expected_s=7200.0)
        cluster.submit("waits", gang(12))
        cluster.later(60)
        cluster.submit("long", gang(2))
        assert told(cluster, "long") == "room is kept for waits, which goes first"

    def test_limits_of_the_queue_and_another_that_would_do(self):
        queues = (Queue("small", limit=Resources(gpus=2, cores=2)), Queue("default"))
        cluster = Cluster({"a": 8}, NO_PREEMPTION, queues)
        cluster.submit("one", gang(2), queue="small")
        cluster.submit("two", gang(1), queue="small")
        assert told(cluster, "two") == (
            "needs 1 GPU, 1 core; queue small has 2 GPUs, 2 cores of its limit, 2 GPUs, 2 cores;"
            " would start now in queue default"
        )

    def test_limit_of_drivers(self):
        scheduler = Scheduler(NO_PREEMPTION, (Queue(driver_limit_mib=1024),))
        scheduler.nodes.put("a", Resources(cores=8, memory_mib=8192))
        driver = GangShape((SlotGroup("driver", 1, Resources(cores=1, memory_mib=1024), is_driver=True),))
        scheduler.submit(GangRequest("one", driver), 0.0)
        scheduler.submit(GangRequest("two", driver), 0.0)
        said = why(scheduler, "two", 0.0)
        assert said.cause == Cause.DRIVER_LIMIT
        assert said.text(clock) == "queue default: its drivers have all the 1024 MiB that drivers may have"

    def test_a_gang_that_was_not_filled(self):
        cluster = three_nodes()
        cluster.submit("one", gang(2))
        cluster.runs.clear()
        cluster.scheduler.not_filled("one", cluster.now)
        assert told(cluster, "one") == "the cluster did not give all it was asked for; tried again at 12:00"
        assert cluster.later(30) == ["+one"]
        assert told(cluster, "one") == ""


class TestRefusal:
    def cluster(self) -> Scheduler:
        scheduler = Scheduler()
        for name in "ab":
            scheduler.nodes.put(name, Resources(gpus=8, cores=16, memory_mib=65536))
        scheduler.nodes.put("labelled", Resources(gpus=1, cores=4, memory_mib=8192), "v100")
        return scheduler

    def said(self, what: GangShape, queue: Queue | None = None, addable: tuple[NodeKind, ...] = ()) -> str:
        return refusal(GangRequest("j", what), self.cluster().nodes, queue or Queue(), addable)

    def test_what_runs_on_the_empty_cluster_is_not_refused_however_full_it_is(self):
        scheduler = self.cluster()
        scheduler.submit(GangRequest("all", gang(16)), 0.0)
        assert refusal(GangRequest("j", gang(16)), scheduler.nodes, Queue()) == ""

    def test_the_largest_that_would_run(self):
        assert self.said(gang(17)) == (
            "part 'workers' needs 17 x 1 GPU, 1 core; the nodes without a label have room for 16 such slots at most;"
            " ask for 16"
        )
        assert self.said(gang(1, gpus=9)) == (
            "part 'workers' needs 1 x 9 GPUs, 9 cores; the largest of the nodes without a label has 8 GPUs, 16 cores,"
            " 64 GiB, and a slot is on one node; ask for smaller slots"
        )

    def test_labels_that_are_not_there(self):
        assert self.said(gang(1, label="a100")).endswith("there are no nodes with label 'a100'")
        assert "the nodes with label 'v100' have room for 1 such slots" in self.said(gang(2, label="v100"))

    def test_parts_that_fit_each_but_not_together(self):
        parts = (SlotGroup("w", 2, Resources(gpus=8, cores=16)), SlotGroup("driver", 1, Resources(cores=1)))
        assert "its parts do not fit together" in self.said(GangShape(parts))

    def test_limits(self):
        assert self.said(gang(3), Queue("q", limit=Resources(gpus=2, cores=9))) == (
            "needs 3 GPUs, 3 cores, queue 'q' has at most 2 GPUs, 9 cores; ask for less, or another queue"
        )
        driver = GangShape((SlotGroup("driver", 1, Resources(cores=1, memory_mib=4096), is_driver=True),))
        assert "drivers in queue 'q' have at most 2048 MiB together" in self.said(
            driver, Queue("q", driver_limit_mib=2048)
        )

    def test_not_where_an_autoscaler_could_add_nodes(self):
        more = NodeKind(Resources(gpus=8, cores=16, memory_mib=65536), 2)
        assert self.said(gang(32), addable=(more,)) == ""
        assert "ask for 32" in self.said(gang(33), addable=(more,))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (Resources(1, 1, 512), "1 GPU, 1 core, 512 MiB"),
        (Resources(2, 0, 2048), "2 GPUs, 2 GiB"),
        (Resources(0, 3, 1536), "3 cores, 1.5 GiB"),
        (Resources(), "nothing"),
    ],
)
def test_amounts_as_a_person_says_them(what, said):
    assert amount(what) == said
