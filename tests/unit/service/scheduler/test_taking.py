"""Tests of running jobs in order, and of preemption: as little as possible, the last jobs first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hopsml.service.scheduler import taking
from hopsml.service.scheduler.job import JobPhase, QueuedJob, RunningJobs, WaitingLines
from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.resources import NOTHING, GangRequest, GangShape, Placement, Resources, SlotGroup
from hopsml.service.scheduler.taking import Taking

pytestmark = pytest.mark.fast


def gang(count: int, least: int = 0, gpus: int = 1) -> GangShape:
    return GangShape((SlotGroup("w", count, Resources(gpus=gpus), least),))


def job(job_id: str, what: GangShape, *where: dict[str, int], sequence: int = 1, **more: Any) -> QueuedJob:
    """Return a queued job, running at ``where`` if a place is given."""
    phase = JobPhase.RUNNING if where else JobPhase.WAITING
    return QueuedJob(GangRequest(job_id, what, **more), sequence, 0.0, phase, placement=where, used=where)


def cluster(running: Sequence[QueuedJob], **gpus: int) -> Nodes:
    nodes = Nodes()
    for name, count in gpus.items():
        nodes.set_node(name, Resources(gpus=count))
    for one in running:
        nodes.promise(one.request.gang, one.placement)
    return nodes


def names(jobs: Any) -> list[str]:
    return [one.request.job_id for one in jobs]


class TestRunning:
    def test_jobs_behind_a_rank_are_listed_from_the_last(self):
        running = RunningJobs()
        jobs = [
            job(name, gang(count), {"a": count}, sequence=number, priority=priority)
            for number, (name, count, priority) in enumerate(
                [("a", 1, 50), ("b", 2, 40), ("c", 4, 50), ("d", 8, 40), ("e", 16, 60)]
            )
        ]
        for one in (jobs[2], jobs[0], jobs[3], jobs[4], jobs[1]):
            running.add_job(one)
        assert names(running.behind((-1, 0, 0))) == ["d", "b", "c", "a", "e"]
        assert names(running.behind((1, -60, 0))) == ["d", "b", "c", "a"]
        assert names(running.behind((1, -50, 0))) == ["d", "b"] and names(running.behind((1, -40, 0))) == []
        held = [running.resources_behind((1, -priority, 0)).gpus for priority in (61, 60, 50, 40)]
        assert held == [31, 15, 10, 0]
        assert len(running) == 5 and sorted(names(running)) == ["a", "b", "c", "d", "e"]
        running.remove(jobs[3])
        running.remove(jobs[3])
        assert names(running.behind((1, -50, 0))) == ["b"] and running.resources_behind((1, -50, 0)).gpus == 2
        running.remove(jobs[1])
        assert (
            len(running) == 3
            and running.resources_behind((1, -50, 0)) == NOTHING
            and names(running.behind((1, -50, 0))) == []
        )
        running.add_job(jobs[1])
        assert names(running.behind((1, -50, 0))) == ["b"]

    def test_job_added_again_has_its_new_rank_and_size(self):
        running, one = RunningJobs(), job("a", gang(4, 1), {"a": 4})
        running.add_job(one)
        one.level, one.placement = 1, ({"a": 2},)
        running.add_job(one)
        assert len(running) == 1 and names(running) == ["a"]
        assert running.resources_behind((1, -50, 0)).gpus == 2 and running.resources_behind((1, -50, 1)).gpus == 0

    def test_elastic_jobs_are_those_resizable_while_running(self):
        running = RunningJobs()
        jobs = [
            job("elastic", gang(4, 1), {"a": 4}),
            job("fixed", gang(4), {"a": 4}),
            job("keeps its size", gang(4, 1), {"a": 4}, resizable=False),
        ]
        for one in jobs:
            running.add_job(one)
        assert list(running.elastic) == ["elastic"]
        running.remove(jobs[0])
        assert running.elastic == {} and len(running) == 2


class TestSurplus:
    def test_elastic_job_releases_single_slots_from_nodes_with_the_fewest(self):
        one = job("j", gang(6, 2), {"c": 1, "a": 2, "b": 3})
        assert list(taking.releasable_slots(one)) == [({"c": 1},), ({"a": 1},), ({"a": 1},), ({"b": 1},)]
        assert list(taking.releasable_slots(job("j", gang(4, 3), {"b": 2, "a": 2}))) == [({"a": 1},)]
        assert list(taking.releasable_slots(job("j", gang(4, 2), {"a": 2}))) == []
        assert one.placement == ({"c": 1, "a": 2, "b": 3},)

    def test_each_part_keeps_its_minimum(self):
        parts = tuple(SlotGroup(name, 3, Resources(gpus=1), least) for name, least in (("x", 2), ("y", 0), ("z", 1)))
        one = job("j", GangShape(parts), {"a": 3}, {"a": 3}, {"b": 2})
        assert list(taking.releasable_slots(one)) == [({"a": 1}, {}, {}), ({}, {}, {"b": 1})]

    def test_held_counts_slots_beyond_the_minimum(self):
        jobs = [job("x", gang(4, 1, gpus=2), {"a": 3}), job("y", gang(2), {"a": 2}), job("z", gang(3, 1), {"b": 2})]
        assert (
            taking.resources_beyond_minimum(jobs) == Resources(gpus=5)
            and taking.resources_beyond_minimum([]) == NOTHING
        )

    @pytest.mark.parametrize(
        ("placement", "freed", "left"),
        [
            (({"a": 3, "b": 1},), ({"a": 1},), ({"a": 2, "b": 1},)),
            (({"a": 3, "b": 1},), ({"b": 1},), ({"a": 3},)),
            (({"a": 3}, {"b": 2}), ({}, {"b": 1}), ({"a": 3}, {"b": 1})),
            (({"a": 3},), ({"a": 3},), ({},)),
            (({"a": 3},), ({"c": 1},), ({"a": 3},)),
        ],
    )
    def test_placement_without_released_slots(self, placement: Placement, freed: Placement, left: Placement):
        assert taking.remaining_placement(placement, freed) == left
        with pytest.raises(ValueError, match="zip"):
            taking.remaining_placement(placement, (*freed, {}))


class TestTaking:
    @staticmethod
    def find(what: GangShape, elastic: list[QueuedJob], ended: list[QueuedJob], **gpus: int) -> Taking | None:
        jobs_by_id = {one.request.job_id: one for one in (*elastic, *ended)}.values()
        nodes = cluster(list(jobs_by_id), **gpus)
        before = nodes.copy()
        found = taking.find_taking(job("new", what), nodes, elastic, iter(ended))
        assert (nodes.copy() == before).all()  # nothing is taken yet
        return found

    def test_no_more_slots_are_taken_than_needed(self):
        elastic = job("elastic", gang(6, 1), {"a": 6})
        assert self.find(gang(2), [elastic], [], a=6) == Taking(({"a": 2},), {"elastic": ({"a": 4},)}, ())
        assert self.find(gang(2), [elastic], [], a=7) == Taking(({"a": 2},), {"elastic": ({"a": 5},)}, ())
        assert self.find(gang(5, 3), [elastic], [], a=6) == Taking(({"a": 3},), {"elastic": ({"a": 3},)}, ())
        assert self.find(gang(6), [elastic], [], a=6) is None
        assert self.find(gang(5), [elastic], [], a=6) == Taking(({"a": 5},), {"elastic": ({"a": 1},)}, ())

    def test_first_elastic_job_releases_first(self):
        first, second = job("first", gang(3, 1), {"a": 3}), job("second", gang(3, 1), {"b": 3}, sequence=2)
        assert self.find(gang(2), [first, second], [], a=3, b=3) == Taking(({"a": 2},), {"first": ({"a": 1},)}, ())
        assert self.find(gang(3), [first, second], [], a=3, b=3) == Taking(
            ({"a": 2, "b": 1},), {"second": ({"b": 2},), "first": ({"a": 1},)}, ()
        )

    def test_jobs_are_preempted_only_if_elastic_surplus_does_not_suffice(self):
        elastic, rigid = job("elastic", gang(3, 1), {"a": 3}), job("whole", gang(2), {"b": 2}, sequence=2)
        assert self.find(gang(2), [elastic], [rigid], a=3, b=2) == Taking(({"a": 2},), {"elastic": ({"a": 1},)}, ())
        assert self.find(gang(4), [elastic], [rigid], a=3, b=2) == Taking(
            ({"a": 2, "b": 2},), {"elastic": ({"a": 1},)}, ("whole",)
        )
        assert self.find(gang(2, gpus=2), [elastic], [rigid], a=3, b=2) == Taking(
            ({"a": 1, "b": 1},), {"elastic": ({"a": 1},)}, ("whole",)
        )

    def test_job_found_unnecessary_to_preempt_is_spared(self):
        one, two, three = job("x", gang(1), {"a": 1}), job("y", gang(1), {"b": 1}), job("z", gang(2), {"c": 2})
        assert self.find(gang(1, gpus=2), [], [one, two, three], a=1, b=1, c=2) == Taking(({"c": 1},), {}, ("z",))
        assert self.find(gang(3), [], [one, two, three], a=1, b=1, c=2) == Taking(({"c": 2, "a": 1},), {}, ("z", "x"))
        assert self.find(gang(3, 2), [], [one, two, three], a=1, b=1, c=2) == Taking(
            ({"a": 1, "b": 1},), {}, ("y", "x")
        )
        assert self.find(gang(4, 1), [], [three, one], a=1, c=2) == Taking(({"c": 1},), {}, ("z",))
        four = job("z", gang(4), {"c": 4})
        assert self.find(gang(3, 1, gpus=2), [], [one, four], a=1, c=4) == Taking(({"c": 1},), {}, ("z",))
        elastic = job("e", gang(3, 1), {"a": 3})
        assert self.find(gang(1, gpus=4), [elastic], [three, elastic], a=3, c=4) == Taking(({"c": 1},), {}, ("z",))

    def test_preempted_elastic_job_releases_all_slots_and_is_not_resized(self):
        elastic = job("elastic", gang(4, 2), {"a": 3, "b": 1})
        assert self.find(gang(1, gpus=3), [elastic], [elastic], a=3, b=1) == Taking(({"a": 1},), {}, ("elastic",))
        assert self.find(gang(4), [elastic], [elastic], a=3, b=1) == Taking(({"a": 3, "b": 1},), {}, ("elastic",))
        assert self.find(gang(5), [elastic], [elastic], a=3, b=1) is None

    def test_search_stops_as_soon_as_the_slots_suffice(self):
        examined = []

        def ended():
            for one in (job("x", gang(1), {"a": 1}), job("y", gang(1), {"a": 1})):
                examined.append(one.request.job_id)
                yield one

        found = taking.find_taking(job("new", gang(1)), cluster([job("x", gang(1), {"a": 1})] * 2, a=2), [], ended())
        assert found == Taking(({"a": 1},), {}, ("x",)) and examined == ["x"]


class TestWaitingLines:
    @staticmethod
    def lines(*rows: tuple[str, int, int]) -> tuple[WaitingLines, dict[str, QueuedJob]]:
        lines, jobs = WaitingLines(), {}
        for number, (name, count, priority) in enumerate(rows):
            jobs[name] = job(name, gang(count), sequence=number, priority=priority)
            lines.add_job(jobs[name])
        return lines, jobs

    def test_walk_continues_after_a_removed_job(self):
        lines, _ = self.lines(("a", 1, 50), ("b", 1, 50), ("c", 2, 50), ("d", 1, 50))
        walk, seen = lines.walk(), []
        while (one := walk.job) is not None:
            seen.append(one.request.job_id)
            lines.remove(one)
            walk.taken()
        assert seen == ["a", "b", "c", "d"] and len(lines) == 0 and list(lines) == []
        assert lines.walk().job is None

    def test_skipped_job_does_not_appear_again_in_the_walk(self):
        lines, jobs = self.lines(("a", 1, 50), ("b", 2, 50), ("c", 1, 50), ("low", 1, 40))
        walk = lines.walk()
        walk.skip()
        assert walk.job is jobs["b"]
        walk.pass_over()
        assert walk.job is jobs["c"]
        lines.remove(jobs["c"])
        walk.taken()
        assert walk.job is jobs["low"]
        walk.skip()
        assert walk.job is None

    def test_passed_over_shape_is_left_out_at_every_rank(self):
        lines, jobs = self.lines(("high", 1, 60), ("a", 2, 50), ("low", 1, 40))
        walk = lines.walk()
        walk.pass_over()
        assert walk.job is jobs["a"]
        walk.skip()
        assert walk.job is None

    def test_job_is_removed_from_the_line_it_was_added_to(self):
        lines, jobs = self.lines(("a", 1, 50), ("b", 1, 50))
        jobs["b"].is_overdue = True
        lines.remove(jobs["b"])
        lines.add_job(jobs["b"])
        assert names(lines) == ["b", "a"] and len(lines) == 2
