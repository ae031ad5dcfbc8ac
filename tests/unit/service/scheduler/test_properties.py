"""Tests of the scheduler's invariants: never over capacity, no partial gangs, no endless waits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.service.scheduler.job import JobPhase, QueuedJob
from hopsml.service.scheduler.resources import GangRequest, Policy, Queue, Resources
from tests.unit.service.scheduler.clusters import Cluster, gang

pytestmark = pytest.mark.fast
NODES = {"a": 4, "b": 4, "c": 2}
QUEUES = (
    Queue("one", weight=2.0),
    Queue("two", guaranteed=Resources(gpus=3, cores=3)),
    Queue("three", limit=Resources(gpus=4, cores=4)),
)
POLICIES = (
    Policy(levels_s=(40.0, 200.0), least_run_s=5.0, longest_wait_s=400.0, hold_after_s=30.0),
    Policy(levels_s=(), preempts=False, longest_wait_s=1e9, hold_after_s=0.0),
    Policy(levels_s=(100.0,), least_run_s=0.0, longest_wait_s=50.0, hold_after_s=1e9),
)

jobs = st.fixed_dictionaries(
    {
        "count": st.integers(1, 4),
        "gpus": st.sampled_from([1, 1, 2]),
        "elastic": st.booleans(),
        "queue": st.sampled_from(["one", "two", "three"]),
        "priority": st.sampled_from([40, 50, 60]),
        "preemptible": st.booleans(),
        "expected_s": st.sampled_from([10.0, 100.0, 1e9]),
    }
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), jobs),
        st.tuples(st.sampled_from(["end", "leave", "cancel", "unfilled", "lose"]), st.integers(0, 50)),
        st.tuples(st.just("later"), st.floats(0.1, 120.0)),
        st.tuples(st.sampled_from(["close", "open"]), st.sampled_from("abc")),
    ),
    max_size=60,
)


def apply_events(history: list[Any], policy: Policy) -> tuple[Cluster, list[str]]:
    """Apply events and return the log; ``Cluster`` asserts its invariants after each action."""
    cluster, log, number = Cluster(NODES, policy, QUEUES), [], 0
    for kind, detail in history:
        if kind == "submit":
            number += 1
            what = gang(detail["count"], 1 if detail["elastic"] else 0, detail["gpus"])
            if what.least.gpus <= 4:  # the limit of queue three, and the largest node for two
                named = {key: detail[key] for key in ("queue", "priority", "preemptible", "expected_s")}
                log += cluster.submit(f"j{number}", what, **named)
        elif kind == "later":
            log += cluster.advance(detail)
        elif kind == "close":
            cluster.scheduler.nodes.close(detail)
        elif kind == "open":
            cluster.scheduler.nodes.set_node(detail, Resources(gpus=NODES[detail], cores=NODES[detail]))
        else:
            log += apply_event(cluster, kind, detail)
    return cluster, log


def apply_event(cluster: Cluster, kind: str, which: int) -> list[str]:
    """Apply an event to one of the jobs it is possible for."""
    running = sorted(set(cluster.runs) - set(cluster.leaving))
    known = {"end": sorted(cluster.runs), "leave": sorted(cluster.leaving), "unfilled": running, "lose": running}
    among = known.get(kind, sorted(set(cluster.scheduler.jobs) - set(cluster.leaving)))
    if not among:
        return []
    job = among[which % len(among)]
    if kind == "end":
        return cluster.ended(job)
    if kind == "leave":
        return cluster.release(job)
    if kind == "cancel":
        log = cluster.cancel(job)
        if job in cluster.runs and job not in cluster.leaving:
            cluster.leaving.append(job)
        return log
    if kind == "unfilled":
        cluster.runs.pop(job)
        return cluster.carry_out(cluster.scheduler.requeue_unfilled(job, cluster.now))
    part = cluster.gangs[job].parts[0]
    if sum(cluster.runs[job].values()) <= part.at_least:
        return []
    node = sorted(cluster.runs[job])[0]
    cluster.runs[job][node] -= 1
    left = {name: count for name, count in cluster.runs[job].items() if count}
    return cluster.carry_out(cluster.scheduler.resized(job, (left,), cluster.now))


def finish(cluster: Cluster) -> None:
    """Restore all nodes and end running jobs until every waiting job has run."""
    for node, gpus in NODES.items():
        cluster.scheduler.nodes.set_node(node, Resources(gpus=gpus, cores=gpus))
    for _ in range(1000):
        if not cluster.scheduler.jobs:
            return
        cluster.advance(60.0)
        for job in list(cluster.leaving):
            cluster.release(job)
        running = sorted(set(cluster.runs) - set(cluster.leaving))
        if running:
            cluster.ended(running[0])
    raise AssertionError({job_id: job.phase for job_id, job in cluster.scheduler.jobs.items()})


@pytest.mark.parametrize("policy", POLICIES, ids=["levels", "first come", "overdue soon"])
@settings(deadline=None)
@given(history=events)
def test_random_events_keep_queue_limits_and_all_jobs_end(policy: Policy, history: list[Any]) -> None:
    cluster, _ = apply_events(history, policy)
    scheduler = cluster.scheduler
    for queue in QUEUES:
        if queue.limit is not None:
            assert scheduler.promised[queue.name].within(queue.limit)
    finish(cluster)
    nodes = scheduler.nodes
    assert nodes.free() == nodes.capacity()
    assert all(held == Resources() for held in scheduler.promised.values())


@given(since_s=st.floats(0.0, 1e10), attained_s=st.floats(0.0, 99.9), gpus=st.integers(1, 7))
def test_job_reaches_its_next_level_at_the_due_time(since_s: float, attained_s: float, gpus: int) -> None:
    policy = Policy(levels_s=(100.0,))
    request = GangRequest("job", gang(gpus))
    job = QueuedJob(request, 1, since_s, JobPhase.RUNNING, attained_s=attained_s, placement=({"a": gpus},))
    due: list[float] = []
    while job.level == 0:
        due.append(job.next_level_at_s(policy))
        assert due == sorted(set(due)), "it would be due again at once, for ever"
        job.update_level(due[-1], policy)
    assert len(due) <= 3


@settings(deadline=None)
@given(history=events)
def test_equal_events_give_equal_actions(history: list[Any]) -> None:
    assert apply_events(history, POLICIES[0])[1] == apply_events(history, POLICIES[0])[1]
