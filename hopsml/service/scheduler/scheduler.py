"""State machine of the scheduler; each method is an event at time ``now``, in seconds of the caller's clock.

A gang is placed as a whole or not at all. Of the queues, the one with the smallest share relative to its weight goes
first. Within a queue the order is: jobs that have waited too long, priority, least attained service (``Policy``), order
of submission.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from hopsml.service.scheduler import taking
from hopsml.service.scheduler.job import JobPhase, QueuedJob, RunningJobs, WaitingLines, Walk
from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.resources import GangRequest, GangShape, Placement, Policy, Queue, Resources
from hopsml.service.scheduler.taking import Hold
from hopsml.storage.backoff import pause_s

FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 1800.0  # after a gang was allocated incompletely
LOOKED_AT = 50  # maximum number of jobs behind a reservation that are checked for overtaking, per pass
DROP_AT = 64  # minimum length of a heap at which entries of ended jobs are removed; doubled from there


@dataclass(frozen=True, slots=True)
class StartJob:
    """Action to start a job.

    ``placement`` maps, for each part of its gang, nodes to numbers of slots.
    """

    job_id: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class PreemptJob:
    """Action to end a job at its next commit or checkpoint.

    The job returns to its place in the queue by the event ``released``.
    """

    job_id: str
    in_favour_of: str


@dataclass(frozen=True, slots=True)
class ResizeJob:
    """Action to continue an elastic job with fewer or more slots, confirmed by the event ``resized``.

    If it loses slots, ``in_favour_of`` is the ID of the job that receives them.
    """

    job_id: str
    placement: Placement
    in_favour_of: str = ""


Action = StartJob | PreemptJob | ResizeJob


class Scheduler:
    """Gang scheduler: state machine of all waiting and running jobs, their queues and the nodes of a cluster."""

    def __init__(self, policy: Policy | None = None, queues: tuple[Queue, ...] = (Queue(),)) -> None:
        self.policy = policy or Policy()
        self.nodes = Nodes()
        self.jobs: dict[str, QueuedJob] = {}
        self.queues: dict[str, Queue] = {}
        self.waiting: dict[str, WaitingLines] = {}
        self.running: dict[str, RunningJobs] = {}
        self.promised: dict[str, Resources] = {}  # queue -> resources promised to its jobs
        self._drivers_mib: dict[str, int] = {}
        self._placed: dict[str, QueuedJob] = {}  # in the order of placement
        self._leaving: set[str] = set()  # jobs that use more than is promised to them, until they have released it
        self.started: dict[str, QueuedJob] = {}  # running jobs, in the order of their start
        self._sequence = 0
        # Tickets break ties: jobs cannot be compared, and a moved job may be in a heap twice with the same time.
        self._tickets = itertools.count()
        self._falls: list[tuple[float, int, int, QueuedJob]] = []  # times of the next level of running jobs
        self._overdue: list[tuple[float, int, int, QueuedJob]] = []  # times at which waiting jobs become overdue
        self._drop_at = [DROP_AT, DROP_AT]  # lengths at which ended jobs are removed from these two
        self._pauses: list[float] = []  # ends of the pauses after incomplete allocations
        self.kept_for = ""  # ID of the job for which the last pass reserved room
        self._protected: list[float] = []  # ends of the protected times of started jobs
        for queue in queues or (Queue(),):
            self.queue(queue)

    # ------------------------------------------------------------------------------------- events

    def queue(self, queue: Queue) -> None:
        """Add a queue or change its settings; the change affects jobs at the next event."""
        self.queues[queue.name] = queue
        self.waiting.setdefault(queue.name, WaitingLines())
        self.running.setdefault(queue.name, RunningJobs())
        self.promised.setdefault(queue.name, Resources())
        self._drivers_mib.setdefault(queue.name, 0)

    def submit(self, request: GangRequest, now: float) -> list[Action]:
        """Add a job, and run a scheduling pass.

        The job must be able to run on this cluster (see ``reasons.why_impossible``), and its queue must exist.
        """
        self._sequence += 1
        job = QueuedJob(request, self._sequence, since_s=now)
        self.jobs[request.job_id] = job
        self._enqueue(job, now)
        return self.tick(now)

    def adopt(self, job: QueuedJob, now: float) -> None:
        """Add a job from an earlier run of the service: with ``used`` it runs there, without it waits.

        ``sequence`` is its position in the order of submission. If the job has not released all slots it has to,
        ``placement`` is what remains without them. No actions are decided before the next event.
        """
        self._sequence = max(self._sequence, job.sequence)
        self.jobs[job.request.job_id] = job
        if not job.used:
            self._enqueue(job, now)
            return
        job.phase, job.placement = JobPhase.RUNNING, job.placement or job.used
        for node in {node for nodes in job.used for node in nodes} - set(self.nodes.rows):
            self.nodes.set_node(node, Resources())  # the node left the cluster, but its jobs may still run
            self.nodes.close(node)
        self._promise(job)
        self.nodes.occupy(job.request.gang, job.used)
        self.running[job.request.queue].add_job(job)
        self.started[job.request.job_id] = job
        self._watch(job)
        heapq.heappush(self._protected, job.started_s + self.policy.least_run_s)
        if job.used != job.placement:
            self._leaving.add(job.request.job_id)

    def cancel(self, job_id: str, now: float) -> list[Action]:
        """Cancel a waiting, placed or running job; the caller must end a running one, and report that by ``ended``."""
        job = self.jobs[job_id]
        job.is_cancelled = True
        if job.phase == JobPhase.WAITING:
            self.waiting[job.request.queue].remove(job)
            del self.jobs[job_id]
        elif job.phase == JobPhase.PLACED:
            self._forget(job)
            del self._placed[job_id], self.jobs[job_id]
        elif job.phase == JobPhase.RUNNING:
            self._stop(job, now)
        return self.tick(now)

    def ended(self, job_id: str, now: float) -> list[Action]:
        """Remove a job that has ended for any reason; no process of it runs."""
        job = self.jobs.pop(job_id)
        if job.phase == JobPhase.RUNNING:
            self._stop(job, now)
        self._leaving.discard(job_id)
        self.nodes.vacate(job.request.gang, job.used)
        return self.tick(now)

    def released(self, job_id: str, now: float) -> list[Action]:
        """Enqueue a preempted job that has released its slots."""
        job = self.jobs[job_id]
        if job.is_cancelled:
            return self.ended(job_id, now)
        if job.phase == JobPhase.RUNNING:
            self._stop(job, now)
        self._leaving.discard(job_id)
        self.nodes.vacate(job.request.gang, job.used)
        job.used, job.since_s = (), now
        self._enqueue(job, now)
        return self.tick(now)

    def requeue_unfilled(self, job_id: str, now: float) -> list[Action]:
        """Enqueue a started job for which the cluster did not allocate all containers.

        The job must have released the containers that it got. It returns to its place in the queue, and is tried again
        after a pause that doubles each time.
        """
        job = self.jobs[job_id]
        job.failed_fills += 1
        job.not_before_s = now + pause_s(job.failed_fills, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        heapq.heappush(self._pauses, job.not_before_s)
        return self.released(job_id, now)

    def resized(self, job_id: str, placement: Placement, now: float) -> list[Action]:
        """Update the slots of a running job, after ``ResizeJob`` or the loss of slots.

        For a job that grows, this event precedes the message to its driver: what the job may take counts as in use.
        """
        job = self.jobs[job_id]
        gang = job.request.gang
        self.nodes.vacate(gang, job.used)
        job.used = placement
        self.nodes.occupy(gang, placement)
        if job.phase == JobPhase.RUNNING:
            self._reshape(job, taking.common_slots(job.placement, placement), now)
            if job.used == job.placement:
                self._leaving.discard(job_id)
        return self.tick(now)

    def tick(self, now: float) -> list[Action]:
        """Return the actions that are due because time has passed or ``nodes`` have changed.

        All other events include it.
        """
        self._advance(now)
        actions: list[Action] = self._start_placed(now)
        while more := self._pass(now):
            actions += more
            if not any(isinstance(action, PreemptJob | ResizeJob) for action in more):
                break  # otherwise more may have been taken than needed, and a job that was skipped may fit now
        return actions + self._grow(now)

    def due_s(self, now: float) -> float:
        """Return the time at which ``tick`` would next find work if no other event occurs; infinite if never."""
        if not any(len(waiting) for waiting in self.waiting.values()):
            return float("inf")
        while self._protected and self._protected[0] <= now:
            heapq.heappop(self._protected)
        while self._pauses and self._pauses[0] <= now:
            heapq.heappop(self._pauses)
        heads = [heap[0][0] for heap in (self._falls, self._overdue) if heap]
        return min([*heads, *self._protected[:1], *self._pauses[:1]], default=float("inf"))

    # ---------------------------------------------------------------------------------- one pass

    def _pass(self, now: float) -> list[Action]:
        """Place waiting jobs in order, take slots for jobs of higher rank, and reserve room for long-waiting jobs."""
        actions: list[Action] = []
        self.kept_for = ""
        kept = _Kept(self)
        walks = {name: waiting.walk() for name, waiting in self.waiting.items() if len(waiting)}
        while (name := self._next_queue(walks)) is not None:
            walk = walks[name]
            job = walk.job
            assert job is not None
            if job.not_before_s > now:
                walk.skip()
                continue
            if not self.is_within_limits(job):
                walk.pass_over()
                continue
            if passes := kept.concerns(job, now):
                placement, taken = kept.place_in_spare_room(job), None
            else:
                placement = self._find(job)
                taken = self._take(job, now) if placement is None else None
            if placement is not None or taken is not None:
                actions += self._carry_out(job, taken, now) if taken else self._put(job, placement or (), now)
                walk.taken()
            elif passes:
                kept.skip(walk, job)
            else:
                waits_long = kept.job is None and job.waits_s(now) >= self.policy.hold_after_s
                if waits_long and self.nodes.could_take(job.request.gang):  # else it waits for nodes, not for jobs
                    kept.job = job
                    self.kept_for = job.request.job_id
                walk.pass_over()
        return actions

    def _next_queue(self, walks: dict[str, Walk]) -> str | None:
        """Return the queue with the smallest share per weight that has jobs left to check; None at the end."""
        left = [name for name, walk in walks.items() if walk.job is not None]
        if len(left) <= 1:
            return left[0] if left else None
        capacity = self.nodes.capacity()
        return min(left, key=lambda name: (self.promised[name].share_of(capacity) / self.queues[name].weight, name))

    def is_within_limits(self, job: QueuedJob) -> bool:
        """Return True if the job's minimum is within the remaining limits of its queue."""
        queue = self.queues[job.request.queue]
        if queue.limit is not None and not self.promised[queue.name].plus(job.request.gang.least).within(queue.limit):
            return False
        drivers_mib = queue.driver_limit_mib
        return drivers_mib is None or self._drivers_mib[queue.name] + job.request.driver_mib <= drivers_mib

    def _find(self, job: QueuedJob) -> Placement | None:
        """Return a placement in free room; None if there is none."""
        if not job.request.gang.least.within(self.nodes.free()):
            return None
        return self.nodes.place(self._within_limit(job))

    def planned_hold(self, job: QueuedJob, now: float) -> Hold | None:
        """Return the reservation that would be made for a waiting job."""
        return taking.make_hold(job, self.nodes, self._placed_or_started(), now, self.policy)

    def start_without_preemption_s(self, job: QueuedJob, now: float) -> float:
        """Return the time at which a waiting job could start if it preempted no others; infinite if unknown."""
        hold = taking.make_hold(job, self.nodes, self._placed_or_started(), now, replace(self.policy, preempts=False))
        return hold.starts_s if hold is not None else float("inf")

    def expected_start_s(self, job: QueuedJob, now: float) -> float:
        """Return when a waiting job could start, if other jobs end by their time limits; infinite if unknown."""
        lenders = [
            name
            for name, promised in self.promised.items()
            if name != job.request.queue and not promised.within(self.queues[name].guaranteed)
        ]
        lenders = lenders if self.is_within_guarantee(job) else []
        hold = taking.make_hold(job, self.nodes, self._placed_or_started(), now, self.policy, lenders)
        return hold.starts_s if hold is not None else float("inf")

    def _placed_or_started(self) -> Iterator[QueuedJob]:
        """Yield running jobs, then placed ones."""
        return chain(self.started.values(), self._placed.values())

    def _within_limit(self, job: QueuedJob) -> GangShape:
        """Return the job's gang with no more slots than its queue's limit leaves."""
        gang, limit = job.request.gang, self.queues[job.request.queue].limit
        if limit is None or not gang.is_elastic:
            return gang
        others = self.promised[job.request.queue].minus(job.holds)
        return gang.shrunk_to_fit(limit.minus(others))

    def _take(self, job: QueuedJob, now: float) -> taking.Taking | None:
        """Choose slots to take from jobs behind this one; also from other queues, up to the guarantee of its queue."""
        if not self.could_take(job):
            return None
        own = self.running[job.request.queue]
        elastic = [other for other in own.elastic.values() if other.rank >= job.rank]
        ended = self._may_be_ended(own.behind(job.rank), now) if self.policy.preempts else iter(())
        if self.is_within_guarantee(job):
            ended = chain(ended, self._reclaimed(job.request.queue, now))
        elastic.sort(key=lambda other: (other.rank, other.sequence), reverse=True)
        return taking.find_taking(job, self.nodes, elastic, ended)

    def could_take(self, job: QueuedJob) -> bool:
        """Return True if free and takeable resources suffice for a job in total, wherever they are."""
        could, own = self.nodes.free(), self.running[job.request.queue]
        if self.policy.preempts:
            could = could.plus(own.resources_behind(job.rank))
        if own.elastic:
            could = could.plus(
                taking.resources_beyond_minimum([other for other in own.elastic.values() if other.rank >= job.rank])
            )
        return job.request.gang.least.within(could) or self.is_within_guarantee(job)

    def is_within_guarantee(self, job: QueuedJob) -> bool:
        """Return True if the job's queue, with the job, stays within its guaranteed resources."""
        queue = self.queues[job.request.queue]
        return self.promised[queue.name].plus(job.request.gang.least).within(queue.guaranteed)

    def _may_be_ended(self, jobs: Iterator[QueuedJob], now: float) -> Iterator[QueuedJob]:
        """Yield the jobs that may be preempted now."""
        return (
            job
            for job in jobs
            if job.request.preemptible and not job.is_overdue and now >= job.started_s + self.policy.least_run_s
        )

    def _reclaimed(self, for_queue: str, now: float) -> Iterator[QueuedJob]:
        """Yield jobs of queues that have more than their guarantee, until each is within it."""
        for name, running in self.running.items():
            left, guaranteed = self.promised[name], self.queues[name].guaranteed
            for job in self._may_be_ended(running.behind((-1, 0, 0)), now) if name != for_queue else ():
                if left.within(guaranteed):
                    break
                left = left.minus(job.holds)
                yield job

    # ------------------------------------------------------------------------- job transitions

    def _enqueue(self, job: QueuedJob, now: float) -> None:
        """Add a job to the waiting jobs of its queue."""
        job.phase, job.since_s = JobPhase.WAITING, now
        self._mark_overdue(job, now)
        self.waiting[job.request.queue].add_job(job)
        self._await_overdue(job)

    def _put(self, job: QueuedJob, placement: Placement, now: float) -> list[Action]:
        """Promise a placement to a job; it starts when that room is no longer in use."""
        self.waiting[job.request.queue].remove(job)
        job.count(now, self.policy)
        job.phase, job.placement = JobPhase.PLACED, placement
        self._promise(job)
        self._placed[job.request.job_id] = job
        return self._start_if_idle(job, now)

    def _start_placed(self, now: float) -> list[Action]:
        """Start placed jobs whose room is free; enqueue those whose nodes were closed or whose room is taken."""
        actions: list[Action] = []
        for job in list(self._placed.values()):
            if all(map(self.nodes.is_open, {node for nodes in job.placement for node in nodes})):
                started = self._start_if_idle(job, now)
                actions += started
                if started or self._leaving:
                    continue
            del self._placed[job.request.job_id]
            job.count(now, self.policy)
            self._forget(job)
            self._enqueue(job, now)
        return actions

    def _start_if_idle(self, job: QueuedJob, now: float) -> list[Action]:
        """Start a placed job if its room is free."""
        if not self.nodes.is_idle(job.request.gang, job.placement):
            return []
        del self._placed[job.request.job_id]
        job.count(now, self.policy)
        job.phase, job.used, job.started_s = JobPhase.RUNNING, job.placement, now
        self.nodes.occupy(job.request.gang, job.used)
        self.running[job.request.queue].add_job(job)
        self.started[job.request.job_id] = job
        self._watch(job)
        heapq.heappush(self._protected, now + self.policy.least_run_s)
        return [StartJob(job.request.job_id, job.placement)]

    def _carry_out(self, job: QueuedJob, taken: taking.Taking, now: float) -> list[Action]:
        """Shrink and end the jobs from which slots are taken, and place the job that receives them."""
        actions: list[Action] = []
        for job_id, left in taken.left.items():
            self._reshape(self.jobs[job_id], left, now)
            self._leaving.add(job_id)
            actions.append(ResizeJob(job_id, left, job.request.job_id))
        for job_id in taken.ended:
            self._stop(self.jobs[job_id], now)
            self.jobs[job_id].preemptions += 1
            actions.append(PreemptJob(job_id, job.request.job_id))
        return actions + self._put(job, taken.placement, now)

    def _stop(self, job: QueuedJob, now: float) -> None:
        """Cancel the promise of a running job's room, which the job uses until it has released it."""
        job.count(now, self.policy)
        job.phase = JobPhase.ENDING
        self._leaving.add(job.request.job_id)
        self.running[job.request.queue].remove(job)
        del self.started[job.request.job_id]
        self._forget(job)

    def _reshape(self, job: QueuedJob, placement: Placement, now: float) -> None:
        """Change the promised placement of a running job."""
        job.count(now, self.policy)
        self._forget(job)
        job.placement = placement
        self._promise(job)
        self.running[job.request.queue].add_job(job)
        self._watch(job)

    def _promise(self, job: QueuedJob) -> None:
        """Count a job's placement as promised."""
        queue = job.request.queue
        self.nodes.promise(job.request.gang, job.placement)
        self.promised[queue] = self.promised[queue].plus(job.holds)
        self._drivers_mib[queue] += job.request.driver_mib

    def _forget(self, job: QueuedJob) -> None:
        """Undo the promise of a job's placement, and clear it."""
        queue = job.request.queue
        self.nodes.forget(job.request.gang, job.placement)
        self.promised[queue] = self.promised[queue].minus(job.holds)
        self._drivers_mib[queue] -= job.request.driver_mib
        job.placement = ()

    def _grow(self, now: float) -> list[Action]:
        """Give elastic jobs the room for which no job waits."""
        actions: list[Action] = []
        elastic = [job for running in self.running.values() for job in running.elastic.values()]
        if not elastic or self._placed or self._anybody_lacks_room(now):
            return actions
        for job in sorted(elastic, key=lambda one: (one.rank, one.sequence)):
            if job.used != job.placement:  # it still has slots to release
                continue
            larger = taking.grown_placement(job, self._within_limit(job), self.nodes)
            if larger is not None and self.nodes.is_idle(
                job.request.gang, taking.remaining_placement(larger, job.placement)
            ):
                self._reshape(job, larger, now)
                actions.append(ResizeJob(job.request.job_id, larger))
        return actions

    def _anybody_lacks_room(self, now: float) -> bool:
        """Return True if a job waits for slots, and not for a pause, for its queue's limit, or for more nodes."""
        for waiting in self.waiting.values():
            walk = waiting.walk()
            while (job := walk.job) is not None:
                if job.not_before_s > now:
                    walk.skip()
                elif self.is_within_limits(job) and self.nodes.could_take(job.request.gang):
                    return True
                else:
                    walk.pass_over()
        return False

    # ------------------------------------------------------------------------------------- a trial

    def trial(self) -> Scheduler:
        """Return an independent copy of the scheduler with the same jobs and nodes."""
        other = Scheduler(self.policy, tuple(self.queues.values()))
        other.nodes, other._sequence = self.nodes.clone(), self._sequence
        for job in sorted(self.jobs.values(), key=lambda one: one.sequence):
            other._copy(replace(job))
        other._placed = {job_id: other.jobs[job_id] for job_id in self._placed}
        other.started = {job_id: other.jobs[job_id] for job_id in self.started}
        other._leaving = set(self._leaving)
        other.promised, other._drivers_mib = dict(self.promised), dict(self._drivers_mib)
        return other

    def _copy(self, job: QueuedJob) -> None:
        """Add a job to a trial, whose promises and usage are already counted."""
        self.jobs[job.request.job_id] = job
        if job.phase == JobPhase.WAITING:
            self.waiting[job.request.queue].add_job(job)
            self._await_overdue(job)
        elif job.phase == JobPhase.RUNNING:
            self.running[job.request.queue].add_job(job)
            self._watch(job)

    # ------------------------------------------------------------------------------------- time

    def _watch(self, job: QueuedJob) -> None:
        """Schedule the next change of level of a running job."""
        at = job.next_level_at_s(self.policy)
        if at < float("inf"):
            heapq.heappush(self._falls, (at, job.sequence, next(self._tickets), job))

    def _await_overdue(self, job: QueuedJob) -> None:
        """Schedule the time at which a waiting job will have waited too long."""
        at = self._overdue_at_s(job)
        if not job.is_overdue and at < float("inf"):
            heapq.heappush(self._overdue, (at, job.sequence, next(self._tickets), job))

    def _advance(self, now: float) -> None:
        """Apply the changes of level, and mark jobs that have waited too long, up to ``now``."""
        self._drop_ended()
        while self._falls and self._falls[0][0] <= now:
            *_, job = heapq.heappop(self._falls)
            if job.phase == JobPhase.RUNNING and job.next_level_at_s(self.policy) <= now:
                job.update_level(now, self.policy)
                self.running[job.request.queue].add_job(job)
                self._watch(job)
        while self._overdue and self._overdue[0][0] <= now:
            *_, job = heapq.heappop(self._overdue)
            if job.phase == JobPhase.WAITING and not job.is_overdue and not job.is_cancelled:
                waiting = self.waiting[job.request.queue]
                waiting.remove(job)
                self._mark_overdue(job, now)
                waiting.add_job(job)

    def _drop_ended(self) -> None:
        """Remove ended jobs from the heaps, which otherwise hold them until their planned time."""
        for number, heap in enumerate((self._falls, self._overdue)):
            if len(heap) >= self._drop_at[number]:
                heap[:] = [entry for entry in heap if self.jobs.get(entry[3].request.job_id) is entry[3]]
                heapq.heapify(heap)
                self._drop_at[number] = 2 * len(heap) + DROP_AT

    def _mark_overdue(self, job: QueuedJob, now: float) -> None:
        """Mark a job that has waited too long by ``now``."""
        job.is_overdue = job.is_overdue or self._overdue_at_s(job) <= now

    def _overdue_at_s(self, job: QueuedJob) -> float:
        """Return the time at which a waiting job will have waited too long."""
        return job.since_s + self.policy.longest_wait_s - job.waited_s


class _Kept:
    """State of one pass: the first job that waited too long without room, and its reservation, created on demand."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._hold: Hold | None = None
        self._is_hopeless = False  # the cluster has no room for it until nodes return
        self._looked_at = 0
        self.job: QueuedJob | None = None

    def concerns(self, other: QueuedJob, now: float) -> bool:
        """Return True if ``other`` may not be placed freely, because it would delay ``job``."""
        scheduler, job = self._scheduler, self.job
        if job is None or job is other:
            return False
        if self._hold is None and not self._is_hopeless:
            if not scheduler.could_take(other):  # it will not start in any case
                return False
            self._hold = scheduler.planned_hold(job, now)
            self._is_hopeless = self._hold is None
        return self._hold is not None and not self._hold.lets_pass(other, now, scheduler.policy)

    def place_in_spare_room(self, other: QueuedJob) -> Placement | None:
        """Return a placement of ``other`` that does not delay ``job``; None if there is none."""
        self._looked_at += 1
        if self._hold is None or not self._fits_at_all(other):
            return None
        return self._hold.place_in_spare_room(self._scheduler.nodes, other)

    def skip(self, walk: Walk, other: QueuedJob) -> None:
        """Move to the next job, which may be shorter, or after ``LOOKED_AT`` attempts to the next kind of gang."""
        if self._looked_at < LOOKED_AT and self._fits_at_all(other):
            walk.skip()
        else:
            walk.pass_over()

    def _fits_at_all(self, other: QueuedJob) -> bool:
        """Return True if the total free resources suffice for a job's minimum."""
        return other.request.gang.least.within(self._scheduler.nodes.free())
