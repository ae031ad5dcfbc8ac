"""Tests of the reasons shown for a job that waits, and for one that could never run."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.reasons import (
    TRIED,
    BlockingJob,
    Cause,
    NodeKind,
    Reason,
    resources_text,
    why_impossible,
    why_waiting,
    with_count,
    would_start,
    would_start_in_queue,
)
from hopsml.service.scheduler.resources import (
    NOTHING,
    UNLIMITED,
    GangRequest,
    GangShape,
    Policy,
    Queue,
    Resources,
    SlotGroup,
)
from hopsml.service.scheduler.scheduler import Scheduler
from tests.unit.service.scheduler.clusters import BY_PRIORITY, FIRST_COME, NO_PREEMPTION, Cluster, gang

pytestmark = pytest.mark.fast
NOON = 12 * 3600.0


def clock(at: float) -> str:
    return f"{int(at // 3600):02d}:{int(at % 3600 // 60):02d}"


def reason_text(cluster: Cluster, job_id: str) -> str:
    return why_waiting(cluster.scheduler, job_id, cluster.now).text(clock)


def three_nodes(policy: Policy = NO_PREEMPTION) -> Cluster:
    cluster = Cluster({"node2": 4, "node5": 4, "node7": 4}, policy)
    cluster.now = NOON
    return cluster


class TestWhy:
    def test_reason_states_free_slots_blocking_jobs_forecast_and_remedy(self):
        cluster = three_nodes()
        cluster.submit("resnet-17", gang(7), user="alice", expected_s=8400.0)
        cluster.submit("wants", gang(8))
        assert reason_text(cluster, "wants") == (
            "needs 8 slots of 1 GPU, 1 core, 5 are free (node7 4, node5 1); alice's resnet-17 holds 7 until about 14:20;"
            " starts about 14:20, or when other jobs end earlier; would start now with 5"
        )

    def test_time_of_a_preemption_is_no_lower_bound_of_the_start(self):
        cluster = three_nodes(Policy(least_run_s=300.0))
        cluster.submit("low", gang(12), user="alice", priority=50)
        cluster.advance(60.0)
        cluster.submit("high", gang(12), priority=80)
        assert reason_text(cluster, "high") == (
            "needs 12 slots of 1 GPU, 1 core, 0 are free; alice's low holds 12;"
            " preempts other jobs about 12:05, or starts when they end earlier"
        )
        assert "+high" in cluster.ended("low"), "before that time"

    def test_reason_states_jobs_ahead_and_summarizes_many_blocking_jobs(self):
        cluster = three_nodes()
        for number in range(6):
            cluster.submit(f"h{number}", gang(1, gpus=2))
        cluster.submit("first", gang(4))
        cluster.submit("second", gang(3))
        assert reason_text(cluster, "second") == (
            "needs 3 slots of 1 GPU, 1 core, 0 are free; 1 of queue default goes first; h0 holds 1; h1 holds 1; h2 holds 1;"
            " 3 more jobs hold the rest"
        )

    def test_slots_of_a_blocking_job_are_counted_in_workers(self):
        cluster = Cluster({"node2": 3}, NO_PREEMPTION)
        core = Resources(cores=1)
        parts = (SlotGroup("main", 2, core), SlotGroup("driver", 1, core, is_driver=True))
        cluster.scheduler.submit(GangRequest("two workers", GangShape(parts)), 0.0)
        cluster.scheduler.submit(GangRequest("wants", GangShape((SlotGroup("main", 1, core),))), 0.0)
        assert reason_text(cluster, "wants") == "needs 1 slot of 1 core, 0 are free; two workers holds 2"

    def test_reason_names_jobs_that_must_release_slots_first(self):
        cluster = three_nodes(BY_PRIORITY)
        cluster.submit("low", gang(12), user="bob", priority=10)
        cluster.submit("urgent", gang(4), priority=90)
        reason = why_waiting(cluster.scheduler, "urgent", cluster.now)
        assert reason.cause == Cause.LEAVING
        assert (
            reason.text(clock)
            == "its slots are assigned, but other jobs must release them first; bob's low has to release 4"
        )

    def test_reason_names_the_job_slots_are_reserved_for(self):
        cluster = three_nodes(Policy(levels_s=(), preempts=False, hold_after_s=60.0))
        cluster.submit("large", gang(9), expected_s=7200.0)
        cluster.submit("waits", gang(12))
        cluster.advance(60)
        cluster.submit("long", gang(2))
        assert reason_text(cluster, "long") == "slots are reserved for waits, which has precedence"

    def test_reason_states_the_queue_limit_and_a_queue_without_it(self):
        queues = (Queue("small", limit=Resources(gpus=2, cores=2)), Queue("default"))
        cluster = Cluster({"a": 8}, NO_PREEMPTION, queues)
        cluster.submit("one", gang(2), queue="small")
        cluster.submit("two", gang(1), queue="small")
        assert reason_text(cluster, "two") == (
            "needs 1 GPU, 1 core; queue small has 2 GPUs, 2 cores of its limit, 2 GPUs, 2 cores;"
            " would start now in queue default"
        )

    def test_reason_states_the_memory_limit_of_drivers(self):
        scheduler = Scheduler(NO_PREEMPTION, (Queue(driver_limit_mib=1024),))
        scheduler.nodes.set_node("a", Resources(cores=8, memory_mib=8192))
        driver = GangShape((SlotGroup("driver", 1, Resources(cores=1, memory_mib=1024), is_driver=True),))
        scheduler.submit(GangRequest("one", driver), 0.0)
        scheduler.submit(GangRequest("two", driver), 0.0)
        text = why_waiting(scheduler, "two", 0.0)
        assert text.cause == Cause.DRIVER_LIMIT
        assert text.text(clock) == "queue default: its drivers have all the 1024 MiB that drivers may have"

    def test_reason_states_the_next_attempt_after_an_unfilled_gang(self):
        cluster = three_nodes()
        cluster.submit("one", gang(2))
        cluster.runs.clear()
        cluster.scheduler.requeue_unfilled("one", cluster.now)
        assert (
            reason_text(cluster, "one")
            == "the cluster did not grant all requested containers; the next attempt is at 12:00"
        )
        assert cluster.advance(30) == ["+one"]
        assert reason_text(cluster, "one") == ""


class TestRefusal:
    def cluster(self) -> Scheduler:
        scheduler = Scheduler()
        for name in "ab":
            scheduler.nodes.set_node(name, Resources(gpus=8, cores=16, memory_mib=65536))
        scheduler.nodes.set_node("labelled", Resources(gpus=1, cores=4, memory_mib=8192), "v100")
        return scheduler

    def text(self, what: GangShape, queue: Queue | None = None, addable: tuple[NodeKind, ...] = ()) -> str:
        return why_impossible(GangRequest("j", what), self.cluster().nodes, queue or Queue(), addable)

    def test_gang_that_fits_the_empty_cluster_is_not_refused_when_it_is_full(self):
        scheduler = self.cluster()
        scheduler.submit(GangRequest("all", gang(16)), 0.0)
        assert why_impossible(GangRequest("j", gang(16)), scheduler.nodes, Queue()) == ""

    def test_refusal_names_the_largest_gang_that_would_run(self):
        assert self.text(gang(17)) == (
            "task 'workers' needs 17 x 1 GPU, 1 core; the nodes without a label have room for 16 such slots at most;"
            " request 16"
        )
        assert self.text(gang(1, gpus=9)) == (
            "task 'workers' needs 1 x 9 GPUs, 9 cores; the largest of the nodes without a label has 8 GPUs, 16 cores,"
            " 64 GiB, and a slot is on one node; request smaller slots"
        )

    def test_refusal_names_a_label_without_enough_nodes(self):
        assert self.text(gang(1, label="a100")).endswith("there are no nodes with label 'a100'")
        assert "the nodes with label 'v100' have room for 1 such slots" in self.text(gang(2, label="v100"))

    def test_refusal_states_that_parts_do_not_fit_together(self):
        parts = (SlotGroup("w", 2, Resources(gpus=8, cores=16)), SlotGroup("driver", 1, Resources(cores=1)))
        assert "its tasks do not fit together" in self.text(GangShape(parts))

    def test_refusal_states_queue_and_driver_limits(self):
        assert self.text(gang(3), Queue("q", limit=Resources(gpus=2, cores=9))) == (
            "needs 3 GPUs, 3 cores, queue 'q' has at most 2 GPUs, 9 cores; request less, or another queue"
        )
        driver = GangShape((SlotGroup("driver", 1, Resources(cores=1, memory_mib=4096), is_driver=True),))
        assert "drivers in queue 'q' have at most 2048 MiB together" in self.text(
            driver, Queue("q", driver_limit_mib=2048)
        )

    def test_gang_that_fits_on_addable_nodes_is_not_refused(self):
        more = NodeKind(Resources(gpus=8, cores=16, memory_mib=65536), 2)
        assert self.text(gang(32), addable=(more,)) == ""
        assert "request 32" in self.text(gang(33), addable=(more,))


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (Resources(1, 1, 512), "1 GPU, 1 core, 512 MiB"),
        (Resources(2, 0, 2048), "2 GPUs, 2 GiB"),
        (Resources(0, 3, 1536), "3 cores, 1.5 GiB"),
        (Resources(), "nothing"),
    ],
)
def test_amount_text_uses_plural_forms_and_units(what, text):
    assert resources_text(what) == text


def text(cause: Cause, **more: object) -> str:
    return Reason(cause, "job", "q", **more).text(clock)  # type: ignore[arg-type]


class TestReasonTexts:
    """Texts of reasons."""

    ONE = Resources(gpus=1)

    @pytest.mark.parametrize(
        ("reason", "words"),
        [
            ({}, "needs 1 slot of 1 GPU, 0 are free"),
            ({"slots": 3}, "needs 3 slots of 1 GPU, 0 are free"),
            ({"free": (("a", 1),)}, "needs 1 slot of 1 GPU, 1 is free (a 1)"),
            ({"free": (("a", 2), ("b", 1), ("c", 1))}, "needs 1 slot of 1 GPU, 4 are free (a 2, b 1, c 1)"),
            (
                {"free": (("a", 2), ("b", 1), ("c", 1), ("d", 1))},
                "needs 1 slot of 1 GPU, 5 are free (a 2, b 1, c 1 and 1 more node)",
            ),
            ({"ahead": 1}, "needs 1 slot of 1 GPU, 0 are free; 1 of queue q goes first"),
            ({"ahead": 2}, "needs 1 slot of 1 GPU, 0 are free; 2 of queue q go first"),
            ({"together": ("x", "y")}, "there are enough slots for each of x, y, but not for all of them at once"),
            (
                {"starts_s": NOON},
                "needs 1 slot of 1 GPU, 0 are free; starts about 12:00, or when other jobs end earlier",
            ),
            ({"would_start_with": 2}, "needs 1 slot of 1 GPU, 0 are free; would start now with 2"),
            ({"other_queues": ("r", "s")}, "needs 1 slot of 1 GPU, 0 are free; would start now in queue r or s"),
            (
                {"would_start_with": 2, "other_queues": ("r",)},
                "needs 1 slot of 1 GPU, 0 are free; would start now with 2, or in queue r",
            ),
            (
                {"holders": (BlockingJob("j", "ana", 2, NOON), BlockingJob("k", "", 1, math.inf))},
                "needs 1 slot of 1 GPU, 0 are free; ana's j holds 2 until about 12:00; k holds 1",
            ),
            (
                {"holders": tuple(BlockingJob(f"j{number}", "", 1, math.inf) for number in range(3))},
                "needs 1 slot of 1 GPU, 0 are free; j0 holds 1; j1 holds 1; j2 holds 1",
            ),
            (
                {"holders": tuple(BlockingJob(f"j{number}", "", 1, math.inf) for number in range(4))},
                "needs 1 slot of 1 GPU, 0 are free; j0 holds 1; j1 holds 1; j2 holds 1; 1 more job holds the rest",
            ),
        ],
    )
    def test_reason_text_for_missing_slots(self, reason, words):
        assert text(Cause.NO_ROOM, **{"slots": 1, "each": self.ONE, **reason}) == words

    @pytest.mark.parametrize(
        ("cause", "reason", "words"),
        [
            (
                Cause.PUT_OFF,
                {"starts_s": NOON},
                "the cluster did not grant all requested containers; the next attempt is at 12:00",
            ),
            (Cause.LEAVING, {}, "its slots are assigned, but other jobs must release them first"),
            (
                Cause.LEAVING,
                {"starts_s": NOON},
                "its slots are assigned, but other jobs must release them first; starts about 12:00, or when other jobs "
                "end earlier",
            ),
            (Cause.QUEUE_LIMIT, {"limit": "too much", "starts_s": NOON}, "too much"),
            (Cause.DRIVER_LIMIT, {"limit": "too much", "other_queues": ("r",)}, "too much; would start now in queue r"),
            (Cause.ROOM_KEPT, {"in_favour_of": "k"}, "slots are reserved for k, which has precedence"),
            (
                Cause.ROOM_KEPT,
                {"in_favour_of": "k", "starts_s": NOON},
                "slots are reserved for k, which has precedence; starts about 12:00, or when other jobs end earlier",
            ),
            (Cause.DUE, {}, "is starting"),
            (
                Cause.ELASTIC,
                {"sizes": (("x", 1, 1, 1, 4), ("y", 4, 4, 1, 4), ("z", 4, 3, 2, 9))},
                "x runs with 1 slot of 1 to 4, and gets more when free slots are not needed by waiting jobs; y runs "
                "with 4 slots of 1 to 4; z runs with 4 slots of 2 to 9, and has to release 1",
            ),
            (Cause.NONE, {}, ""),
        ],
    )
    def test_reason_text_for_other_causes(self, cause, reason, words):
        assert text(cause, **reason) == words


class TestReasons:
    """Complete reasons of waiting jobs."""

    def test_reason_without_free_slots_has_all_fields(self):
        cluster = three_nodes()
        cluster.submit("a", gang(5), user="ana", expected_s=600.0)
        cluster.submit("b", gang(5), user="bob", expected_s=1200.0)
        cluster.submit("c", gang(3))
        found = why_waiting(cluster.scheduler, "c", cluster.now)
        assert found == Reason(
            Cause.NO_ROOM,
            "c",
            "default",
            part="workers",
            slots=3,
            each=Resources(gpus=1, cores=1),
            free=found.free,
            holders=(BlockingJob("a", "ana", 5, NOON + 600.0), BlockingJob("b", "bob", 5, NOON + 1200.0)),
            starts_s=NOON + 600.0,
            would_start_with=2,
        )
        assert sum(slots for _, slots in found.free) == 2

    def test_free_nodes_are_listed_by_free_slots_then_by_name(self):
        cluster = Cluster({"c": 2, "a": 1, "b": 2, "d": 3}, NO_PREEMPTION)
        cluster.submit("j", gang(9))
        assert why_waiting(cluster.scheduler, "j", 0.0).free == (("d", 3), ("b", 2), ("c", 2), ("a", 1))

    def test_jobs_ahead_are_counted_within_the_queue(self):
        cluster = Cluster({"a": 1}, NO_PREEMPTION, (Queue("one"), Queue("two")))
        for name, queue, priority in (
            ("low", "one", 40), ("x", "one", 50), ("high", "one", 60), ("y", "one", 50), ("other", "two", 99),
            ("z", "one", 50),
        ):  # fmt: skip
            cluster.submit(name, gang(2), queue=queue, priority=priority)
        ahead = {name: why_waiting(cluster.scheduler, name, 0.0).ahead for name in cluster.scheduler.jobs}
        assert ahead == {"high": 0, "x": 1, "y": 2, "z": 3, "low": 4, "other": 0}
        assert why_waiting(cluster.scheduler, "other", 0.0).queue == "two"

    def test_reason_names_the_first_part_without_free_slots(self):
        core = Resources(cores=1)
        cluster = Cluster({"a": 2}, NO_PREEMPTION)
        parts = (
            SlotGroup("driver", 1, core),
            SlotGroup("workers", 3, Resources(gpus=1), 2),
            SlotGroup("more", 3, core),
        )
        cluster.scheduler.submit(GangRequest("j", GangShape(parts)), 0.0)
        found = why_waiting(cluster.scheduler, "j", 0.0)
        assert (found.part, found.slots, found.each, found.free, found.together) == ("more", 3, core, (("a", 2),), ())

    def test_parts_that_fit_only_separately_are_named_together(self):
        cluster = Cluster({"a": 2}, NO_PREEMPTION)
        parts = (
            SlotGroup("driver", 2, Resources(cores=1)),
            SlotGroup("workers", 1, Resources(gpus=1, cores=1)),
            SlotGroup("more", 2, Resources(gpus=1)),
        )
        cluster.scheduler.submit(GangRequest("j", GangShape(parts)), 0.0)
        found = why_waiting(cluster.scheduler, "j", 0.0)
        assert found.together == ("driver", "workers", "more") and found.cause == Cause.NO_ROOM
        assert (found.part, found.slots) == ("more", 2)  # with the most GPUs in all

    def test_largest_part_is_named_if_no_part_needs_gpus(self):
        cluster = Cluster({"a": 4}, NO_PREEMPTION)
        core = Resources(cores=1)
        parts = (SlotGroup("small", 1, core), SlotGroup("large", 3, core), SlotGroup("other", 2, core))
        cluster.scheduler.submit(GangRequest("j", GangShape(parts)), 0.0)
        assert why_waiting(cluster.scheduler, "j", 0.0).part == "large"

    def test_leaving_jobs_are_listed_with_the_slots_they_release(self):
        cluster = Cluster({"a": 4, "b": 2})
        cluster.submit("elsewhere", gang(2), priority=60)
        cluster.submit("low", gang(1), user="bob", priority=10)
        cluster.submit("lower", gang(3), user="ana", priority=5)
        cluster.submit("urgent", gang(4), priority=90)
        found = why_waiting(cluster.scheduler, "urgent", 0.0)
        assert found == Reason(
            Cause.LEAVING,
            "urgent",
            "default",
            holders=(BlockingJob("low", "bob", 1, math.inf), BlockingJob("lower", "ana", 3, math.inf)),
        )

    def test_blocking_jobs_hold_the_scarce_resource_and_are_sorted_by_end(self):
        cluster = Cluster({"a": 8}, NO_PREEMPTION)
        cluster.capacity["v"] = 2
        cluster.scheduler.nodes.set_node("v", Resources(gpus=2, cores=2), "v100")
        cluster.submit("labelled", gang(2, label="v100"))
        core = GangShape((SlotGroup("w", 1, Resources(cores=1)),))
        cluster.scheduler.submit(GangRequest("cores only", core), 0.0)
        for name, count, expected_s in (
            ("z", 1, 60.0),
            ("y", 2, math.inf),
            ("x", 1, math.inf),
            ("w", 2, 60.0),
            ("v", 1, math.inf),
        ):
            cluster.submit(name, gang(count), expected_s=expected_s)
        cluster.submit("wants", gang(2))
        holders = why_waiting(cluster.scheduler, "wants", 0.0).holders
        assert [(one.job_id, one.slots) for one in holders] == [("w", 2), ("z", 1), ("y", 2), ("v", 1), ("x", 1)]
        cluster.scheduler.submit(GangRequest("wants cores", GangShape((SlotGroup("w", 9, Resources(cores=1)),))), 0.0)
        holders = why_waiting(cluster.scheduler, "wants cores", 0.0).holders
        assert {one.job_id for one in holders} == {"v", "w", "x", "y", "z", "cores only"}

    def test_driver_slots_are_counted_only_for_jobs_without_workers(self):
        core = Resources(cores=1)
        cluster = Cluster({"a": 3}, NO_PREEMPTION)
        driver = SlotGroup("driver", 2, core, is_driver=True)
        cluster.scheduler.submit(
            GangRequest("j", GangShape((driver, SlotGroup("w", 1, Resources(gpus=1)), driver))), 0.0
        )
        cluster.scheduler.nodes.set_node("b", Resources(gpus=1))
        cluster.scheduler.tick(0.0)
        cluster.scheduler.nodes.set_node("a", Resources(gpus=1, cores=4))
        cluster.scheduler.tick(0.0)
        cluster.scheduler.submit(GangRequest("wants", GangShape((SlotGroup("w", 1, core),))), 0.0)
        (holder,) = why_waiting(cluster.scheduler, "wants", 0.0).holders
        assert (holder.job_id, holder.slots) == ("j", 1)  # its worker

    def test_running_or_ending_job_has_no_reason_and_an_elastic_one_has_sizes(self):
        cluster = Cluster({"a": 8})
        cluster.submit("fixed", gang(2), priority=40)
        cluster.submit("elastic", gang(8, least=2), priority=60)
        assert why_waiting(cluster.scheduler, "fixed", 0.0) == Reason(Cause.NONE, "fixed", "default")
        assert why_waiting(cluster.scheduler, "elastic", 0.0) == Reason(
            Cause.ELASTIC, "elastic", "default", sizes=(("workers", 6, 6, 2, 8),)
        )
        cluster.submit("urgent", gang(6), priority=70)
        assert why_waiting(cluster.scheduler, "fixed", 0.0).cause == Cause.NONE
        cluster = Cluster({"a": 2})
        cluster.submit("low", gang(2), priority=1)
        assert cluster.submit("urgent", gang(2), priority=70) == ["-low"]
        assert why_waiting(cluster.scheduler, "low", 0.0) == Reason(Cause.NONE, "low", "default")

    def test_parts_of_fixed_size_are_not_listed_with_sizes(self):
        parts = (SlotGroup("driver", 1, Resources(cores=1)), SlotGroup("w", 3, Resources(cores=1), 1))
        cluster = Cluster({"a": 3})
        cluster.scheduler.submit(GangRequest("j", GangShape(parts)), 0.0)
        assert why_waiting(cluster.scheduler, "j", 0.0).sizes == (("w", 2, 2, 1, 3),)

    def test_job_with_free_slots_is_due_unless_they_are_reserved_for_another(self):
        cluster = Cluster({"a": 2}, NO_PREEMPTION)
        cluster.submit("first", gang(2))
        cluster.submit("next", gang(2))
        cluster.scheduler.nodes.set_node("b", Resources(gpus=2, cores=2))
        assert why_waiting(cluster.scheduler, "next", 0.0) == Reason(Cause.DUE, "next", "default")
        cluster.scheduler.kept_for = "next"
        assert why_waiting(cluster.scheduler, "next", 0.0).cause == Cause.DUE
        cluster.scheduler.kept_for = "other"
        assert why_waiting(cluster.scheduler, "next", 0.0) == Reason(
            Cause.ROOM_KEPT, "next", "default", in_favour_of="other"
        )

    def test_backoff_ends_exactly_at_its_time(self):
        cluster = Cluster({"a": 2}, NO_PREEMPTION)
        cluster.submit("j", gang(2))
        cluster.runs.clear()
        cluster.scheduler.requeue_unfilled("j", 0.0)
        assert why_waiting(cluster.scheduler, "j", 29.9) == Reason(Cause.PUT_OFF, "j", "default", starts_s=30.0)
        assert why_waiting(cluster.scheduler, "j", 30.0).cause == Cause.DUE

    def test_queue_limit_may_be_used_fully_and_its_text_states_current_usage(self):
        limit = Resources(gpus=3, cores=9)
        cluster = Cluster({"a": 8}, NO_PREEMPTION, (Queue("q", limit=limit), Queue("full"), Queue("r")))
        cluster.submit("one", gang(2), queue="q")
        cluster.submit("two", gang(2), queue="q")
        cluster.submit("large", gang(9), queue="full")
        found = why_waiting(cluster.scheduler, "two", 0.0)
        assert (found.cause, found.other_queues) == (Cause.QUEUE_LIMIT, ("r",))  # another job already waits in `full`
        assert found.limit == "needs 2 GPUs, 2 cores; queue q has 2 GPUs, 2 cores of its limit, 3 GPUs, 9 cores"
        assert cluster.submit("three", gang(1), queue="q") == ["+three"]

    def test_queue_without_free_slots_or_at_its_limit_is_not_suggested(self):
        limit = Resources(gpus=1, cores=1)
        queues = (Queue("q", limit=limit), Queue("small", limit=limit), Queue("large"))
        cluster = Cluster({"a": 2}, NO_PREEMPTION, queues)
        cluster.submit("one", gang(1), queue="q")
        cluster.submit("more", gang(1), queue="small")
        cluster.submit("waits", gang(1), queue="q")
        assert why_waiting(cluster.scheduler, "waits", 0.0).other_queues == ()
        cluster.ended("more")
        assert why_waiting(cluster.scheduler, "waits", 0.0).other_queues == ("small", "large")


class TestRemedies:
    def test_reason_states_the_count_with_which_a_job_would_start(self):
        cluster = Cluster({"a": 4}, NO_PREEMPTION)
        cluster.submit("one", gang(1))
        cluster.submit("wants", gang(4))
        assert why_waiting(cluster.scheduler, "wants", 0.0).would_start_with == 3
        cluster.submit("behind", gang(4))
        assert why_waiting(cluster.scheduler, "behind", 0.0).would_start_with == 3
        cluster.submit("more", gang(3))
        assert why_waiting(cluster.scheduler, "wants", 0.0).would_start_with == 0

    def test_suggested_count_leaves_slots_for_the_other_parts(self):
        cluster = Cluster({"a": 4}, NO_PREEMPTION)
        workers = SlotGroup("w", 5, Resources(gpus=1, cores=1))
        driver = SlotGroup("driver", 1, Resources(cores=1))
        cluster.scheduler.submit(GangRequest("j", GangShape((driver, workers))), 0.0)
        assert why_waiting(cluster.scheduler, "j", 0.0).would_start_with == 3
        cluster.scheduler.submit(GangRequest("k", GangShape((workers, workers))), 0.0)
        assert why_waiting(cluster.scheduler, "k", 0.0).would_start_with == 0  # two parts that are alike: of which one?

    def test_gang_of_one_slot_gets_no_smaller_suggestion(self):
        cluster = Cluster({"a": 4}, NO_PREEMPTION)
        cluster.submit("j", gang(1, gpus=5))
        assert why_waiting(cluster.scheduler, "j", 0.0).would_start_with == 0
        cluster.submit("k", gang(2, gpus=3))
        assert why_waiting(cluster.scheduler, "k", 0.0).would_start_with == 1

    def test_with_count_replaces_the_size_of_one_part(self):
        first, second = SlotGroup("x", 4, Resources(gpus=1), 2), SlotGroup("y", 4, Resources(gpus=1), 2)
        assert with_count(GangShape((first, second)), second, 3) == GangShape(
            (first, SlotGroup("y", 3, Resources(gpus=1)))
        )

    @pytest.mark.parametrize(("others", "is_tried"), [(TRIED - 2, True), (TRIED - 1, False)])
    def test_remedies_are_not_tried_with_very_many_jobs(self, others: int, is_tried: bool):
        cluster = Cluster({"a": 2}, NO_PREEMPTION, (Queue("q", limit=NOTHING), Queue("r")))
        scheduler = cluster.scheduler
        scheduler.queue(Queue("q", limit=Resources(gpus=1, cores=1)))
        scheduler.submit(GangRequest("runs", gang(1), queue="q"), 0.0)
        scheduler.submit(GangRequest("waits", gang(1), queue="q"), 0.0)
        for number in range(others):
            job = replace(scheduler.jobs["waits"], request=GangRequest(f"j{number}", gang(1), queue="q"))
            scheduler.jobs[f"j{number}"] = job
            scheduler.waiting["q"].add_job(job)
        assert would_start_in_queue(scheduler, "waits", "r", 0.0) is is_tried
        assert would_start(scheduler, "waits", GangRequest("waits", gang(1), queue="r"), 0.0) is is_tried

    def test_trial_requires_that_the_job_itself_starts(self):
        cluster = Cluster({"a": 2}, NO_PREEMPTION)
        cluster.submit("one", gang(1))
        cluster.submit("wants", gang(2))
        assert would_start(cluster.scheduler, "wants", GangRequest("wants", gang(1)), 0.0)
        assert not would_start(cluster.scheduler, "wants", GangRequest("wants", gang(2)), 0.0)
        cluster.submit("first", gang(2), priority=99)
        assert set(cluster.scheduler.jobs) == {"one", "wants", "first"}

    def test_trial_in_which_only_another_job_starts_does_not_count(self):
        cluster = Cluster({"a": 3}, FIRST_COME)
        cluster.submit("one", gang(2))
        cluster.submit("wants", gang(3))
        cluster.submit("behind", gang(1))
        assert why_waiting(cluster.scheduler, "behind", 0.0).cause == Cause.ROOM_KEPT
        assert not would_start(cluster.scheduler, "wants", GangRequest("wants", gang(2)), 0.0)


class TestRefusalTexts:
    """Texts of refusals."""

    NODES = (("a", Resources(gpus=4, cores=8, memory_mib=8192)), ("b", Resources(gpus=2, cores=8, memory_mib=8192)))

    def nodes(self) -> Nodes:
        nodes = Nodes()
        for name, capacity in self.NODES:
            nodes.set_node(name, capacity)
        return nodes

    def refused(self, *parts: SlotGroup, queue: Queue | None = None, addable: tuple[NodeKind, ...] = ()) -> str:
        return why_impossible(GangRequest("j", GangShape(parts)), self.nodes(), queue or Queue("q"), addable)

    @pytest.mark.parametrize(
        ("part", "words"),
        [
            (SlotGroup("w", 6, Resources(gpus=1)), ""),
            (SlotGroup("w", 9, Resources(gpus=1), 6), ""),
            (
                SlotGroup("w", 9, Resources(gpus=1), 7),
                "task 'w' needs 7 x 1 GPU; the nodes have room for 6 such slots at most; request 6",
            ),
            (
                SlotGroup("w", 4, Resources(gpus=2)),
                "task 'w' needs 4 x 2 GPUs; the nodes have room for 3 such slots at most; request 3",
            ),
            (
                SlotGroup("w", 2, Resources(gpus=3)),
                "task 'w' needs 2 x 3 GPUs; the nodes have room for 1 such slots at most; request 1",
            ),
            (
                SlotGroup("w", 2, Resources(gpus=5), 1),
                "task 'w' needs 1 x 5 GPUs; the largest of the nodes has 4 GPUs, 8 cores, 8 GiB, and a slot is on one node;"
                " request smaller slots",
            ),
            (
                SlotGroup("w", 1, Resources(gpus=1), label="v100"),
                "task 'w' needs 1 x 1 GPU; there are no nodes with label 'v100'",
            ),
        ],
    )
    def test_refusal_text_for_one_part(self, part, words):
        assert self.refused(part) == words

    def test_refusal_states_that_no_node_has_a_gpu(self):
        nodes = Nodes()
        nodes.set_node("a", Resources(cores=8, memory_mib=8192))
        request = GangRequest("j", GangShape((SlotGroup("w", 1, Resources(gpus=1, cores=1)),)))
        assert why_impossible(request, nodes, Queue("q")) == (
            "task 'w' needs 1 x 1 GPU, 1 core; none of the nodes has a GPU; request none, or use a cluster with GPUs"
        )

    def test_refusal_names_the_driver_that_does_not_fit(self):
        driver = SlotGroup("driver of train", 1, Resources(cores=99), is_driver=True)
        assert self.refused(driver).startswith("the driver of train needs 1 x 99 cores; ")

    def test_refusal_names_the_part_that_does_not_fit(self):
        parts = SlotGroup("driver", 1, Resources(cores=1)), SlotGroup("w", 7, Resources(gpus=1))
        assert self.refused(*parts).startswith("task 'w' needs 7 x 1 GPU; ")
        assert self.refused(*reversed(parts)).startswith("task 'w' needs 7 x 1 GPU; ")

    def test_refusal_states_the_total_of_parts_that_do_not_fit_together(self):
        parts = SlotGroup("x", 2, Resources(gpus=2)), SlotGroup("y", 3, Resources(gpus=1))
        assert self.refused(*parts) == (
            "its tasks do not fit together: they need 7 GPUs; there are 6 GPUs, 16 cores, 16 GiB, on nodes that each of"
            " them would fit; request less"
        )

    def test_gang_exactly_at_a_queue_limit_is_not_refused(self):
        worker = SlotGroup("w", 3, Resources(gpus=1), 2)
        assert self.refused(worker, queue=Queue("q", limit=Resources(gpus=2))) == ""
        assert self.refused(worker, queue=Queue("q", limit=Resources(gpus=1, cores=UNLIMITED))) == (
            "needs 2 GPUs, queue 'q' has at most 1 GPU; request less, or another queue"
        )
        driver = SlotGroup("driver", 1, Resources(memory_mib=1024), is_driver=True)
        assert self.refused(driver, queue=Queue("q", driver_limit_mib=1024)) == ""
        assert self.refused(driver, queue=Queue("q", driver_limit_mib=1023)) == (
            "its driver needs 1024 MiB, drivers in queue 'q' have at most 1023 MiB together; request a smaller driver, or"
            " another queue"
        )

    def test_addable_nodes_are_counted_by_kind_and_label(self):
        kinds = (
            NodeKind(Resources(gpus=4), 1, "v100"),
            NodeKind(Resources(gpus=4), 2),
            NodeKind(Resources(gpus=8), 1),
            NodeKind(Resources(gpus=8), 0),
        )
        assert self.refused(SlotGroup("w", 22, Resources(gpus=1)), addable=kinds) == ""
        assert self.refused(SlotGroup("w", 23, Resources(gpus=1)), addable=kinds) == (
            "task 'w' needs 23 x 1 GPU; the nodes without a label have room for 22 such slots at most; request 22"
        )
        assert self.refused(SlotGroup("w", 5, Resources(gpus=1), label="v100"), addable=kinds) == (
            "task 'w' needs 5 x 1 GPU; the nodes with label 'v100' have room for 4 such slots at most; request 4"
        )
        assert self.refused(SlotGroup("w", 1, Resources(gpus=9)), addable=kinds) == (
            "task 'w' needs 1 x 9 GPUs; the largest of the nodes without a label has 8 GPUs, and a slot is on one node;"
            " request smaller slots"
        )

    @pytest.mark.parametrize(
        ("what", "words"),
        [
            (Resources(1, 2, 1023), "1 GPU, 2 cores, 1023 MiB"),
            (Resources(0, 1, 1024), "1 core, 1 GiB"),
            (Resources(0, 0, 1025), "1.0 GiB"),
            (Resources(0, 0, 2560), "2.5 GiB"),
            (Resources(UNLIMITED, UNLIMITED - 1, UNLIMITED), f"{UNLIMITED - 1} cores"),
            (Resources(UNLIMITED, UNLIMITED, UNLIMITED), "nothing"),
        ],
    )
    def test_amount_text_omits_unlimited_and_zero_resources(self, what, words):
        assert resources_text(what) == words
