"""Tests of holds: for which job, where, from when, and which jobs may pass."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hopsml.service.scheduler import taking
from hopsml.service.scheduler.job import JobPhase, QueuedJob
from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.resources import GangRequest, GangShape, Placement, Policy, Resources, SlotGroup
from hopsml.service.scheduler.taking import Hold

pytestmark = pytest.mark.fast

NOW = 1000.0
POLICY = Policy(levels_s=(), least_run_s=50.0)
KEEPS = replace(POLICY, preempts=False)


def gang(count: int, least: int = 0) -> GangShape:
    return GangShape((SlotGroup("w", count, Resources(gpus=1), least),))


def waiting(job_id: str, count: int = 1, least: int = 0, **more: Any) -> QueuedJob:
    return QueuedJob(GangRequest(job_id, gang(count, least), **more), 1, 0.0)


def runs(job_id: str, where: dict[str, int], started_s: float = 900.0, **more: Any) -> QueuedJob:
    job = waiting(job_id, sum(where.values()), **more)
    job.phase, job.placement, job.used, job.started_s = JobPhase.RUNNING, (where,), (where,), started_s
    return job


def cluster(running: list[QueuedJob], **gpus: int) -> Nodes:
    nodes = Nodes()
    for name, count in gpus.items():
        nodes.set_node(name, Resources(gpus=count))
    for job in running:
        nodes.promise(job.request.gang, job.placement)
    return nodes


def make_hold(
    job: QueuedJob, running: list[QueuedJob], policy: Policy = KEEPS, lenders: tuple[str, ...] = (), **gpus: int
) -> tuple[float, Placement, list[int]]:
    """Return the start of a hold, its placement, and the spare GPUs of each node."""
    made = taking.make_hold(job, cluster(running, **gpus), running, NOW, policy, lenders)
    assert made is not None and made.job is job and made.refused == set()
    return made.starts_s, made.placement, [int(each) for each in made.spare[: len(gpus), 0]]


class TestMakesWay:
    @pytest.mark.parametrize(
        ("other", "policy", "lenders", "makes_way"),
        [
            ({"priority": 40}, POLICY, (), True),
            ({"priority": 50}, POLICY, (), False),  # an equal
            ({"priority": 60}, POLICY, (), False),
            ({"priority": 40}, KEEPS, (), False),
            ({"priority": 40}, KEEPS, ("default",), False),  # of the same queue, which does not lend to itself
            ({"priority": 40, "preemptible": False}, POLICY, (), False),
            ({"queue": "lender", "priority": 60}, KEEPS, ("lender",), True),
            ({"queue": "lender", "priority": 40}, POLICY, (), False),
            ({"queue": "lender", "preemptible": False}, KEEPS, ("lender",), False),
        ],
    )
    def test_lower_ranked_and_borrowing_jobs_make_way(self, other, policy, lenders, makes_way):
        job = waiting("other", **other)
        assert taking.may_be_preempted(job, waiting("job"), policy, lenders) is makes_way
        job.is_overdue = True
        assert not taking.may_be_preempted(job, waiting("job"), policy, lenders)


class TestExpectedEnd:
    @pytest.mark.parametrize(
        ("expected_s", "now", "end_s"),
        [
            (100.0, 900.0, 1000.0),
            (100.0, 999.0, 1000.0),
            (100.0, 1000.0, 1050.0),
            (100.0, 1050.0, 1125.0),
            (100.0, 1124.0, 1125.0),
            (0.5, 900.0, 901.0),
            (1.0, 901.0, 901.5),
            (math.inf, 5000.0, math.inf),
        ],
    )
    def test_expected_end_moves_by_half_when_a_job_exceeds_it(self, expected_s, now, end_s):
        assert taking.expected_end_s(runs("j", {"a": 1}, expected_s=expected_s), now) == pytest.approx(end_s)

    def test_expected_end_of_a_job_that_is_not_running_counts_from_now(self):
        job = waiting("j", expected_s=60.0)
        job.started_s, job.phase = 5.0, JobPhase.PLACED
        assert taking.expected_end_s(job, 500.0) == 560.0

    def test_expected_end_is_never_in_the_past(self):
        for passed in range(1, 2000):
            job = runs("j", {"a": 1}, started_s=0.0, expected_s=3.0)
            assert taking.expected_end_s(job, passed / 4) > passed / 4


class TestMakeHold:
    def test_hold_starts_now_if_there_are_enough_free_slots(self):
        assert make_hold(waiting("job", 3), [], a=4, b=2) == (NOW, ({"a": 3},), [1, 2])

    def test_hold_reserves_only_the_minimum_of_an_elastic_job(self):
        assert make_hold(waiting("job", 6, least=2), [], a=4, b=2) == (NOW, ({"b": 2},), [4, 0])
        running = [runs("soon", {"a": 3}, expected_s=200.0)]
        assert make_hold(waiting("job", 6, least=3), running, a=4, b=1) == (1100.0, ({"a": 3},), [1, 1])

    def test_hold_waits_for_the_jobs_that_end_first(self):
        late = runs("late", {"a": 2}, expected_s=500.0)
        soon = runs("soon", {"b": 2}, expected_s=200.0)
        next_ = runs("next", {"c": 2}, expected_s=300.0)
        running = [late, soon, next_]
        assert make_hold(waiting("job", 2), running, a=2, b=2, c=2) == (1100.0, ({"b": 2},), [0, 0, 0])
        assert make_hold(waiting("job", 4), running, a=2, b=2, c=2) == (1200.0, ({"b": 2, "c": 2},), [0, 0, 0])
        assert make_hold(waiting("job", 6), running, a=2, b=2, c=2) == (1400.0, ({"a": 2, "b": 2, "c": 2},), [0, 0, 0])
        assert taking.make_hold(waiting("job", 7), cluster(running, a=2, b=2, c=2), running, NOW, KEEPS) is None

    def test_spare_slots_are_free_now_and_not_needed_by_the_hold(self):
        running = [runs("soon", {"a": 3}, expected_s=200.0)]
        assert make_hold(waiting("job", 4), running, a=4, b=2) == (1100.0, ({"a": 4},), [0, 2])
        assert make_hold(waiting("job", 5), running, a=4, b=2) == (1100.0, ({"a": 4, "b": 1},), [0, 1])

    def test_hold_requires_slots_that_fit_on_one_node(self):
        running = [runs("one", {"a": 1}, expected_s=200.0), runs("two", {"b": 1}, expected_s=300.0)]
        single_slot = QueuedJob(GangRequest("job", GangShape((SlotGroup("w", 1, Resources(gpus=2)),))), 1, 0.0)
        assert make_hold(single_slot, running, a=2, b=1) == (1100.0, ({"a": 1},), [0, 0])
        assert make_hold(single_slot, list(reversed(running)), a=1, b=2) == (1200.0, ({"b": 1},), [0, 0])

    def test_oldest_job_of_unknown_duration_is_assumed_to_end_first(self):
        running = [runs("old", {"a": 1}), runs("young", {"b": 1}), runs("known", {"c": 1}, expected_s=9e9)]
        single_slot = QueuedJob(GangRequest("job", GangShape((SlotGroup("w", 1, Resources(gpus=3)),))), 1, 0.0)
        assert make_hold(single_slot, running, a=4, b=4, c=1) == (NOW, ({"a": 1},), [0, 3, 0])
        assert make_hold(waiting("job", 7), running, a=4, b=4, c=1)[0] == 900.0 + 9e9
        started_s, placement, spare = make_hold(waiting("job", 8), running, a=5, b=4, c=1)
        assert (started_s, placement, spare) == (900.0 + 9e9, ({"a": 4, "b": 3, "c": 1},), [0, 0, 0])
        assert make_hold(waiting("job", 5), running[:2], a=5, b=2) == (NOW, ({"a": 4, "b": 1},), [0, 0])
        assert make_hold(waiting("job", 6), running[:2], a=5, b=2, c=1) == (NOW, ({"a": 4, "b": 1, "c": 1},), [0, 0, 0])
        assert make_hold(waiting("job", 7), running[:2], a=5, b=2, c=1) == (
            math.inf,
            ({"a": 5, "b": 1, "c": 1},),
            [0, 0, 0],
        )
        assert make_hold(waiting("job", 5), [running[0]], a=5, b=3) == (NOW, ({"a": 4, "b": 1},), [0, 2])
        assert make_hold(waiting("job", 8), [running[0]], a=5, b=3, c=9) == (NOW, ({"c": 8},), [4, 3, 1])

    def test_preemptible_job_counts_as_ended_after_its_protection(self):
        behind = runs("behind", {"a": 2}, started_s=980.0, priority=40)
        assert make_hold(waiting("job", 2), [behind], POLICY, a=2) == (1030.0, ({"a": 2},), [0])
        assert make_hold(waiting("job", 2), [behind], KEEPS, a=2)[0] == math.inf
        long_ago = runs("behind", {"a": 2}, started_s=100.0, priority=40)
        assert make_hold(waiting("job", 2), [long_ago], POLICY, a=2)[0] == NOW
        ends_before = runs("behind", {"a": 2}, started_s=980.0, priority=40, expected_s=21.0)
        assert make_hold(waiting("job", 2), [ends_before], POLICY, a=2)[0] == 1001.0
        placed = runs("behind", {"a": 2}, started_s=100.0, priority=40)
        placed.phase = JobPhase.PLACED
        assert make_hold(waiting("job", 2), [placed], POLICY, a=2)[0] == 1050.0

    def test_borrowing_job_counts_as_ended_after_its_protection(self):
        borrower = runs("borrower", {"a": 2}, started_s=980.0, queue="lender")
        assert make_hold(waiting("job", 2), [borrower], KEEPS, ("lender",), a=2)[0] == 1030.0
        assert make_hold(waiting("job", 2), [borrower], KEEPS, a=2)[0] == math.inf

    def test_only_nodes_of_jobs_of_unknown_duration_have_no_spare_slots(self):
        running = [runs("unknown", {"a": 2})]
        assert make_hold(waiting("job", 2), running, a=4) == (NOW, ({"a": 2},), [0])
        assert make_hold(waiting("job", 3), running, a=4, b=2) == (NOW, ({"a": 2, "b": 1},), [0, 1])
        assert make_hold(waiting("job", 1), running, a=4, b=2) == (NOW, ({"a": 1},), [1, 2])
        single_slot = QueuedJob(GangRequest("job", GangShape((SlotGroup("w", 1, Resources(gpus=3)),))), 1, 0.0)
        assert make_hold(single_slot, running, a=4, b=2) == (math.inf, ({"a": 1},), [0, 2])


class TestPassingAHold:
    def hold(self, starts_s: float, nodes: Nodes | None = None, spare: int = 0) -> Hold:
        free = (nodes or cluster([], a=4)).copy()
        free[:] = 0
        free[0, 0] = spare
        return Hold(waiting("first"), starts_s, ({"a": 4},), free)

    @pytest.mark.parametrize(
        ("other", "policy", "starts_s", "passes"),
        [
            ({"expected_s": 100.0}, POLICY, NOW + 100.0, True),  # over in time
            ({"expected_s": 100.1}, POLICY, NOW + 100.0, False),
            ({}, POLICY, NOW + 100.0, False),
            ({}, POLICY, math.inf, False),  # both durations are unknown
            ({"expected_s": 1e12}, POLICY, math.inf, True),
            ({"priority": 40}, POLICY, NOW + 50.0, True),  # it may be preempted by then
            ({"priority": 40}, POLICY, NOW + 49.9, False),
            ({"priority": 40}, KEEPS, NOW + 50.0, False),
            ({"priority": 40, "expected_s": 20.0}, POLICY, NOW + 20.0, True),
        ],
    )
    def test_job_that_ends_or_can_be_preempted_in_time_passes_the_hold(self, other, policy, starts_s, passes):
        assert self.hold(starts_s).lets_pass(waiting("other", **other), NOW, policy) is passes

    def test_job_within_spare_slots_may_pass_for_any_duration(self):
        nodes = cluster([], a=4)
        hold = self.hold(NOW, nodes, spare=3)
        assert hold.place_in_spare_room(nodes, waiting("two", 5, least=2)) == ({"a": 2},)
        assert hold.spare[0, 0] == 1 and nodes.free().gpus == 4  # the caller promises it
        assert hold.place_in_spare_room(nodes, waiting("two more", 2)) is None and hold.refused == {gang(2)}
        assert hold.place_in_spare_room(nodes, waiting("one", 1)) == ({"a": 1},) and hold.spare[0, 0] == 0
        assert hold.place_in_spare_room(nodes, waiting("one more", 1)) is None and hold.refused == {gang(2), gang(1)}

    def test_gang_shape_refused_by_a_hold_is_not_tried_again(self):
        nodes = cluster([], a=4)
        hold = self.hold(NOW, nodes, spare=3)
        hold.refused.add(gang(1))
        assert hold.place_in_spare_room(nodes, waiting("one")) is None and hold.spare[0, 0] == 3

    def test_spare_slots_must_also_be_free_now(self):
        running = [runs("runs", {"a": 3})]
        nodes = cluster(running, a=4)
        hold = self.hold(NOW, nodes, spare=3)
        assert hold.place_in_spare_room(nodes, waiting("two", 2)) is None
        assert hold.place_in_spare_room(nodes, waiting("one")) == ({"a": 1},)
        assert np.array_equal(hold.spare[0], [2, 0, 0])
