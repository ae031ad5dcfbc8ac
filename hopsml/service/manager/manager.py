"""Reconciliation loop of the job service.

Each pass applies user requests, polls the engine, advances each job's state machine and runs a scheduling pass. A job's
record is stored before its consequences are carried out. If a record cannot be stored, its consequences are postponed
to the next pass.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from hopsml.core import profiles
from hopsml.core.processes import has_named_process_ended
from hopsml.core.profiles import Profile
from hopsml.core.states import Lifecycle
from hopsml.errors import StoreError
from hopsml.service import autoscaler, lifecycle
from hopsml.service.autoscaler import ScalingView
from hopsml.service.engine import Engine, EngineState, SubmitOrder
from hopsml.service.lifecycle import Ending, EngineSnapshot, JobRecord, NextStep, TaskLaunch
from hopsml.service.lifecycle.record import ended_tags, stray_applications
from hopsml.service.manager import requests
from hopsml.service.manager.requests import ManagedJob, store_due_jobs
from hopsml.service.scheduler import cluster_status, reasons
from hopsml.service.scheduler.cluster_status import Demand, NodeStatus, QueueStatus
from hopsml.service.scheduler.job import QueuedJob
from hopsml.service.scheduler.reasons import Cause, Reason
from hopsml.service.scheduler.resources import Placement, Policy, Queue, Resources
from hopsml.service.scheduler.scheduler import Action, PreemptJob, ResizeJob, Scheduler, StartJob
from hopsml.service.spec import JobSpec
from hopsml.service.store import JobRow, JobStore, RequestKind, RequestRow, StaleRecord
from hopsml.service.store.rows import Account, Leader
from hopsml.service.store.schedules import Schedules
from hopsml.service.workspaces import Workspaces
from hopsml.submission import SubmissionPlan

log = logging.getLogger("hopsml.service")

TURN_S = 1.0  # between two polls of the engine
LEASE_S = 30.0  # of the leader's lease; a poll may last as long as the timeout of the ResourceManager


class Manager:
    """Manager of all jobs of one database on one engine.

    ``run_pass`` must be called by a single thread; the query methods may be called by any thread.
    """

    def __init__(
        self,
        store: JobStore,
        engine: Engine,
        workspaces: Workspaces,
        *,
        profile: str,
        prefix: str,
        holder: str,
        address: str = "",
        policy: Policy | None = None,
        queues: tuple[Queue, ...] = (Queue(),),
        clock: Callable[[], float] = time.time,
        lease_s: float = LEASE_S,
    ) -> None:
        """Initialize a manager that does not lead yet and has not loaded any jobs.

        Args:
            store: Database of jobs.
            engine: Engine that runs applications.
            workspaces: Store of uploaded code.
            profile: Name of the profile with which drivers are submitted.
            prefix: Prefix of all application tags of this service.
            holder: Identity of this process as a candidate for the leader's lease.
            address: Address at which users reach this server.
            policy: Scheduling policy; default ``Policy()``.
            queues: Configured queues.
            clock: Function that returns the wall-clock time, in seconds since 1970.
            lease_s: Duration of the leader's lease, in seconds.
        """
        self._store, self._engine, self._workspaces = store, engine, workspaces
        self._schedules = Schedules(store)
        self._profile: Profile = profiles.load(profile)
        self.prefix, self._holder, self._address = prefix, holder, address
        self._policy, self._queues, self._clock, self._lease_s = policy, queues, clock, lease_s
        self._lock = threading.RLock()
        self._jobs: dict[int, ManagedJob] = {}
        self._not_understood: dict[int, tuple[TaskLaunch, ...]] = {}  # jobs whose files another version of hopsml wrote
        self._scheduler = Scheduler(policy, queues)
        self._newest = 0  # the serial up to which jobs are known
        self._is_loaded = False
        self._there: dict[str, Resources] = {}  # nodes that the engine listed -> their capacity
        self._scaling = ScalingView()
        self.leader: Leader | None = None
        self._leads_until = 0.0  # in monotonic time, because the wall clock may be set back
        self.problem = ""  # error of the last poll of the engine
        self._unreadable_since: float | None = None  # monotonic seconds; None if the last poll was answered

    @property
    def leads(self) -> bool:
        """True if this process is the leader, which runs the jobs."""
        return self.leader is not None and self.leader.holder == self._holder

    def _lead(self) -> Leader:
        """Return this server's lease.

        Raises:
            StaleRecord: This server has no lease, or it has expired, so that another server may lead.
        """
        lead = self.leader
        if lead is None or not self.leads or self._clock() >= lead.until_s or time.monotonic() >= self._leads_until:
            raise StaleRecord("the lead")
        return lead

    def term(self) -> int:
        """Return the term of this server's lease; 0 if it has expired or the database has a newer one.

        Raises:
            StoreError: The database cannot be read.
        """
        try:
            lead = self._lead()
        except StaleRecord:
            return 0
        return lead.term if self._store.still_leads(lead) else 0

    # ------------------------------------------------------------------------------------------ a turn

    def run_pass(self) -> None:
        """Run one pass of the reconciliation loop.

        After an error the cached state is dropped, and the next pass starts from what is stored.

        Raises:
            StoreError: The database cannot be read or written.
        """
        try:
            self._turn()
        except StaleRecord as stale:
            log.warning("%s was changed by another server, or ran out: all jobs are read again", stale)
            self._forget()
        except BaseException:
            self._forget()
            raise

    def _turn(self) -> None:
        """Renew the lease, poll the engine and, as the leader, advance all jobs."""
        self._renew()
        if not self.leads:
            return
        look = self._engine.poll()
        if not self._store.still_leads(self._lead()):  # else a newer leader's applications look stray
            raise StaleRecord("the lead")
        with self._lock:
            now = self._clock()
            look = self._with_problem(look)
            if look.nodes is not None:
                self._note_nodes(look)
            if not self._is_loaded and (look.nodes is not None or look.sight.unreadable_s > lifecycle.UNREADABLE_S):
                self._load(now)
            if self._is_loaded:
                self._go_on(look, now)

    def _with_problem(self, look: EngineState) -> EngineState:
        """Record the error of an engine that does not answer; return the state with its duration."""
        self.problem, now = look.problem, time.monotonic()
        self._unreadable_since = (self._unreadable_since or now) if look.problem else None
        lasted_s = 0.0 if self._unreadable_since is None else now - self._unreadable_since
        return replace(look, sight=replace(look.sight, problem=look.problem, unreadable_s=lasted_s))

    def _renew(self) -> None:
        """Acquire or renew the lease. Cached state is valid only under the lease under which it was read."""
        term, asked = 0, time.monotonic()
        with contextlib.suppress(StaleRecord):
            term = self._lead().term
        self.leader = self._store.acquire_lease(
            self._holder, self._address, self._clock(), self._lease_s, has_named_process_ended, term
        )
        self._leads_until = asked + self._lease_s
        if not self.leads or self.leader.term != term:
            self._forget()
            self._engine.forget_granted_slots()

    def _forget(self) -> None:
        """Drop the cached jobs and the scheduler's state; the known nodes are retained."""
        with self._lock:
            nodes = self._scheduler.nodes.without_usage()
            self._jobs, self._scheduler, self._newest, self._is_loaded = (
                {},
                Scheduler(self._policy, self._queues),
                0,
                False,
            )
            self._scheduler.nodes = nodes
            self._not_understood.clear()

    def _load(self, now: float) -> None:
        """Load all jobs that have not ended, from an earlier run of this server or from another server."""
        rows = self._store.living()
        launches = self._store.launches(row.serial for row in rows)
        for row in rows:
            self._take(row, launches[row.serial], now)
        self._is_loaded = True
        log.info("%d jobs that are not over", len(rows))

    def _take(self, row: JobRow, launches: tuple[TaskLaunch, ...], now: float) -> None:
        """Add a job to the managed jobs and, unless it is paused, to the scheduler."""
        self._newest = max(self._newest, row.serial)
        try:
            job = ManagedJob.of(row, launches)
        except ValueError as error:  # accepted by another version, which may return
            log.error("%s is left alone: its job file is not understood here: %s", row.id, error)
            self._not_understood[row.serial] = launches
            return
        self._jobs[row.serial] = job
        if job.record.state != Lifecycle.PAUSED:
            self._scheduler.adopt(self._queued(job, now), now)

    def _queued(self, job: ManagedJob, now: float) -> QueuedJob:
        """Return a job in the form that the scheduler adopts."""
        row, record = job.row, job.record
        self._check_queue(row.queue)
        used = requests.placement_of(row.placement) if record.holds_slots else ()
        target = requests.placement_of(row.target) if used and record.shrinking_since_s else ()
        return QueuedJob(
            requests.gang_request(row.id, row.owner, row.queue, row.priority, job.spec, self._engine),
            row.serial,
            since_s=record.placed_s if used else record.ending_since_s if record.tries else row.submitted_s,
            attained_s=row.attained_s,
            waited_s=row.waited_s,
            failed_fills=row.failed_fills,
            preemptions=record.preemptions,
            used=used,
            placement=target,
            started_s=record.placed_s,
        )

    def _check_queue(self, name: str) -> None:
        """Create a queue that is not configured, with default values, so that its jobs are still scheduled."""
        if name not in self._scheduler.queues:
            self._scheduler.queue(Queue(name))

    def _go_on(self, look: EngineState, now: float) -> None:
        """Start due schedules, apply requests, advance the jobs, kill strays and run a scheduling pass."""
        store_due_jobs(self._schedules, self._lead(), now)
        self._take_new(now)
        for wish in self._store.open_requests():
            self._grant(wish, now)
        for job in list(self._jobs.values()):
            self._step(job, look.sight, now)
        self._lead()
        living = self._living()
        for stray in stray_applications(look.sight, living):
            log.warning("%s bears our tag and belongs to no job that runs: it is killed", stray)
            self._engine.kill(stray)
        for tag in ended_tags(look.sight, living):
            self._engine.forget(tag)
        if not look.problem:  # what is placed now could not be observed
            self._carry_out(self._scheduler.tick(now), now)

    def _living(self) -> dict[str, str]:
        """Return tag -> application ID of all launches that may still run."""
        known = [*(job.record.launches for job in self._jobs.values()), *self._not_understood.values()]
        return {one.tag: one.application_id for launches in known for one in launches if not one.state.is_final}

    def _take_new(self, now: float) -> None:
        """Load the jobs that were submitted since the last pass."""
        rows = self._store.new({*self._jobs, *self._not_understood}, self._newest)
        launches = self._store.launches(row.serial for row in rows)
        for row in rows:
            self._take(row, launches[row.serial], now)

    def _note_nodes(self, look: EngineState) -> None:
        """Update the scheduler's nodes; usage not caused by this service's jobs counts as other tenants' usage."""
        nodes, seen = self._scheduler.nodes, {node.name: node for node in look.nodes or ()}
        for gone in nodes.rows.keys() - seen.keys():
            nodes.remove_capacity(gone)
        ours = self._used_by_node()
        self._there = {node.name: node.capacity for node in seen.values()}
        for node in seen.values():
            is_open = node.is_open and node.name not in self._scaling.closed
            nodes.set_node(node.name, node.capacity, node.label, is_open=is_open)
            others = node.used.minus(ours.get(node.name, Resources()))
            nodes.others(node.name, Resources(max(0, others.gpus), max(0, others.cores), max(0, others.memory_mib)))

    def _used_by_node(self) -> dict[str, Resources]:
        """Return the resources that this service's jobs use on each node."""
        found: dict[str, Resources] = {}
        for job in self._scheduler.jobs.values():
            for node, amount in cluster_status.resources_by_node(job, job.used).items():
                found[node] = found.get(node, Resources()).plus(amount)
        return found

    # ------------------------------------------------------------------------------------------ one job

    def _step(self, job: ManagedJob, sight: EngineSnapshot, now: float) -> None:
        """Advance a job's state machine by one engine snapshot."""
        self._follow(job, lifecycle.step(job.record, sight, self.prefix, now), now)

    def _follow(self, job: ManagedJob, step: NextStep, now: float, placement: Placement = ()) -> None:
        """Store a job's new record, then carry out its consequences.

        Args:
            job: The job.
            step: The new record and its consequences.
            now: Time in seconds since 1970.
            placement: New placement of the job; empty if the scheduler's one applies.

        Raises:
            StaleRecord: The lease is not the newest one.
        """
        before, lead = job.record, self._lead()
        account = self._account(job, step.record, placement)
        if _is_news(before, step.record):
            stored = self._store.save(before, step.record, lead, now, account)
            job.record, job.row = stored, replace(job.row, **asdict(account), tries=stored.tries)
            if (before.state, before.cause) != (stored.state, stored.cause):
                log.info("%s: %s: %s", job.id, stored.state, stored.cause)
        else:
            job.record = step.record  # only volatile fields changed, which are not stored
        for launch in step.submit:
            self._engine.submit(self._order(job, launch, lead))
        for tag in step.withdraw:
            self._engine.withdraw(tag)
        for application, slots in step.tell:
            self._engine.grant_slots(application, slots)
        for application in step.ask:
            self._engine.request_end(application)
        for application in step.kill:
            self._engine.kill(application)
        self._carry_out(self._told(job, before, now), now)
        if job.record.state.is_final:
            del self._jobs[job.row.serial]

    def _account(self, job: ManagedJob, after: JobRecord, placement: Placement = ()) -> Account:
        """Return a job's scheduling account, which is stored together with its record ``after``."""
        queued = self._scheduler.jobs.get(job.id)
        if queued is None:
            return Account(job.row.attained_s, job.row.waited_s, job.row.failed_fills, None)
        kept = placement or (queued.placement if _has_shrunk(job.record, after) else queued.used)
        target = queued.placement if after.shrinking_since_s else ()
        stored = [[dict(nodes) for nodes in each] or None for each in (kept, target)]
        return Account(queued.attained_s, queued.waited_s, queued.failed_fills, *stored)

    def _told(self, job: ManagedJob, before: JobRecord, now: float) -> list[Action]:
        """Report a job's change of state to the scheduler, and return the resulting actions."""
        after = job.record
        if _has_shrunk(before, after):
            return self._scheduler.resized(job.id, self._scheduler.jobs[job.id].placement, now)
        if before.holds_slots and not after.holds_slots:
            if after.state != Lifecycle.WAITING:
                return self._scheduler.ended(job.id, now)
            filled = before.ending != Ending.NOT_FILLED
            return self._scheduler.released(job.id, now) if filled else self._scheduler.requeue_unfilled(job.id, now)
        if before.state == Lifecycle.WAITING and (after.state.is_final or after.state == Lifecycle.PAUSED):
            return self._scheduler.cancel(job.id, now)
        if before.state == Lifecycle.PAUSED and after.state == Lifecycle.WAITING:
            self._scheduler.adopt(self._queued(job, now), now)
        return []

    def _order(self, job: ManagedJob, launch: TaskLaunch, lead: Leader) -> SubmitOrder:
        """Return the submission of a launch; it is abandoned if this server no longer leads by then."""
        slots = dict(zip(job.spec.tasks, job.record.slots, strict=False)).get(launch.task, 0)
        order = self._workspaces.order(job.row, job.spec, launch, self._profile, self.prefix, slots)

        def plan() -> SubmissionPlan:
            if not self._store.still_leads(lead):  # the new leader launches the job itself, under another tag
                raise StaleRecord("the lead was taken by another server before the submission")
            return order.plan()

        return replace(order, plan=plan)

    # ------------------------------------------------------------------------------------------ decisions and requests

    def _carry_out(self, actions: list[Action], now: float) -> None:
        """Carry out the scheduler's actions on the jobs that are still managed."""
        jobs = {job.id: job for job in self._jobs.values()}
        for action in actions:
            if (job := jobs.get(action.job_id)) is None:
                continue
            match action:
                case StartJob():
                    slots = requests.granted_slots(job.spec, action.placement)
                    placed = lifecycle.begin_try(job.record, self.prefix, now, slots)
                    self._follow(job, placed, now, action.placement)
                case ResizeJob():
                    self._resize(job, action, now)
                case PreemptJob():
                    cause = f"for {action.in_favour_of}, which goes first"
                    self._end(job, Ending.PREEMPTED, cause, now)

    def _resize(self, job: ManagedJob, action: ResizeJob, now: float) -> None:
        """Store a job's new slots; the steps that follow send them to its drivers.

        Slots that a job gains count as used before its driver learns of them.
        """
        follow: list[Action] = []
        if not action.in_favour_of:
            follow = self._scheduler.resized(job.id, action.placement, now)
        slots = requests.granted_slots(job.spec, action.placement)
        cause = requests.change_text(job.spec, job.record.slots, slots, action.in_favour_of)
        self._follow(job, NextStep(lifecycle.resize(job.record, slots, cause, now)), now)
        self._carry_out(follow, now)

    def _end(self, job: ManagedJob, ending: Ending, cause: str, now: float) -> None:
        """Begin to end a job."""
        self._follow(job, NextStep(lifecycle.begin_ending(job.record, ending, cause, now)), now)

    def _grant(self, wish: RequestRow, now: float) -> None:
        """Apply a user's request and store its answer."""
        job = self._jobs.get(wish.job)
        if job is None:
            said = f"the job is over ({self._store.job(wish.job).state})"
            self._store.answer(wish.id, said, self._lead(), now)
            return
        match wish.kind:
            case RequestKind.CANCEL:
                self._end(job, Ending.CANCELLED, f"cancelled by {wish.who}", now)
            case RequestKind.PAUSE:
                self._end(job, Ending.PAUSED, f"paused by {wish.who}", now)
            case RequestKind.RESUME:
                self._follow(job, NextStep(lifecycle.resume(job.record, f"resumed by {wish.who}")), now)
            case RequestKind.MOVE:
                self._move(job, wish, now)
        self._store.answer(wish.id, "", self._lead(), now)

    def _move(self, job: ManagedJob, wish: RequestRow, now: float) -> None:
        """Move a job to another queue or priority; a waiting job is enqueued again with its account."""
        queue, _, priority = wish.value.partition(" ")
        self._store.move(job.row.serial, queue, int(priority), self._lead(), now)
        job.row = replace(job.row, queue=queue, priority=int(priority))
        if job.record.state == Lifecycle.WAITING:
            account = asdict(self._account(job, job.record))
            self._carry_out(self._scheduler.cancel(job.id, now), now)
            job.row = replace(job.row, **account)
            self._scheduler.adopt(self._queued(job, now), now)

    # ------------------------------------------------------------------------------------------ queries

    def why(self, row: JobRow) -> str:
        """Return the text that explains why a job waits, or with how many slots an elastic job runs; otherwise ""."""
        with self._lock:
            if not self._is_loaded:
                return self._not_here()
            if row.id not in self._scheduler.jobs:
                return ""
            now = self._clock()
            limits = {
                job.id: at for job in self._jobs.values() if (at := lifecycle.release_by_s(job.record)) is not None
            }
            reason: Reason = reasons.why_waiting(self._scheduler, row.id, now, limits)
            if self.problem:
                return f"the cluster cannot be asked: {self.problem}"
            said = [reason.text(lambda at: time.strftime("%H:%M", time.localtime(at)))]
            if reason.cause in (Cause.NO_ROOM, Cause.ROOM_KEPT):
                said += [self._scaling.waits.get(row.id, ""), self._scaling.problem]
            return "; ".join(one for one in said if one)

    def refusal(self, spec: JobSpec) -> str:
        """Return the text that explains why a job can never run here, with the largest shape that could.

        Returns:
            "" if the job can run, or if the nodes are not known yet.
        """
        with self._lock:
            if not self._scheduler.nodes.rows:
                return ""
            asked = requests.gang_request(spec.name, "", spec.queue, spec.priority, spec, self._engine)
            queue = self._scheduler.queues.get(spec.queue, Queue(spec.queue))
            return reasons.why_impossible(asked, self._scheduler.nodes, queue, self._scaling.addable)

    def growth(self, spec: JobSpec) -> str:
        """Return the text that names the nodes to be added before a job can run; "" if none are needed."""
        with self._lock:
            addable = self._scaling.addable
            asked = requests.gang_shape(spec, self._engine)
            return autoscaler.growth_text(asked, self._scheduler.nodes, addable) if addable else ""

    # ------------------------------------------------------------------------------------------ nodes that come and go

    def demand(self) -> tuple[Demand, dict[str, Resources]] | None:
        """Return the gangs that wait for room and the capacity of each known node.

        Returns:
            None if the jobs are not loaded, this server does not lead, or the engine did not answer.
        """
        with self._lock:
            if not self._is_loaded or not self.leads or self.problem:
                return None
            return cluster_status.demand_of(self._scheduler, self._clock()), dict(self._there)

    def scaled(self, view: ScalingView) -> frozenset[str]:
        """Apply the autoscaler's view: close the nodes that it removes, and return those of them that are in use.

        Args:
            view: Closed nodes, nodes that can be added, and reasons for which jobs wait.
        """
        with self._lock:
            self._scaling = view
            for name in view.closed:
                self._scheduler.nodes.close(name)
            return frozenset(filter(self._scheduler.nodes.in_use, view.closed))

    def resign(self) -> None:
        """Release the leader's lease, so that another server can lead at once."""
        with contextlib.suppress(StoreError):
            if self.leader is not None and self.leads:
                self._store.resign(self.leader)

    def standing(self) -> str:
        """Return the text that states whether this server runs jobs, or why it does not."""
        if self._is_loaded and not self.problem:
            return "jobs are run here"
        return f"jobs wait: {self.problem}" if self._is_loaded else self._not_here()

    def _not_here(self) -> str:
        """Return the text that names the leading server, or the reason for which no jobs are loaded."""
        if self.leader is not None and not self.leads:
            return f"another server runs the jobs of this database: ask {self.leader.address}"
        return "the cluster has not answered yet" + (f": {self.problem}" if self.problem else "; ask again in a moment")

    def capacity(self) -> tuple[Resources, Resources]:
        """Return the capacity of all open nodes, and the part of it that is not promised to any job."""
        with self._lock:
            return self._scheduler.nodes.capacity(), self._scheduler.nodes.free()

    def nodes(self) -> list[NodeStatus]:
        """Return the status of each node, with its jobs; without nodes if another server leads."""
        with self._lock:
            return cluster_status.node_statuses(self._scheduler)

    def queues(self) -> list[QueueStatus]:
        """Return the status of each queue: its resources and its numbers of running and waiting jobs."""
        with self._lock:
            return cluster_status.queue_statuses(self._scheduler)


def _has_shrunk(before: JobRecord, after: JobRecord) -> bool:
    """Return True if a running job has released all slots that it had to release."""
    goes_on = after.holds_slots and after.ending == Ending.NONE
    return goes_on and bool(before.shrinking_since_s) and not after.shrinking_since_s


def _is_news(before: JobRecord, after: JobRecord) -> bool:
    """Return True if a record has changes that must be stored; fields for observation only are ignored."""
    plain = replace(after, launches=tuple(_plain(launch) for launch in after.launches))
    return plain != replace(before, launches=tuple(_plain(launch) for launch in before.launches))


def _plain(launch: TaskLaunch) -> TaskLaunch:
    """Return a launch without the fields that only serve observation."""
    return replace(launch, unseen_since_s=None, closing_since_s=None, containers=0, answer=None)
