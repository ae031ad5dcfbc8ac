"""Tests that predicted starts of waiting jobs come true, on random clusters, with late releases of slots."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.service.scheduler import taking
from hopsml.service.scheduler.job import JobPhase, QueuedJob
from hopsml.service.scheduler.reasons import Cause, Reason, why_waiting, with_count
from hopsml.service.scheduler.resources import GangShape, Placement, Policy, Queue, Resources, SlotGroup
from hopsml.service.scheduler.scheduler import Action, PreemptJob, ResizeJob, Scheduler, StartJob
from tests.unit.service.scheduler.clusters import BY_PRIORITY, FIRST_COME, Cluster, gang, slots
from tests.unit.service.scheduler.test_properties import NODES, POLICIES, QUEUES

pytestmark = pytest.mark.fast


class SlowCluster(Cluster):
    """Cluster in which a shrinking job releases its slots only in ``releases_slots``; ``check`` counts them until then."""

    def __init__(self, policy: Policy, queues: tuple[Queue, ...] = QUEUES) -> None:
        super().__init__(NODES, policy, queues)
        self.shrinking: dict[str, Placement] = {}
        self.held: dict[str, Placement] = {}

    def check(self) -> None:
        """Assert that no node is over capacity and that every part of a gang is within its bounds."""
        used: Counter[tuple[str, str]] = Counter()
        for job_id in self.runs:
            for part, nodes in zip(self.gangs[job_id].parts, self.held[job_id], strict=True):
                assert part.at_least <= sum(nodes.values()) <= part.count, (job_id, part, nodes)
                for node, count in nodes.items():
                    used[node, "gpus"] += count * part.each.gpus
                    used[node, "cores"] += count * part.each.cores
        assert all(used[key] <= self.capacity[key[0]] for key in used), used

    def carry_out(self, actions: list[Action]) -> list[str]:
        log = []
        for action in actions:
            if isinstance(action, ResizeJob) and action.in_favour_of:
                assert slots(action.placement) < slots(self.held[action.job_id])
                self.shrinking[action.job_id] = action.placement
                log.append(f"{action.job_id}<{sum(slots(action.placement).values())}")
                self.check()
            else:
                if isinstance(action, PreemptJob):
                    self.shrinking.pop(action.job_id, None)  # it gives all of it back
                else:
                    self.held[action.job_id] = action.placement
                log += super().carry_out([action])
        return log

    def releases_slots(self, job_id: str) -> list[str]:
        """Let a shrinking job release the requested slots."""
        placement = self.shrinking.pop(job_id)
        self.held[job_id], self.runs[job_id] = placement, slots(placement)
        return self.carry_out(self.scheduler.resized(job_id, placement, self.now))

    def ended(self, job_id: str) -> list[str]:
        self.shrinking.pop(job_id, None)
        return super().ended(job_id)

    def fails_to_release(self, job_id: str) -> list[str]:
        """End a shrinking job that has not released its slots in time."""
        del self.shrinking[job_id]
        if job_id in self.leaving:
            self.leaving.remove(job_id)
        self.runs.pop(job_id)
        return self.carry_out(self.scheduler.released(job_id, self.now))

    def unfilled(self, job_id: str) -> list[str]:
        """Report that the cluster did not grant all containers of a job."""
        self.runs.pop(job_id)
        return self.carry_out(self.scheduler.requeue_unfilled(job_id, self.now))


JOBS = st.fixed_dictionaries(
    {
        "count": st.integers(1, 6),
        "least": st.sampled_from([0, 0, 0, 1, 2]),
        "gpus": st.sampled_from([1, 1, 2]),
        "queue": st.sampled_from(["one", "two", "three"]),
        "priority": st.sampled_from([40, 50, 60]),
        "driver": st.booleans(),
        "expected_s": st.sampled_from([20.0, 90.0, 300.0, math.inf]),
        "preemptible": st.booleans(),
    }
)
HISTORIES = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), JOBS),
        st.tuples(st.just("submit"), JOBS),
        st.tuples(st.sampled_from(["end", "give", "fall", "unfilled"]), st.integers(0, 50)),
        st.tuples(st.just("later"), st.floats(0.1, 120.0)),
    ),
    max_size=40,
)


def wanted(detail: dict[str, Any]) -> GangShape:
    workers = gang(detail["count"], min(detail["least"], detail["count"]), detail["gpus"])
    driver = SlotGroup("driver", 1, Resources(cores=1), is_driver=True)
    return GangShape((*workers.parts, driver)) if detail["driver"] else workers


def apply_events(history: list[Any], policy: Policy, queues: tuple[Queue, ...] = QUEUES) -> SlowCluster:
    cluster = SlowCluster(policy, queues)
    for number, (kind, detail) in enumerate(history):
        if kind == "submit":
            if (what := wanted(detail)).least.within(Resources(4, 4)):  # the limit of queue three, the largest node
                more = {name: detail[name] for name in ("queue", "priority", "expected_s", "preemptible")}
                cluster.submit(f"j{number}", what, **more)
        elif kind == "later":
            cluster.advance(detail)
        elif kind == "end" and cluster.runs:
            job = sorted(cluster.runs)[detail % len(cluster.runs)]
            cluster.release(job) if job in cluster.leaving and detail % 2 else cluster.ended(job)
        elif kind == "unfilled":
            if among := sorted(set(cluster.runs) - set(cluster.leaving) - set(cluster.shrinking)):
                cluster.unfilled(among[detail % len(among)])
        elif among := sorted(set(cluster.shrinking) - set(cluster.leaving)):
            job = among[detail % len(among)]
            cluster.releases_slots(job) if kind == "give" else cluster.fails_to_release(job)
    return cluster


def starts(job_id: str, actions: list[Action]) -> bool:
    return any(isinstance(action, StartJob) and action.job_id == job_id for action in actions)


class PredictedCourse:
    """Course of events without new jobs: each job ends at its expected end, and slots are released at once."""

    def __init__(self, cluster: SlowCluster) -> None:
        self._cluster = cluster
        self._ends: dict[str, float] = {}
        self._known = self._turns = 0
        self.started: dict[str, float] = {}
        self.before: dict[str, set[str]] = {}  # started job -> waiting jobs that are ranked behind it

    def until(self, last_s: float) -> None:
        """Play all events up to a moment, inclusive."""
        cluster = self._cluster
        self._settle([])
        while (at := min([*self._ends.values(), cluster.scheduler.due_s(cluster.now)], default=math.inf)) <= last_s:
            self._turns += 1
            assert at >= cluster.now and self._turns < 1000, (at, cluster.now, self._ends)
            cluster.now = at
            self._settle(self._recorded(lambda: cluster.carry_out(cluster.scheduler.tick(at))))
            for job_id in sorted(job_id for job_id, end in self._ends.items() if end <= at):
                if job_id in self._ends:
                    self._settle(self._recorded(lambda job_id=job_id: cluster.ended(job_id)))
        cluster.now = last_s
        self._settle(self._recorded(lambda: cluster.carry_out(cluster.scheduler.tick(last_s))))

    def _settle(self, log: list[str]) -> None:
        cluster, scheduler = self._cluster, self._cluster.scheduler
        while True:
            if cluster.leaving:
                self._recorded(lambda: cluster.release(cluster.leaving[0]))
            elif cluster.shrinking:
                self._recorded(lambda: cluster.releases_slots(sorted(cluster.shrinking)[0]))
            else:
                break
        runs = set(cluster.runs)
        self._ends = {job_id: end for job_id, end in self._ends.items() if job_id in runs}
        for job_id in sorted(runs - set(self._ends)):
            if (end := taking.expected_end_s(scheduler.jobs[job_id], cluster.now)) < math.inf:
                self._known += 1
                self._ends[job_id] = end - 1e-6 * self._known  # one after the other, as in life

    def _recorded(self, act: Callable[[], list[str]]) -> list[str]:
        """Carry out an act, and record the jobs it started and the waiting jobs behind each of them."""
        scheduler = self._cluster.scheduler
        waiting = {job_id: replace(job) for job_id, job in scheduler.jobs.items() if job.phase == JobPhase.WAITING}
        log = act()
        for name in [one[1:] for one in log if one.startswith("+")]:
            self.started.setdefault(name, self._cluster.now)
            started = waiting.get(name)
            self.before[name] = {
                job_id for job_id, job in waiting.items() if started is None or _goes_before(started, job)
            }
        return log


def _goes_before(one: QueuedJob, other: QueuedJob) -> bool:
    """Compare two jobs by rank within a queue; between queues, whose order depends on shares, return True."""
    if one.request.queue != other.request.queue:
        return True
    return (one.rank, one.sequence) < (other.rank, other.sequence)


def clock(at: float) -> str:
    return f"{at:g}"


def check_promises(scheduler: Scheduler, reason: Reason, now: float) -> None:
    """Assert that each remedy in a reason makes the job start."""
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
    """Assert that the parts of a reason text are consistent."""
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
@given(history=HISTORIES)
def test_predicted_remedies_work_and_reason_texts_are_consistent(policy: Policy, history: list[Any]) -> None:
    cluster = apply_events(history, policy)
    scheduler, now = cluster.scheduler, cluster.now
    before = {job_id: (job.phase, job.placement) for job_id, job in scheduler.jobs.items()}
    for job_id, job in list(scheduler.jobs.items()):
        reason = why_waiting(scheduler, job_id, now)
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


@pytest.mark.parametrize("policy", POLICIES, ids=["levels", "first come", "overdue soon"])
@settings(deadline=None)
@given(history=HISTORIES)
def test_predicted_start_of_a_held_job_is_delayed_only_by_jobs_of_higher_rank(
    policy: Policy, history: list[Any]
) -> None:
    """No other job takes the held slots; other jobs start no earlier than predicted unless they preempt."""
    cluster = apply_events(history, policy)
    scheduler, now = cluster.scheduler, cluster.now
    cluster.carry_out(scheduler.tick(now))
    held_for = scheduler.kept_for
    reasons = {job_id: why_waiting(scheduler, job_id, now) for job_id in list(scheduler.jobs)}
    promised = {
        job_id: reason.starts_s
        for job_id, reason in reasons.items()
        if reason.cause == Cause.NO_ROOM
        and reason.starts_s < math.inf
        # What a queue reclaims from others depends on their later usage: only the earliest time is predicted.
        and not scheduler.is_within_guarantee(scheduler.jobs[job_id])
    }
    followed = PredictedCourse(cluster)
    for job_id, starts_s in sorted(promised.items(), key=lambda pair: pair[1]):
        followed.until(starts_s)
        if job_id == held_for and followed.started.get(job_id, math.inf) > starts_s:
            passed_by = [other for other, behind in followed.before.items() if job_id in behind]
            before = scheduler.jobs.get(
                scheduler.kept_for
            )  # it goes first now: what its queue has of its share has changed
            passed_by += [before.request.job_id] if before and _goes_before(before, scheduler.jobs[job_id]) else []
            assert passed_by, (reasons[job_id].text(clock), followed.started)


EQUALS = st.fixed_dictionaries(
    {
        "count": st.integers(1, 4),
        "least": st.sampled_from([0, 0, 0, 1]),
        "gpus": st.sampled_from([1, 1, 2]),
        "expected_s": st.sampled_from([20.0, 50.0, 90.0, 300.0]),
        "driver": st.just(False),
        "preemptible": st.booleans(),
        "priority": st.sampled_from([40, 50]),
    }
)
NO_GUARANTEES = tuple(replace(queue, guaranteed=Resources()) for queue in QUEUES)
PREEMPTING = Policy(levels_s=(40.0,), least_run_s=25.0, longest_wait_s=1e9, hold_after_s=0.0)


def _submit(cluster: SlowCluster, job_id: str, detail: dict[str, Any], priority: int) -> None:
    more = {name: detail[name] for name in ("expected_s", "preemptible")}
    cluster.submit(job_id, wanted(detail), queue="one", priority=priority, **more)


@pytest.mark.parametrize("policy", [POLICIES[1], PREEMPTING], ids=["first come", "preempting"])
@settings(deadline=None, max_examples=150)
@given(
    first=st.lists(EQUALS, min_size=4, max_size=10),
    later=st.lists(st.tuples(st.floats(0.0, 60.0), EQUALS), min_size=3, max_size=10),
)
def test_jobs_submitted_after_a_prediction_do_not_delay_it(policy: Policy, first: list[Any], later: list[Any]) -> None:
    """Small jobs of equal or lower rank may pass a large one only if it still starts at its predicted time or before."""
    cluster = SlowCluster(policy)
    for number, detail in enumerate(first):
        _submit(cluster, f"j{number}", detail, priority=50)
    held_for = cluster.scheduler.kept_for
    if not held_for:
        return
    reason = why_waiting(cluster.scheduler, held_for, cluster.now)
    if reason.starts_s == math.inf:  # no node is large enough
        return
    followed = PredictedCourse(cluster)
    for number, (at_s, detail) in enumerate(sorted(later, key=lambda pair: pair[0])):
        if at_s < reason.starts_s:
            followed.until(at_s)
            _submit(cluster, f"late{number}", detail, detail["priority"])
    followed.until(reason.starts_s)
    assert followed.started.get(held_for, math.inf) <= reason.starts_s, (reason.text(clock), followed.started)


@settings(deadline=None)
@given(history=HISTORIES)
def test_no_job_starts_before_its_predicted_time_and_backoff_ends_when_stated(history: list[Any]) -> None:
    plain = [(kind, {**detail, "least": 0} if kind == "submit" else detail) for kind, detail in history]
    cluster = apply_events(plain, POLICIES[1], NO_GUARANTEES)  # no job preempts or shrinks
    scheduler, now = cluster.scheduler, cluster.now
    cluster.carry_out(scheduler.tick(now))
    reasons = {job_id: why_waiting(scheduler, job_id, now) for job_id in list(scheduler.jobs)}
    followed = PredictedCourse(cluster)
    for job_id, reason in sorted(reasons.items(), key=lambda pair: pair[1].starts_s):
        if reason.starts_s == math.inf or job_id not in scheduler.jobs:
            continue
        if reason.cause == Cause.NO_ROOM and reason.starts_s - 1e-3 > cluster.now:
            followed.until(reason.starts_s - 1e-3)
            assert job_id not in followed.started, reason.text(clock)
        if reason.cause == Cause.PUT_OFF:
            followed.until(reason.starts_s)
            assert job_id not in scheduler.jobs or why_waiting(scheduler, job_id, cluster.now).cause != Cause.PUT_OFF


@settings(deadline=None)
@given(history=HISTORIES)
def test_slots_released_late_are_not_assigned_twice_and_all_jobs_end(history: list[Any]) -> None:
    cluster = apply_events(history, POLICIES[0])
    for _ in range(300):
        if not cluster.scheduler.jobs:
            break
        cluster.advance(60.0)
        for job in sorted(set(cluster.shrinking) - set(cluster.leaving)):
            if job in cluster.shrinking:
                cluster.releases_slots(job)
        for job in list(cluster.leaving):
            cluster.release(job)
        if running := sorted(set(cluster.runs) - set(cluster.leaving)):
            cluster.ended(running[0])
    assert not cluster.scheduler.jobs
    assert cluster.scheduler.nodes.free() == cluster.scheduler.nodes.capacity()
    assert all(held == Resources() for held in cluster.scheduler.promised.values())


def test_stream_of_short_preemptible_jobs_does_not_starve_a_large_job() -> None:
    """There is always one short job that has just started and is still protected."""
    policy = Policy(levels_s=(), least_run_s=300.0, hold_after_s=600.0)
    cluster = Cluster({"a": 8}, policy)
    cluster.submit("short0", gang(1), priority=40)
    assert cluster.submit("large", gang(8), priority=60) == []
    for number in range(1, 60):
        cluster.advance(40.0)
        cluster.submit(f"short{number}", gang(1), priority=40)
        if cluster.leaving or "large" in cluster.runs:
            break
        if number >= 6 and f"short{number - 6}" in cluster.runs:
            cluster.ended(f"short{number - 6}")
    while cluster.leaving:
        cluster.release(cluster.leaving[0])
    assert "large" in cluster.runs and cluster.now <= policy.hold_after_s + policy.least_run_s + 80.0


def test_skipped_job_gets_the_surplus_slots_of_a_preemption() -> None:
    """Queue "two" is served first and finds no slots; "one" then preempts more than it needs."""
    queues = (Queue("one"), Queue("two"))
    cluster = Cluster({"a": 4}, BY_PRIORITY, queues)
    cluster.submit("low", gang(4), queue="one", priority=40)
    assert cluster.submit("other", gang(2), queue="two") == []
    assert cluster.submit("urgent", gang(1), queue="one", priority=60) == ["-low"]
    assert why_waiting(cluster.scheduler, "other", 0.0).cause == Cause.LEAVING
    assert cluster.release("low") == ["+urgent", "+other"]


def test_reclaimable_guarantee_of_a_queue_counts_in_the_predicted_start() -> None:
    """``long`` is protected for five minutes, and its duration is unknown."""
    queues = (Queue("one"), Queue("two", guaranteed=Resources(gpus=2, cores=2)))
    cluster = Cluster({"a": 4}, FIRST_COME, queues)
    cluster.submit("long", gang(4), queue="one")
    cluster.submit("waits", gang(2), queue="two")
    text = why_waiting(cluster.scheduler, "waits", 0.0).text(clock)
    assert text.endswith("preempts other jobs about 300, or starts when they end earlier")
    assert cluster.advance(300.0) == ["-long"]


def test_job_too_large_for_the_cluster_does_not_prevent_holds_for_others() -> None:
    cluster = Cluster({"a": 4, "b": 4}, FIRST_COME)
    cluster.submit("runs", gang(1), expected_s=50.0)
    assert cluster.submit("needs a third node", gang(12)) == []
    assert cluster.submit("needs both", gang(8)) == []
    assert cluster.submit("long", gang(1), expected_s=1000.0) == []
    assert (
        why_waiting(cluster.scheduler, "long", 0.0).text(clock)
        == "slots are reserved for needs both, which has precedence"
    )
    assert cluster.ended("runs") == ["+needs both"]


def test_elastic_job_grows_if_the_only_waiting_job_exceeds_the_cluster() -> None:
    cluster = Cluster({"a": 4}, FIRST_COME)
    cluster.submit("short", gang(2))
    assert cluster.submit("elastic", gang(4, 1)) == ["+elastic"]
    assert cluster.submit("needs two nodes", gang(8)) == []
    assert cluster.ended("short") == ["elastic=4"]


def test_elastic_job_starts_with_the_free_slots_and_shrinks_before_others_are_preempted() -> None:
    cluster = SlowCluster(POLICIES[0])
    assert cluster.submit("whole", gang(6), queue="one", priority=60) == ["+whole"]
    assert cluster.submit("elastic", gang(8, 2), queue="one") == ["+elastic"]
    assert cluster.runs["elastic"].total() == 4
    assert cluster.submit("urgent", gang(2), queue="one", priority=60) == ["elastic<2"]
    assert cluster.scheduler.jobs["urgent"].phase == JobPhase.PLACED and cluster.runs["elastic"].total() == 4
    assert why_waiting(cluster.scheduler, "elastic", 0.0).text(clock) == (
        "workers runs with 4 slots of 2 to 8, and has to release 2"
    )
    limit = {"elastic": 5.0, "whole": 6.0}
    assert why_waiting(cluster.scheduler, "urgent", 0.0, limit).text(lambda at: f"t={at:g}") == (
        "its slots are assigned, but other jobs must release them first; elastic has to release 2 by t=5 at the latest"
    )
    assert why_waiting(cluster.scheduler, "elastic", 0.0, limit).text(lambda at: f"t={at:g}") == (
        "workers runs with 4 slots of 2 to 8, and has to release 2, or is stopped at t=5"
    )
    assert cluster.releases_slots("elastic") == ["+urgent"]
    assert cluster.ended("urgent") == ["elastic=4"]
    assert cluster.ended("whole") == ["elastic=8"]


def test_elastic_job_grows_only_to_its_queue_limit_and_not_past_waiting_jobs() -> None:
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


def test_slots_reserved_for_another_job_are_not_offered_in_a_prediction() -> None:
    cluster = SlowCluster(POLICIES[1])  # first come, first served
    for job_id, count in (("most", 9), ("first", 4), ("second", 2)):
        cluster.submit(job_id, gang(count), queue="one")
    predicted = {job_id: why_waiting(cluster.scheduler, job_id, 0.0) for job_id in ("first", "second")}
    assert {job_id: reason.would_start_with for job_id, reason in predicted.items()} == {"first": 0, "second": 1}
    # Submitted again, the first would be behind the second, which would get the reserved slots.
    assert predicted["second"].text(clock).endswith("would start now with 1")
    assert "would start" not in predicted["first"].text(clock)
