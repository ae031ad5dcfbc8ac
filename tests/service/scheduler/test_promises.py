"""What a person is told of a job that waits is what happens: on random clusters, with jobs that give slots back late."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.service.scheduler.job import JobPhase
from hopsml.service.scheduler.policy import Policy
from hopsml.service.scheduler.reasons import Cause, Reason, why, with_count
from hopsml.service.scheduler.resources import GangShape, Placement, Resources, SlotGroup
from hopsml.service.scheduler.scheduler import Action, PreemptJob, ResizeJob, Scheduler, StartJob
from tests.service.scheduler.clusters import Cluster, gang, slots
from tests.service.scheduler.test_properties import NODES, POLICIES, QUEUES

pytestmark = pytest.mark.fast


class SlowCluster(Cluster):
    """Who is to become smaller gives back when told to; until then ``check`` counts all that it has."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(NODES, policy, QUEUES)
        self.shrinking: dict[str, Placement] = {}
        self.held: dict[str, Placement] = {}

    def check(self) -> None:
        """Never over capacity, whatever is on its way; no part of a gang beyond its bounds."""
        used: Counter[tuple[str, str]] = Counter()
        for job_id in self.runs:
            for part, nodes in zip(self.gangs[job_id].parts, self.held[job_id], strict=True):
                assert part.at_least <= sum(nodes.values()) <= part.count, (job_id, part, nodes)
                for node, count in nodes.items():
                    used[node, "gpus"] += count * part.each.gpus
                    used[node, "cores"] += count * part.each.cores
        assert all(used[key] <= self.capacity[key[0]] for key in used), used

    def did(self, actions: list[Action]) -> list[str]:
        said = []
        for action in actions:
            if isinstance(action, ResizeJob) and action.in_favour_of:
                assert slots(action.placement) < slots(self.held[action.job_id])
                self.shrinking[action.job_id] = action.placement
                said.append(f"{action.job_id}<{sum(slots(action.placement).values())}")
                self.check()
            else:
                if isinstance(action, PreemptJob):
                    self.shrinking.pop(action.job_id, None)  # it gives all of it back
                else:
                    self.held[action.job_id] = action.placement
                said += super().did([action])
        return said

    def gives_back(self, job_id: str) -> list[str]:
        """As was asked."""
        placement = self.shrinking.pop(job_id)
        self.held[job_id], self.runs[job_id] = placement, slots(placement)
        return self.did(self.scheduler.resized(job_id, placement, self.now))

    def ended(self, job_id: str) -> list[str]:
        self.shrinking.pop(job_id, None)
        return super().ended(job_id)

    def falls_back(self, job_id: str) -> list[str]:
        """It has not answered, and was ended instead."""
        del self.shrinking[job_id]
        if job_id in self.leaving:
            self.leaving.remove(job_id)
        self.runs.pop(job_id)
        return self.did(self.scheduler.released(job_id, self.now))


JOBS = st.fixed_dictionaries(
    {
        "count": st.integers(1, 6),
        "least": st.sampled_from([0, 0, 0, 1, 2]),
        "gpus": st.sampled_from([1, 1, 2]),
        "queue": st.sampled_from(["one", "two", "three"]),
        "priority": st.sampled_from([40, 50, 60]),
        "driver": st.booleans(),
    }
)
STORIES = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), JOBS),
        st.tuples(st.just("submit"), JOBS),
        st.tuples(st.sampled_from(["end", "give", "fall"]), st.integers(0, 50)),
        st.tuples(st.just("later"), st.floats(0.1, 120.0)),
    ),
    max_size=40,
)


def wanted(detail: dict[str, Any]) -> GangShape:
    workers = gang(detail["count"], min(detail["least"], detail["count"]), detail["gpus"])
    driver = SlotGroup("driver", 1, Resources(cores=1), is_driver=True)
    return GangShape((*workers.parts, driver)) if detail["driver"] else workers


def play(story: list[Any], policy: Policy) -> SlowCluster:
    cluster = SlowCluster(policy)
    for number, (kind, detail) in enumerate(story):
        if kind == "submit":
            if (what := wanted(detail)).least.within(Resources(4, 4)):  # the limit of queue three, the largest node
                cluster.submit(f"j{number}", what, queue=detail["queue"], priority=detail["priority"])
        elif kind == "later":
            cluster.later(detail)
        elif kind == "end" and cluster.runs:
            job = sorted(cluster.runs)[detail % len(cluster.runs)]
            cluster.leaves(job) if job in cluster.leaving and detail % 2 else cluster.ended(job)
        elif among := sorted(set(cluster.shrinking) - set(cluster.leaving)):
            job = among[detail % len(among)]
            cluster.gives_back(job) if kind == "give" else cluster.falls_back(job)
    return cluster


def starts(job_id: str, actions: list[Action]) -> bool:
    return any(isinstance(action, StartJob) and action.job_id == job_id for action in actions)


def clock(at: float) -> str:
    return f"{at:g}"


def check_promises(scheduler: Scheduler, reason: Reason, now: float) -> None:
    """What would help is done, as a person does it, and helps."""
    job_id = reason.job_id
    if reason.would_start_with:
        tried = scheduler.trial()
        request = tried.jobs[job_id].request
        part = next(one for one in request.gang.parts if one.name == reason.part)
        tried.cancel(job_id, now)
        smaller = replace(request, gang=with_count(request.gang, part, reason.would_start_with))
        assert starts(job_id, tried.submit(smaller, now)), reason
    for queue in reason.other_queues:
        tried = scheduler.trial()
        moved = replace(tried.jobs[job_id], request=replace(tried.jobs[job_id].request, queue=queue))
        actions = tried.cancel(job_id, now)
        tried.adopt(replace(moved, is_cancelled=False), now)
        assert starts(job_id, actions + tried.tick(now)), reason


def check_sentence(scheduler: Scheduler, reason: Reason, now: float) -> None:
    """No part of it contradicts another one."""
    text, free = reason.text(clock), sum(count for _, count in reason.free)
    job = scheduler.jobs[reason.job_id]
    assert (job.phase == JobPhase.PLACED) == (reason.cause == Cause.LEAVING)
    if reason.cause == Cause.NO_ROOM:
        assert bool(reason.together) != (free < reason.slots), text
        assert 0 <= reason.would_start_with < reason.slots and reason.starts_s >= now, text
        if found := re.search(r"needs (\d+) slots?.*?, (\d+) (?:is|are) free", text):
            assert int(found[1]) > int(found[2])
    if reason.cause == Cause.ROOM_KEPT:
        assert scheduler.jobs[reason.in_favour_of].phase == JobPhase.WAITING and reason.in_favour_of != reason.job_id
    if reason.cause == Cause.DUE:
        assert starts(reason.job_id, scheduler.trial().tick(now))
    assert text


@pytest.mark.parametrize("policy", POLICIES, ids=["levels", "first come", "overdue soon"])
@settings(deadline=None)
@given(story=STORIES)
def test_what_is_promised_happens_and_no_sentence_contradicts_another(policy: Policy, story: list[Any]) -> None:
    cluster = play(story, policy)
    scheduler, now = cluster.scheduler, cluster.now
    before = {job_id: (job.phase, job.placement) for job_id, job in scheduler.jobs.items()}
    for job_id, job in list(scheduler.jobs.items()):
        reason = why(scheduler, job_id, now)
        if job.phase in (JobPhase.WAITING, JobPhase.PLACED):
            check_promises(scheduler, reason, now)
            check_sentence(scheduler, reason, now)
        elif job.phase == JobPhase.RUNNING and job.request.gang.is_elastic:
            (size,) = reason.sizes
            index = next(number for number, part in enumerate(job.request.gang.parts) if not part.is_driver)
            has, is_to_have = (sum(each[index].values()) for each in (job.used, job.placement))
            assert size == ("workers", has, is_to_have, size[3], size[4])
    assert before == {job_id: (job.phase, job.placement) for job_id, job in scheduler.jobs.items()}, (
        "nothing is changed"
    )


@settings(deadline=None)
@given(story=STORIES)
def test_slots_that_are_late_are_nobody_elses_and_all_comes_to_an_end(story: list[Any]) -> None:
    cluster = play(story, POLICIES[0])
    for _ in range(300):
        if not cluster.scheduler.jobs:
            break
        cluster.later(60.0)
        for job in sorted(set(cluster.shrinking) - set(cluster.leaving)):
            if job in cluster.shrinking:
                cluster.gives_back(job)
        for job in list(cluster.leaving):
            cluster.leaves(job)
        if running := sorted(set(cluster.runs) - set(cluster.leaving)):
            cluster.ended(running[0])
    assert not cluster.scheduler.jobs
    assert cluster.scheduler.nodes.free() == cluster.scheduler.nodes.capacity()
    assert all(held == Resources() for held in cluster.scheduler.promised.values())


def test_an_elastic_job_begins_with_what_there_is_and_is_shrunk_before_others_end() -> None:
    cluster = SlowCluster(POLICIES[0])
    assert cluster.submit("whole", gang(6), queue="one", priority=60) == ["+whole"]
    assert cluster.submit("elastic", gang(8, 2), queue="one") == ["+elastic"]
    assert cluster.runs["elastic"].total() == 4
    assert cluster.submit("urgent", gang(2), queue="one", priority=60) == ["elastic<2"]
    assert cluster.scheduler.jobs["urgent"].phase == JobPhase.PLACED and cluster.runs["elastic"].total() == 4
    assert why(cluster.scheduler, "elastic", 0.0).text(clock) == (
        "workers runs with 4 slots of 2 to 8, and is about to give 2 back"
    )
    assert cluster.gives_back("elastic") == ["+urgent"]
    assert cluster.ended("urgent") == ["elastic=4"]
    assert cluster.ended("whole") == ["elastic=8"]


def test_it_grows_no_further_than_its_queue_may_and_not_past_somebody_who_waits() -> None:
    cluster = SlowCluster(POLICIES[0])
    assert cluster.submit("elastic", gang(8, 2), queue="three") == ["+elastic"]
    assert cluster.runs["elastic"].total() == 4
    assert cluster.submit("waits", gang(2), queue="three", priority=40) == []
    assert cluster.ended("elastic") == ["+waits"]
    cluster = SlowCluster(POLICIES[0])
    cluster.submit("most", gang(7), queue="one", priority=60)
    cluster.submit("elastic", gang(8, 3), queue="one")
    cluster.submit("waits", gang(8), queue="one", priority=40)
    assert cluster.ended("most") == []
    assert Counter(slots(cluster.scheduler.jobs["elastic"].placement)).total() == 3


def test_nothing_is_promised_that_is_kept_for_another() -> None:
    cluster = SlowCluster(POLICIES[1])  # first come, first served
    for job_id, count in (("most", 9), ("first", 4), ("second", 2)):
        cluster.submit(job_id, gang(count), queue="one")
    told = {job_id: why(cluster.scheduler, job_id, 0.0) for job_id in ("first", "second")}
    assert {job_id: reason.would_start_with for job_id, reason in told.items()} == {"first": 0, "second": 1}
    # Submitted anew, the first would be behind the second, for which room is kept then; the first needs none of that node.
    assert told["second"].text(clock).endswith("would start now with 1")
    assert "would start" not in told["first"].text(clock)
