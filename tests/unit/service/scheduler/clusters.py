"""Small clusters and gangs for scheduler tests, with an independent account of what runs."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from hopsml.service.scheduler.resources import GangRequest, GangShape, Policy, Queue, Resources, SlotGroup
from hopsml.service.scheduler.scheduler import Action, PreemptJob, ResizeJob, Scheduler, StartJob

NO_PREEMPTION = Policy(levels_s=(), preempts=False, longest_wait_s=math.inf, hold_after_s=math.inf)
# In order of submission; no job passes one that does not fit.
FIRST_COME = Policy(levels_s=(), preempts=False, longest_wait_s=math.inf, hold_after_s=0.0)
# Priorities alone, at once: no levels, no protection.
BY_PRIORITY = Policy(levels_s=(), least_run_s=0.0, longest_wait_s=math.inf, hold_after_s=math.inf)


def gang(count: int, least: int = 0, gpus: int = 1, label: str = "") -> GangShape:
    return GangShape((SlotGroup("workers", count, Resources(gpus=gpus, cores=gpus), least, label),))


class Cluster:
    """Cluster with GPUs by node; actions are carried out at once, but preempted jobs end only by ``release``."""

    def __init__(
        self, nodes: dict[str, int], policy: Policy = BY_PRIORITY, queues: tuple[Queue, ...] = (Queue(),)
    ) -> None:
        self.scheduler = Scheduler(policy, queues)
        self.capacity = dict(nodes)
        for name, gpus in nodes.items():
            self.scheduler.nodes.set_node(name, Resources(gpus=gpus, cores=gpus))
        self.now = 0.0
        self.runs: dict[str, Counter[str]] = {}
        self.leaving: list[str] = []
        self.gangs: dict[str, GangShape] = {}

    def submit(self, job_id: str, what: GangShape, **more: Any) -> list[str]:
        self.gangs[job_id] = what
        return self.carry_out(self.scheduler.submit(GangRequest(job_id, what, **more), self.now))

    def ended(self, job_id: str) -> list[str]:
        self.runs.pop(job_id)
        if job_id in self.leaving:
            self.leaving.remove(job_id)
        return self.carry_out(self.scheduler.ended(job_id, self.now))

    def release(self, job_id: str) -> list[str]:
        """Report that a preempted job has released its slots."""
        self.runs.pop(job_id)
        self.leaving.remove(job_id)
        return self.carry_out(self.scheduler.released(job_id, self.now))

    def cancel(self, job_id: str) -> list[str]:
        return self.carry_out(self.scheduler.cancel(job_id, self.now))

    def advance(self, seconds: float) -> list[str]:
        self.now += seconds
        return self.carry_out(self.scheduler.tick(self.now))

    def carry_out(self, actions: list[Action]) -> list[str]:
        log = []
        for action in actions:
            match action:
                case StartJob(job_id, placement):
                    assert job_id not in self.runs
                    self.runs[job_id] = slots(placement)
                    log.append(f"+{job_id}")
                case PreemptJob(job_id, _):
                    assert job_id in self.runs and job_id not in self.leaving
                    self.leaving.append(job_id)
                    log.append(f"-{job_id}")
                case ResizeJob(job_id, placement):
                    self.runs[job_id] = slots(placement)
                    log.append(f"{job_id}={sum(self.runs[job_id].values())}")
                    log += self.carry_out(self.scheduler.resized(job_id, placement, self.now))
            self.check()
        return log

    def check(self) -> None:
        """Assert that no node is over capacity and that every gang is complete."""
        used: Counter[str] = Counter()
        for job_id, nodes in self.runs.items():
            part = self.gangs[job_id].parts[0]
            assert part.at_least <= sum(nodes.values()) <= part.count, (job_id, nodes)
            for node, count in nodes.items():
                used[node] += count * part.each.gpus
        assert all(used[node] <= self.capacity.get(node, 0) for node in used), (used, self.capacity)


def slots(placement: Any) -> Counter[str]:
    result: Counter[str] = Counter()
    for nodes in placement:
        result.update(nodes)
    return result
