"""Tests of GPUs, cores and memory, the shapes that jobs request, and their limits."""

from __future__ import annotations

import math

import pytest

from hopsml.errors import ArgumentError
from hopsml.service.scheduler.job import OVERDUE, JobPhase, QueuedJob
from hopsml.service.scheduler.resources import (
    NOTHING,
    GangRequest,
    GangShape,
    Policy,
    Queue,
    Resources,
    SlotGroup,
    total,
)

pytestmark = pytest.mark.fast

ONE, SOME = Resources(1, 1, 1), Resources(2, 3, 5)


class TestResources:
    def test_sums_differences_and_multiples_are_of_each_resource(self):
        assert SOME.plus(Resources(10, 20, 30)) == Resources(12, 23, 35)
        assert SOME.minus(Resources(10, 20, 30)) == Resources(-8, -17, -25)
        assert SOME.times(3) == Resources(6, 9, 15) and SOME.times(-1) == Resources(-2, -3, -5)
        assert total([SOME, ONE, ONE]) == Resources(4, 5, 7) and total([]) == NOTHING == Resources(0, 0, 0)

    @pytest.mark.parametrize(
        ("more", "is_within"),
        [(NOTHING, True), (Resources(1), False), (Resources(0, 1), False), (Resources(0, 0, 1), False)],
    )
    def test_within_requires_at_most_as_much_of_each_resource(self, more, is_within):
        assert SOME.plus(more).within(SOME) is is_within

    @pytest.mark.parametrize(
        ("room", "each", "count"),
        [
            (Resources(7, 9, 9), Resources(gpus=2), 3),
            (Resources(7, 9, 9), Resources(2, 4, 0), 2),
            (Resources(7, 9, 9), Resources(2, 4, 9), 1),
            (Resources(7, 9, 9), Resources(cores=1), 9),
            (Resources(7, 9, 9), Resources(memory_mib=10), 0),
            (Resources(0, 9, 9), Resources(1, 1, 1), 0),
            (Resources(-3, 9, 9), Resources(1, 1, 1), 0),
        ],
    )
    def test_slots_that_fit_are_bounded_by_the_scarcest_resource(self, room, each, count):
        assert room.slots_of(each) == count

    @pytest.mark.parametrize(
        ("mine", "of", "share"),
        [
            (Resources(1, 1, 1), Resources(4, 8, 16), 0.25),
            (Resources(1, 4, 1), Resources(4, 8, 16), 0.5),
            (Resources(1, 4, 12), Resources(4, 8, 16), 0.75),
            (Resources(1, 1, 1), Resources(0, 8, 1), 1.0),  # a resource that does not exist has no share
            (Resources(1, 1, 1), Resources(0, -8, 4), 0.25),
            (Resources(1, 1, 1), NOTHING, 0.0),
        ],
    )
    def test_dominant_share_is_the_largest_share_of_a_resource(self, mine, of, share):
        assert mine.share_of(of) == share


class TestGangs:
    def test_gang_minimum_and_maximum_sum_its_parts_and_one_smaller_part_makes_it_elastic(self):
        fixed = SlotGroup("driver", 1, Resources(0, 1, 7))
        elastic = SlotGroup("workers", 5, Resources(1, 2, 3), least=2)
        assert (fixed.at_least, elastic.at_least) == (1, 2)
        gang = GangShape((fixed, elastic))
        assert (gang.least, gang.most) == (Resources(2, 5, 13), Resources(5, 11, 22)) and gang.is_elastic
        assert not GangShape((fixed,)).is_elastic and not GangShape((SlotGroup("w", 2, ONE, least=2),)).is_elastic
        assert gang == GangShape((fixed, elastic)) and hash(gang) == hash(GangShape((fixed, elastic)))
        assert gang.of(({"a": 1}, {"a": 1, "b": 3})) == Resources(4, 9, 19)
        assert gang.of(({}, {})) == NOTHING

    def test_placement_must_have_as_many_parts_as_the_gang(self):
        with pytest.raises(ValueError, match="zip"):
            GangShape((SlotGroup("w", 2, ONE),)).of(({"a": 1}, {"a": 1}))

    @pytest.mark.parametrize(
        ("gpus", "counts"), [(0, (2, 1)), (3, (2, 1)), (4, (3, 1)), (6, (5, 1)), (7, (5, 2)), (8, (5, 3)), (99, (5, 3))]
    )
    def test_gang_is_cut_to_fit_with_its_last_parts_first(self, gpus, counts):
        gang = GangShape((SlotGroup("one", 5, Resources(1), least=2), SlotGroup("two", 3, Resources(1), least=1)))
        cut = gang.shrunk_to_fit(Resources(gpus))
        assert [(part.name, part.count, part.at_least) for part in cut.parts] == [
            ("one", counts[0], 2),
            ("two", counts[1], 1),
        ]

    @pytest.mark.parametrize(
        ("make", "expected"),
        [
            (lambda: SlotGroup("w", 0, ONE), "part 'w': count=0; a gang has at least one of each of its parts"),
            (lambda: SlotGroup("w", 2, ONE, least=3), "part 'w': least=3 is not between 1 and its count, 2"),
            (lambda: SlotGroup("w", 2, ONE, least=-1), "part 'w': least=-1 is not between 1 and its count, 2"),
            *(
                (
                    lambda each=each: SlotGroup("w", 1, each),
                    f"part 'w' needs {each}; a slot needs something, and nothing below 0",
                )
                for each in (NOTHING, Resources(-1, 1, 1), Resources(1, -1, 1), Resources(1, 1, -1))
            ),
            (lambda: GangShape(()), "a gang without parts: it has at least one, with its resources"),
        ],
    )
    def test_invalid_gang_is_refused_with_the_value_and_the_rule(self, make, expected):
        with pytest.raises(ArgumentError) as refused:
            make()
        assert str(refused.value) == expected


class TestPolicy:
    def test_level_starts_when_its_service_is_attained(self):
        policy = Policy(levels_s=(10.0, 20.0))
        assert [policy.level(at) for at in (0.0, 9.9, 10.0, 19.9, 20.0, 1e9)] == [0, 0, 1, 1, 2, 2]
        assert [policy.next_level_s(at) for at in (0.0, 9.9, 10.0, 20.0)] == [10.0, 10.0, 20.0, math.inf]

    def test_policy_queue_and_request_defaults(self):
        assert Policy() == Policy((3600.0, 36000.0), True, 300.0, 36000.0, 600.0)
        assert Queue() == Queue("default", 1.0, NOTHING, None, None)
        gang = GangShape((SlotGroup("w", 1, ONE),))
        assert GangRequest("j", gang) == GangRequest("j", gang, "default", 50, "", True, math.inf, True)

    @pytest.mark.parametrize(
        "make",
        [
            lambda gang: Policy(levels_s=(), least_run_s=0.0, longest_wait_s=0.0, hold_after_s=0.0),
            lambda gang: Policy(longest_wait_s=math.inf, hold_after_s=math.inf),
            lambda gang: Queue(weight=1e-9, guaranteed=SOME, limit=SOME),
            lambda gang: GangRequest("j", gang, priority=1, expected_s=1e-9),
            lambda gang: GangRequest("j", gang, priority=100),
        ],
    )
    def test_boundary_values_are_accepted(self, make):
        assert make(GangShape((SlotGroup("w", 1, ONE),)))

    @pytest.mark.parametrize(
        ("make", "expected"),
        [
            *(
                (
                    lambda gang, levels=levels: Policy(levels_s=levels),
                    f"levels_s={levels}: levels are positive and each is above the one before",
                )
                for levels in ((2.0, 1.0), (1.0, 1.0), (0.0, 1.0), (-1.0,))
            ),
            *(
                (
                    lambda gang, name=name, value=value: Policy(**{name: value}),
                    f"{name}={value} is below 0; it is a time in seconds",
                )
                for name in ("least_run_s", "longest_wait_s", "hold_after_s")
                for value in (-0.5, math.nan)
            ),
            *(
                (
                    lambda gang, weight=weight: Queue("q", weight=weight),
                    f"queue 'q': weight={weight}; a weight is above 0",
                )
                for weight in (0.0, -1.0, math.inf, math.nan)
            ),
            (
                lambda gang: Queue("q", guaranteed=SOME, limit=ONE),
                f"queue 'q': its guaranteed {SOME} is more than its limit, {ONE}",
            ),
            *(
                (
                    lambda gang, priority=priority: GangRequest("j", gang, priority=priority),
                    f"job 'j': priority={priority} is not between 1 and 100; a higher one is more urgent",
                )
                for priority in (0, 101)
            ),
            (lambda gang: GangRequest("j", gang, expected_s=0.0), "job 'j': expected_s=0.0 is not above 0"),
        ],
    )
    def test_invalid_policy_queue_or_request_is_refused_with_the_value_and_the_rule(self, make, expected):
        with pytest.raises(ArgumentError) as refused:
            make(GangShape((SlotGroup("w", 1, ONE),)))
        assert str(refused.value) == expected

    def test_request_changes_size_only_if_elastic_and_resizable(self):
        fixed, elastic = (GangShape((SlotGroup("w", 2, ONE, least=least),)) for least in (0, 1))
        assert GangRequest("j", elastic).changes and not GangRequest("j", fixed).changes
        assert not GangRequest("j", elastic, resizable=False).changes

    def test_driver_memory_is_summed_over_all_driver_slots(self):
        driver = SlotGroup("driver", 2, Resources(0, 1, 100), is_driver=True)
        workers = SlotGroup("workers", 5, Resources(1, 1, 1000))
        assert GangRequest("j", GangShape((driver, workers, driver))).driver_mib == 400
        assert GangRequest("j", GangShape((workers,))).driver_mib == 0


class TestQueuedJob:
    POLICY = Policy(levels_s=(100.0, 1000.0))

    @staticmethod
    def job(each: Resources = ONE, phase: JobPhase = JobPhase.RUNNING, count: int = 3, **more: object) -> QueuedJob:
        request = GangRequest("j", GangShape((SlotGroup("w", 5, each, least=2),)), priority=60)
        placement = ({"a": count},) if phase == JobPhase.RUNNING else ()
        return QueuedJob(request, 1, 50.0, phase, placement=placement, **more)  # type: ignore[arg-type]

    def test_rank_orders_by_overdue_then_priority_then_level(self):
        job = self.job(level=2)
        assert job.rank == (1, -60, 2)
        job.is_overdue = True
        assert job.rank == OVERDUE == (0, 0, 0)

    def test_job_holds_its_promised_resources(self):
        assert self.job(SOME).holds == SOME.times(3) and self.job(SOME, JobPhase.WAITING).holds == NOTHING

    @pytest.mark.parametrize(
        ("each", "running", "waiting"),
        [
            (Resources(2, 9, 9), 6.0, 4.0),
            (Resources(0, 4, 9), 1.5, 1.0),
            (Resources(0, 0, 9), 0.125, 0.125),
            (Resources(0, 1, 0), 0.375, 0.25),
        ],
    )
    def test_eight_cores_count_as_one_gpu_and_a_job_without_both_as_one_core(self, each, running, waiting):
        assert self.job(each).service_per_s == running
        assert self.job(each, JobPhase.WAITING).service_per_s == waiting  # as many as it cannot do without

    def test_running_job_attains_service_and_falls_to_its_level(self):
        job = self.job(attained_s=40.0, waited_s=7.0)
        assert job.next_level_at_s(self.POLICY) == 70.0 and job.waits_s(69.0) == 7.0
        job.count(69.0, self.POLICY)
        assert (job.attained_s, job.level, job.since_s, job.waited_s) == (97.0, 0, 69.0, 7.0)
        job.count(70.0, self.POLICY)
        assert (job.attained_s, job.level, job.since_s) == (100.0, 1, 70.0) and job.next_level_at_s(
            self.POLICY
        ) == 370.0
        job.count(60.0, self.POLICY)  # the clock was put back
        assert (job.attained_s, job.since_s) == (100.0, 60.0)
        job.count(2000.0, self.POLICY)
        assert job.level == 2 and job.next_level_at_s(self.POLICY) == math.inf

    @pytest.mark.parametrize("phase", [JobPhase.WAITING, JobPhase.PLACED])
    def test_waiting_time_counts_until_the_job_starts(self, phase):
        job = self.job(phase=phase, waited_s=7.0)
        assert job.waits_s(60.0) == 17.0
        job.count(60.0, self.POLICY)
        assert (job.waited_s, job.since_s, job.attained_s, job.level) == (17.0, 60.0, 0.0, 0)
        job.count(55.0, self.POLICY)
        assert (job.waited_s, job.since_s) == (17.0, 55.0)

    def test_ending_job_accumulates_neither_waiting_time_nor_service(self):
        job = self.job(phase=JobPhase.ENDING, waited_s=7.0)
        assert job.waits_s(60.0) == 7.0
        job.count(60.0, self.POLICY)
        assert (job.waited_s, job.attained_s, job.since_s) == (7.0, 0.0, 60.0)

    def test_level_update_passes_through_all_attained_levels(self):
        job = self.job()
        job.update_level(1050.0, self.POLICY)
        assert (job.attained_s, job.level) == (3000.0, 2)
        job = self.job(attained_s=40.0)
        job.update_level(69.0, self.POLICY)
        assert (job.attained_s, job.level) == (97.0, 0)

    def test_service_short_by_a_rounding_error_counts_as_attained(self):
        job = self.job(attained_s=84.7)
        job.since_s = 1344508076.9
        due_s = job.next_level_at_s(self.POLICY)
        job.update_level(due_s, self.POLICY)  # the clock has no value at which it would have attained slightly more
        assert (job.attained_s, job.level) == (100.0, 1) and job.next_level_at_s(self.POLICY) == due_s + 300.0
