"""Tests of the jobs that run, wait and are preempted, by scenarios."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsml.errors import ArgumentError
from hopsml.service.scheduler import reasons, scheduler, taking
from hopsml.service.scheduler.job import JobPhase, QueuedJob, WaitingLines
from hopsml.service.scheduler.resources import GangRequest, GangShape, Policy, Queue, Resources, SlotGroup
from hopsml.service.scheduler.scheduler import PreemptJob, ResizeJob, Scheduler, StartJob
from tests.unit.service.scheduler.clusters import BY_PRIORITY, FIRST_COME, NO_PREEMPTION, Cluster, gang

pytestmark = pytest.mark.fast
HOUR = 3600.0


class TestOrder:
    def test_jobs_start_by_priority_and_smaller_ones_fill_the_remaining_slots(self):
        cluster = Cluster({"a": 4, "b": 4}, NO_PREEMPTION)
        cluster.scheduler.nodes.close("a"), cluster.scheduler.nodes.close("b")
        for job, count, priority in (("low4", 4, 40), ("low1", 1, 40), ("urgent1", 1, 60), ("urgent4", 4, 60)):
            assert cluster.submit(job, gang(count), priority=priority) == []
        for node in "ab":
            cluster.scheduler.nodes.set_node(node, Resources(gpus=4, cores=4))
        assert cluster.advance(1) == ["+urgent1", "+urgent4", "+low1"]
        assert cluster.ended("urgent4") == ["+low4"]

    def test_gang_starts_completely_or_not_at_all(self):
        cluster = Cluster({"a": 4, "b": 4})
        assert cluster.submit("six", gang(6)) == ["+six"]
        assert cluster.submit("three", gang(3)) == []
        assert cluster.submit("two", gang(2)) == ["+two"]
        assert cluster.ended("two") == []
        assert cluster.ended("six") == ["+three"]

    def test_small_gangs_share_nodes_and_leave_whole_nodes_to_large_ones(self):
        cluster = Cluster({"a": 8, "b": 8}, NO_PREEMPTION)
        cluster.submit("one", gang(1))
        cluster.submit("two", gang(2))
        assert cluster.submit("whole", gang(1, gpus=8)) == ["+whole"]

    def test_part_is_placed_only_on_nodes_of_its_label(self):
        cluster = Cluster({"plain": 4})
        cluster.capacity["v100"] = 2
        cluster.scheduler.nodes.set_node("v100", Resources(gpus=2, cores=2), "v100")
        assert cluster.submit("labelled", gang(2, label="v100")) == ["+labelled"]
        assert cluster.submit("second", gang(1, label="v100")) == []
        assert cluster.submit("plain", gang(4)) == ["+plain"]
        assert cluster.runs["labelled"] == {"v100": 2}

    def test_first_come_policy_lets_no_job_pass(self):
        cluster = Cluster({"a": 4}, FIRST_COME)
        cluster.submit("three", gang(3))
        assert cluster.submit("two", gang(2)) == []
        assert cluster.submit("one", gang(1)) == []
        assert cluster.ended("three") == ["+two", "+one"]

    def test_driver_is_placed_as_a_part_of_its_gang(self):
        scheduler = Scheduler(BY_PRIORITY)
        scheduler.nodes.set_node("a", Resources(gpus=1, cores=2, memory_mib=4096))
        driver = SlotGroup("driver", 1, Resources(cores=1, memory_mib=1024), is_driver=True)
        worker = SlotGroup("workers", 1, Resources(gpus=1, cores=1, memory_mib=2048))
        assert scheduler.submit(GangRequest("first", GangShape((driver, worker))), 0.0) == [
            StartJob("first", ({"a": 1}, {"a": 1}))
        ]
        scheduler.nodes.set_node("b", Resources(gpus=1, cores=1, memory_mib=4096))
        assert (
            scheduler.submit(GangRequest("second", GangShape((driver, worker))), 0.0) == []
        )  # a worker would fit, but no driver
        scheduler.nodes.set_node("c", Resources(cores=1, memory_mib=1024))
        assert scheduler.tick(1.0) == [StartJob("second", ({"c": 1}, {"b": 1}))]


class TestPreemption:
    def test_least_urgent_job_is_preempted_and_no_more_slots_than_needed(self):
        cluster = Cluster({"a": 4, "b": 4})
        cluster.submit("p60", gang(4), priority=60)
        cluster.submit("p55", gang(4), priority=55)
        assert cluster.submit("new60", gang(4), priority=60) == ["-p55"]
        assert cluster.submit("p50", gang(1), priority=50) == []  # the released slots are promised
        assert cluster.release("p55") == ["+new60"]

    def test_jobs_found_unnecessary_to_preempt_continue(self):
        cluster = Cluster({"a": 4, "b": 4})
        cluster.submit("a1", gang(1), priority=40)
        cluster.submit("a3", gang(3), priority=40)
        cluster.submit("b4", gang(4), priority=30)
        assert cluster.submit("urgent", gang(1, gpus=4), priority=60) == ["-b4"]

    def test_no_job_is_preempted_if_the_slots_would_not_suffice(self):
        cluster = Cluster({"a": 4, "b": 4})
        cluster.submit("high", gang(4), priority=60)
        cluster.submit("low", gang(4), priority=40)
        assert cluster.submit("eight", gang(8), priority=50) == []

    def test_jobs_of_equal_priority_do_not_preempt_each_other(self):
        cluster = Cluster({"a": 4})
        cluster.submit("first", gang(4))
        assert cluster.submit("second", gang(4)) == []

    def test_job_that_is_not_preemptible_continues(self):
        cluster = Cluster({"a": 2})
        cluster.submit("fixed", gang(1), priority=1, preemptible=False)
        cluster.submit("other", gang(1), priority=1)
        assert cluster.submit("urgent", gang(1), priority=99) == ["-other"]
        assert cluster.submit("more", gang(1), priority=99) == []

    def test_job_starts_after_all_preempted_jobs_ended_and_retains_its_promised_slots(self):
        cluster = Cluster({"a": 2})
        cluster.submit("x", gang(1), priority=1)
        cluster.submit("y", gang(1), priority=1)
        assert sorted(cluster.submit("urgent", gang(2), priority=50)) == ["-x", "-y"]
        assert cluster.release("x") == []
        assert cluster.submit("small", gang(1), priority=40) == []
        assert cluster.ended("y") == ["+urgent"]  # it has finished by itself

    def test_slots_of_a_cancelled_placed_job_pass_to_the_next_waiting_job(self):
        cluster = Cluster({"a": 2})
        cluster.submit("low", gang(2), priority=1)
        assert cluster.submit("urgent", gang(2), priority=50) == ["-low"]
        assert cluster.submit("next", gang(2), priority=40) == []
        assert cluster.cancel("urgent") == []
        assert cluster.release("low") == ["+next"]

    def test_job_with_less_service_preempts_one_with_an_hour_of_gpus(self):
        cluster = Cluster({"a": 2}, Policy(least_run_s=0.0))
        cluster.submit("old", gang(2))
        cluster.advance(HOUR / 2 - 1)
        assert cluster.submit("new", gang(1)) == []
        assert cluster.scheduler.due_s(cluster.now) == HOUR / 2
        assert cluster.advance(1) == ["-old"]
        assert cluster.release("old") == ["+new"]
        assert cluster.ended("new") == ["+old"]
        assert cluster.scheduler.jobs["old"].preemptions == 1

    def test_job_is_not_preempted_before_its_protection_ends(self):
        cluster = Cluster({"a": 1}, replace(BY_PRIORITY, least_run_s=300.0))
        cluster.submit("low", gang(1), priority=1)
        assert cluster.submit("urgent", gang(1), priority=99) == []
        assert cluster.scheduler.due_s(cluster.now) == 300.0
        assert cluster.advance(300.0) == ["-low"]

    def test_overdue_job_starts_first_and_is_not_preempted_again(self):
        cluster = Cluster({"a": 1}, Policy(longest_wait_s=1000.0, least_run_s=0.0))
        cluster.submit("first", gang(1), priority=90)
        cluster.submit("patient", gang(1), priority=10)
        cluster.advance(500)
        cluster.submit("urgent", gang(1), priority=80)
        assert cluster.advance(499) == []
        assert cluster.advance(1) == ["-first"]
        assert cluster.release("first") == ["+patient"]
        assert cluster.submit("more urgent", gang(1), priority=100) == []
        cluster.advance(10 * HOUR)
        assert cluster.leaving == []


class TestHolds:
    """A waiting gang may be passed for a while; then only by jobs that do not delay it."""

    POLICY = replace(NO_PREEMPTION, hold_after_s=600.0)

    def prepared(self) -> Cluster:
        cluster = Cluster({"a": 4, "b": 4}, self.POLICY)
        cluster.submit("running", gang(6), expected_s=2 * HOUR)
        cluster.submit("large", gang(8), expected_s=HOUR)
        return cluster

    def test_small_job_passes_a_waiting_gang_before_the_hold(self):
        assert self.prepared().submit("small", gang(2)) == ["+small"]

    def test_during_a_hold_only_jobs_that_end_in_time_pass(self):
        cluster = self.prepared()
        cluster.advance(600)
        assert cluster.submit("long", gang(2), expected_s=2 * HOUR) == []
        assert cluster.submit("unknown", gang(1)) == []
        assert cluster.submit("short", gang(2), expected_s=HOUR) == ["+short"]

    def test_job_ending_exactly_when_the_hold_starts_passes(self):
        for expected_s, actions in ((HOUR, ["+just"]), (HOUR + 1.0, [])):
            cluster = Cluster({"a": 4}, replace(self.POLICY, hold_after_s=0.0))
            cluster.submit("running", gang(3), expected_s=HOUR)
            cluster.submit("large", gang(4))
            assert cluster.submit("just", gang(1), expected_s=expected_s) == actions

    def test_hold_expects_slots_at_a_job_end_even_if_protection_lasts_longer(self):
        cluster = Cluster({"a": 4}, replace(BY_PRIORITY, hold_after_s=0.0, least_run_s=300.0))
        cluster.submit("low", gang(3), priority=40, expected_s=100.0)
        cluster.submit("large", gang(4), priority=60)
        assert cluster.submit("longer", gang(1), priority=60, expected_s=200.0) == []
        assert cluster.submit("shorter", gang(1), priority=60, expected_s=100.0) == ["+shorter"]

    def test_job_passes_a_hold_on_spare_slots(self):
        cluster = Cluster({"a": 4, "b": 4, "c": 4}, self.POLICY)
        cluster.submit("running", gang(1, gpus=4), expected_s=HOUR)
        cluster.submit("other", gang(1, gpus=4), expected_s=2 * HOUR)
        cluster.submit("little", gang(1, gpus=3), expected_s=9 * HOUR)
        cluster.submit("large", gang(1, gpus=4))
        cluster.advance(600)
        assert cluster.submit("beside", gang(1)) == ["+beside"]  # the node of "little" is not the one it waits for

    def test_job_that_the_held_one_may_preempt_passes(self):
        cluster = Cluster({"a": 4}, replace(BY_PRIORITY, hold_after_s=600.0))
        cluster.submit("running", gang(3), priority=60)
        cluster.submit("large", gang(4), priority=50)
        cluster.advance(600)
        assert cluster.submit("low", gang(1), priority=40) == ["+low"]
        assert cluster.submit("fixed", gang(1), priority=40, preemptible=False) == []
        assert cluster.ended("running") == ["-low"]
        assert cluster.release("low") == ["+large"]


class TestQueues:
    def test_queue_shares_follow_their_weights(self):
        cluster = Cluster({"a": 8}, NO_PREEMPTION, (Queue("ten", 10.0), Queue("thirty", 30.0)))
        cluster.submit("all", gang(8), queue="ten")
        for number in range(7):
            cluster.submit(f"t{number}", gang(1), queue="thirty")
            if number < 3:
                cluster.submit(f"s{number}", gang(1), queue="ten")
        started = cluster.ended("all")
        assert sum(job.startswith("+s") for job in started) == 2
        assert sum(job.startswith("+t") for job in started) == 6

    def test_jobs_that_each_need_all_slots_do_not_deadlock(self):
        cluster = Cluster({"a": 2}, NO_PREEMPTION, (Queue("one"), Queue("two")))
        assert cluster.submit("x", gang(2), queue="one") == ["+x"]
        assert cluster.submit("y", gang(2), queue="two") == []
        assert cluster.ended("x") == ["+y"]

    def test_guaranteed_slots_are_reclaimed_from_a_borrowing_queue(self):
        mine = Queue("mine", guaranteed=Resources(gpus=2, cores=2))
        cluster = Cluster({"a": 4}, BY_PRIORITY, (mine, Queue("theirs", guaranteed=Resources(gpus=2, cores=2))))
        for number in range(4):
            cluster.submit(f"b{number}", gang(1), queue="theirs")
        assert sorted(cluster.submit("m", gang(2), queue="mine")) == ["-b2", "-b3"]
        assert cluster.submit("more", gang(1), queue="mine") == []  # beyond its own
        assert cluster.release("b3") + cluster.release("b2") == ["+m"]

    def test_queue_limit_holds_on_an_empty_cluster(self):
        cluster = Cluster({"a": 8}, BY_PRIORITY, (Queue("q", limit=Resources(gpus=3, cores=3)),))
        cluster.submit("two", gang(2), queue="q")
        assert cluster.submit("again", gang(2), queue="q") == []
        assert cluster.submit("one", gang(1), queue="q") == ["+one"]

    def test_drivers_have_a_separate_memory_limit(self):
        scheduler = Scheduler(BY_PRIORITY, (Queue(driver_limit_mib=2048),))
        scheduler.nodes.set_node("a", Resources(gpus=9, cores=9, memory_mib=9999))
        drivers = GangShape((SlotGroup("driver", 1, Resources(cores=1, memory_mib=1024), is_driver=True),))
        started = [bool(scheduler.submit(GangRequest(f"j{number}", drivers), 0.0)) for number in range(3)]
        assert started == [True, True, False]

    def test_driver_memory_limit_may_be_used_to_the_last_mebibyte(self):
        scheduler = Scheduler(BY_PRIORITY, (Queue(driver_limit_mib=2048),))
        scheduler.nodes.set_node("a", Resources(gpus=9, cores=9, memory_mib=9999))
        for name, mib, starts in (("one", 1025, True), ("two", 1024, False), ("three", 1023, True), ("four", 1, False)):
            drivers = GangShape((SlotGroup("driver", 1, Resources(cores=1, memory_mib=mib), is_driver=True),))
            assert bool(scheduler.submit(GangRequest(name, drivers), 0.0)) is starts
        last = GangRequest("last", GangShape((SlotGroup("d", 1, Resources(cores=1, memory_mib=2048), is_driver=True),)))
        assert reasons.why_impossible(last, scheduler.nodes, Queue(driver_limit_mib=2048)) == ""
        assert "at most 2047 MiB" in reasons.why_impossible(last, scheduler.nodes, Queue(driver_limit_mib=2047))
        actions = scheduler.ended("one", 1.0)  # leaves room for the two that wait, and not for a byte more
        assert [action.job_id for action in actions if isinstance(action, StartJob)] == ["two", "four"]


class TestElastic:
    def test_elastic_job_starts_with_free_slots_and_grows_if_no_job_waits(self):
        cluster = Cluster({"a": 4}, Policy())
        cluster.submit("other", gang(2))
        assert cluster.submit("elastic", gang(4, least=1)) == ["+elastic"]
        assert sum(cluster.runs["elastic"].values()) == 2
        assert cluster.ended("other") == ["elastic=4"]

    def test_elastic_job_shrinks_before_another_job_is_preempted(self):
        cluster = Cluster({"a": 4})
        cluster.submit("elastic", gang(3, least=1), priority=50)
        cluster.submit("whole", gang(1), priority=40)
        assert cluster.submit("new", gang(2), priority=50) == ["elastic=1", "+new"]
        assert cluster.submit("urgent", gang(1), priority=60) == ["-whole"]

    def test_elastic_job_does_not_shrink_for_a_job_of_lower_rank(self):
        cluster = Cluster({"a": 4})
        cluster.submit("elastic", gang(4, least=1), priority=50)
        assert cluster.submit("later", gang(1), priority=40) == []

    def test_slot_lost_by_an_elastic_job_is_free_for_others(self):
        cluster = Cluster({"a": 2, "b": 2})
        cluster.submit("elastic", gang(4, least=1), priority=60)
        cluster.submit("waits", gang(1), priority=40)
        cluster.runs["elastic"]["b"] = 1
        assert cluster.carry_out(cluster.scheduler.resized("elastic", ({"a": 2, "b": 1},), cluster.now)) == ["+waits"]


class TestFailures:
    def test_unfilled_gang_is_retried_after_doubling_pauses(self):
        cluster = Cluster({"a": 2})
        cluster.submit("first", gang(2))
        pauses = []
        for _ in range(3):
            cluster.runs.clear()
            assert cluster.carry_out(cluster.scheduler.requeue_unfilled("first", cluster.now)) == []
            due = cluster.scheduler.due_s(cluster.now)
            pauses.append(due - cluster.now)
            assert cluster.advance(pauses[-1]) == ["+first"]
        assert pauses == [30.0, 60.0, 120.0]

    def test_no_gang_is_placed_on_a_closed_or_removed_node(self):
        cluster = Cluster({"a": 2, "b": 2})
        cluster.scheduler.nodes.close("a")
        cluster.scheduler.nodes.remove_capacity("b")
        assert cluster.submit("one", gang(1)) == []
        cluster.scheduler.nodes.set_node("a", Resources(gpus=2, cores=2))
        assert cluster.advance(1) == ["+one"]

    def test_placed_job_waits_again_if_its_node_is_closed(self):
        cluster = Cluster({"a": 2})
        cluster.submit("low", gang(2), priority=1)
        assert cluster.submit("urgent", gang(2), priority=50) == ["-low"]
        cluster.scheduler.nodes.close("a")
        assert cluster.release("low") == []
        assert {job.phase for job in cluster.scheduler.jobs.values()} == {JobPhase.WAITING}
        cluster.capacity["b"] = 2
        cluster.scheduler.nodes.set_node("b", Resources(gpus=2, cores=2))
        assert cluster.advance(1) == ["+urgent"]

    def test_node_is_in_use_while_any_job_or_tenant_uses_it(self):
        cluster = Cluster({"a": 2, "b": 2})
        nodes = cluster.scheduler.nodes
        cluster.submit("low", gang(2), priority=1)
        assert nodes.in_use("a") and not nodes.in_use("b") and not nodes.in_use("c")
        nodes.close("b")
        cluster.submit("urgent", gang(2), priority=50)
        cluster.release("low")
        assert nodes.in_use("a")  # now by urgent
        assert cluster.ended("urgent") == ["+low"] and nodes.in_use("a")
        cluster.ended("low")
        assert not nodes.in_use("a")
        nodes.others("a", Resources(cores=1))
        assert nodes.in_use("a")

    def test_slots_used_by_other_tenants_are_not_assigned(self):
        cluster = Cluster({"a": 4})
        cluster.scheduler.nodes.others("a", Resources(gpus=3, cores=3))
        assert cluster.submit("two", gang(2)) == []
        cluster.scheduler.nodes.others("a", Resources(gpus=2, cores=2))
        assert cluster.advance(1) == ["+two"]

    def test_cancelled_running_job_is_removed_when_it_has_ended(self):
        cluster = Cluster({"a": 1})
        cluster.submit("one", gang(1))
        cluster.submit("next", gang(1))
        assert cluster.cancel("one") == []
        assert cluster.ended("one") == ["+next"]
        assert set(cluster.scheduler.jobs) == {"next"}

    def test_cancelled_preempted_job_does_not_wait_again(self):
        cluster = Cluster({"a": 1})
        cluster.submit("low", gang(1), priority=1)
        assert cluster.submit("urgent", gang(1), priority=50) == ["-low"]
        assert cluster.cancel("low") == []
        assert cluster.release("low") == ["+urgent"]
        assert set(cluster.scheduler.jobs) == {"urgent"}

    def test_earlier_waiting_time_counts_towards_overdue(self):
        cluster = Cluster({"a": 1}, Policy(levels_s=(), longest_wait_s=400.0))
        cluster.submit("runs", gang(1))
        job = QueuedJob(GangRequest("waits", gang(1)), 7, 0.0, waited_s=100.0)
        cluster.scheduler.adopt(job, 50.0)
        assert cluster.scheduler.due_s(300.0) == 350.0
        cluster.scheduler.tick(349.0)
        assert not job.is_overdue
        cluster.scheduler.tick(350.0)
        assert job.is_overdue

    @pytest.mark.parametrize(
        ("make", "expected"),
        [
            (lambda: SlotGroup("w", 0, Resources(gpus=1)), "count=0; a gang has at least one"),
            (lambda: SlotGroup("w", 2, Resources(gpus=1), least=3), "least=3 is not between 1 and its count, 2"),
            (lambda: SlotGroup("w", 1, Resources()), "a slot needs something"),
            (lambda: GangShape(()), "a gang without parts"),
            (
                lambda: GangRequest("j", gang(1), priority=0),
                "priority=0 is not between 1 and 100; a higher one is more urgent",
            ),
            (lambda: GangRequest("j", gang(1), expected_s=0.0), "expected_s=0.0 is not above 0"),
            (lambda: Queue("q", weight=0.0), "queue 'q': weight=0.0; a weight is above 0"),
            (lambda: Queue("q", guaranteed=Resources(gpus=2), limit=Resources(gpus=1)), "is more than its limit"),
            (lambda: Policy(levels_s=(2.0, 1.0)), "each is above the one before"),
            (lambda: Policy(hold_after_s=-1.0), "hold_after_s=-1.0 is below 0"),
        ],
    )
    def test_invalid_gang_request_queue_or_policy_is_refused(self, make, expected):
        with pytest.raises(ArgumentError, match=expected.replace("(", r"\(").replace(")", r"\)")):
            make()


class TestAdopt:
    """Jobs of an earlier process of the service."""

    @staticmethod
    def runs(used: dict[str, int], least: int = 0, **more: object) -> QueuedJob:
        what = gang(sum(used.values()), least)
        return QueuedJob(GangRequest("runs", what), 5, 0.0, used=(used,), started_s=10.0, **more)  # type: ignore[arg-type]

    def test_adopted_running_job_continues_with_its_level_and_protection(self):
        scheduler = Cluster({"a": 4}, Policy(levels_s=(100.0,), least_run_s=50.0)).scheduler
        job = self.runs({"a": 2})
        scheduler.adopt(job, 20.0)
        assert (job.phase, job.placement, list(scheduler.started)) == (JobPhase.RUNNING, ({"a": 2},), ["runs"])
        assert scheduler.promised == {"default": Resources(gpus=2, cores=2)} and scheduler.nodes.free().gpus == 2
        assert not scheduler.nodes.is_idle(gang(3), ({"a": 3},)) and len(scheduler.running["default"]) == 1
        assert scheduler.due_s(20.0) == float("inf")  # no job waits
        assert scheduler.submit(GangRequest("large", gang(4)), 20.0) == []
        assert scheduler.jobs["large"].sequence == 6
        assert scheduler.due_s(20.0) == 50.0 and scheduler.tick(50.0) == [] and job.level == 1
        assert scheduler.due_s(50.0) == 60.0
        assert scheduler.tick(60.0) == [PreemptJob("runs", "large")]
        assert scheduler.released("runs", 61.0) == [StartJob("large", ({"a": 4},))]

    def test_driver_memory_of_an_adopted_job_counts_in_the_limit(self):
        scheduler = Scheduler(BY_PRIORITY, (Queue(driver_limit_mib=10),))
        scheduler.nodes.set_node("a", Resources(cores=4, memory_mib=99))
        driver = GangShape((SlotGroup("driver", 1, Resources(cores=1, memory_mib=6), is_driver=True),))
        scheduler.adopt(QueuedJob(GangRequest("runs", driver), 1, 0.0, used=({"a": 1},)), 0.0)
        assert scheduler.submit(GangRequest("waits", driver), 0.0) == []
        assert scheduler.ended("runs", 1.0) == [StartJob("waits", ({"a": 1},))]

    def test_unknown_node_of_an_adopted_job_is_closed_and_empty(self):
        scheduler = Cluster({"a": 4}).scheduler
        scheduler.adopt(self.runs({"a": 1, "gone": 1}), 20.0)
        account = scheduler.nodes.of("gone")
        assert account.capacity == account.free == Resources() and not account.is_open
        assert scheduler.nodes.is_open("a") and scheduler.nodes.in_use("gone")
        scheduler.ended("runs", 30.0)
        assert not scheduler.nodes.in_use("gone") and not scheduler.nodes.in_use("a")

    def test_adopted_shrinking_job_still_occupies_its_unreleased_slots(self):
        scheduler = Cluster({"a": 4}).scheduler
        job = self.runs({"a": 4}, least=1, placement=({"a": 1},))
        scheduler.adopt(job, 20.0)
        assert job.placement == ({"a": 1},) and scheduler.nodes.free().gpus == 3
        assert scheduler.submit(GangRequest("new", gang(3)), 20.0) == []
        assert scheduler.tick(21.0) == [] and scheduler.jobs["new"].phase == JobPhase.PLACED
        assert scheduler.resized("runs", ({"a": 1},), 22.0) == [StartJob("new", ({"a": 3},))]

    def test_adopted_waiting_job_keeps_its_position(self):
        cluster = Cluster({"a": 1}, NO_PREEMPTION)
        cluster.submit("runs", gang(1))
        cluster.submit("later", gang(1))
        for name, sequence in (("first", 0), ("last", 9)):
            cluster.gangs[name] = gang(1)
            cluster.scheduler.adopt(QueuedJob(GangRequest(name, gang(1)), sequence, 0.0), 5.0)
        cluster.submit("new", gang(1))
        order = []
        for _ in range(4):
            (started,) = cluster.ended(next(iter(cluster.runs)))
            order.append(started)
        assert order == ["+first", "+later", "+last", "+new"]


def test_placed_job_waits_again_if_other_tenants_took_its_slots():
    cluster = Cluster({"a": 4})
    scheduler = cluster.scheduler
    scheduler.submit(GangRequest("elastic", gang(4, least=1), preemptible=False), 0.0)
    taken = scheduler.submit(GangRequest("urgent", gang(3), priority=60), 1.0)
    assert taken == [ResizeJob("elastic", ({"a": 1},), "urgent")]
    scheduler.nodes.others("a", Resources(gpus=1))
    assert scheduler.tick(2.0) == [] and scheduler.jobs["urgent"].phase == JobPhase.PLACED
    scheduler.resized("elastic", ({"a": 1},), 3.0)
    assert scheduler.jobs["urgent"].phase == JobPhase.WAITING


@pytest.mark.parametrize(("looked_at", "expected"), [(2, []), (3, ["+short"])])
def test_number_of_jobs_considered_for_passing_a_hold_is_bounded(
    looked_at: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LOOKED_AT", looked_at)
    cluster = Cluster({"a": 4}, FIRST_COME)
    cluster.submit("runs", gang(3), expected_s=100.0)
    cluster.submit("large", gang(4))
    assert cluster.submit("long", gang(1)) + cluster.submit("also long", gang(1)) == []
    assert cluster.submit("short", gang(1), expected_s=10.0) == expected


def test_job_at_its_queue_limit_does_not_prevent_growth_of_others():
    cluster = Cluster({"a": 4, "b": 4}, BY_PRIORITY, (Queue("full", limit=Resources(gpus=2, cores=2)), Queue("free")))
    assert cluster.submit("other", gang(5), queue="free") == ["+other"]
    assert cluster.submit("limited", gang(4, least=2), queue="full", priority=60) == ["+limited"]
    assert cluster.submit("grows", gang(4, least=1), queue="free") == ["+grows"]
    assert cluster.ended("other") == ["grows=4"] and cluster.runs["limited"].total() == 2


def test_each_part_of_an_elastic_job_grows_independently():
    scheduler = Scheduler(BY_PRIORITY)
    scheduler.nodes.set_node("a", Resources(gpus=2, cores=8))
    parts = (SlotGroup("driver", 1, Resources(cores=1)), SlotGroup("workers", 4, Resources(gpus=1), 1))
    (start,) = scheduler.submit(GangRequest("elastic", GangShape(parts)), 0.0)
    assert start == StartJob("elastic", ({"a": 1}, {"a": 2}))
    scheduler.nodes.set_node("a", Resources(gpus=3, cores=8))
    scheduler.nodes.set_node("b", Resources(gpus=9, cores=8))
    assert scheduler.tick(1.0) == [ResizeJob("elastic", ({"a": 1}, {"a": 2, "b": 2}))]


class TestExpectedEnd:
    """Expected end of a running job, which moves only when it is reached."""

    @staticmethod
    def expected(expected_s: float, now: float, started_s: float = 100.0) -> float:
        job = QueuedJob(GangRequest("j", gang(1), expected_s=expected_s), 1, 0.0, JobPhase.RUNNING)
        job.started_s = started_s
        return taking.expected_end_s(job, now)

    def test_expected_end_moves_when_it_is_reached(self):
        assert [self.expected(60.0, now) for now in (100.0, 159.0)] == [160.0, 160.0]
        assert [self.expected(60.0, now) for now in (160.0, 189.0)] == [190.0, 190.0]  # half as long again
        assert self.expected(60.0, 190.0) == 235.0

    def test_expected_duration_is_at_least_one_second(self):
        assert self.expected(0.001, 100.0) == 101.0

    def test_expected_end_of_a_waiting_job_counts_from_now(self):
        job = QueuedJob(GangRequest("j", gang(1), expected_s=60.0), 1, 0.0)
        assert taking.expected_end_s(job, 500.0) == 560.0


class TestWaitingLines:
    def test_waiting_jobs_of_equal_rank_are_in_order_of_submission(self):
        lines = WaitingLines()
        jobs = [
            QueuedJob(GangRequest(name, gang(size), priority=priority), number, 0.0)
            for number, (name, size, priority) in enumerate(
                [("a", 1, 50), ("b", 2, 50), ("c", 1, 50), ("urgent", 2, 60), ("d", 2, 50)]
            )
        ]
        for job in (jobs[4], jobs[2], jobs[0], jobs[3], jobs[1]):
            lines.add_job(job)
        assert [job.request.job_id for job in lines] == ["urgent", "a", "b", "c", "d"]
        walk, seen = lines.walk(), []
        while (job := walk.job) is not None:
            seen.append(job.request.job_id)
            walk.skip()
        assert seen == ["urgent", "a", "b", "c", "d"]
        lines.remove(jobs[1])
        assert [job.request.job_id for job in lines] == ["urgent", "a", "c", "d"] and len(lines) == 4

    def test_job_with_a_passed_over_shape_is_left_out_of_the_pass(self):
        lines = WaitingLines()
        for number, (name, size) in enumerate([("a", 1), ("b", 2), ("c", 1), ("d", 2)]):
            lines.add_job(QueuedJob(GangRequest(name, gang(size)), number, 0.0))
        walk = lines.walk()
        walk.pass_over()
        assert walk.job is not None and walk.job.request.job_id == "b"
        walk.skip()
        assert walk.job is not None and walk.job.request.job_id == "d"


def test_timers_of_ended_jobs_are_discarded():
    cluster = Cluster({"a": 4}, Policy(levels_s=(1e6,), longest_wait_s=1e6))
    cluster.submit("runs", gang(1))
    cluster.submit("waits", gang(4))
    for number in range(500):
        cluster.submit(f"short-{number}", gang(1))
        if f"short-{number}" in cluster.runs:
            cluster.ended(f"short-{number}")
        else:
            cluster.cancel(f"short-{number}")
    timed = [
        entry[3].request.job_id for heap in (cluster.scheduler._falls, cluster.scheduler._overdue) for entry in heap
    ]
    assert len(timed) < 300 and {"runs", "waits"} <= {*timed}
    cluster.advance(2e6)
    assert cluster.scheduler.jobs["waits"].is_overdue
