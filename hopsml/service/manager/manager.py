"""Turns: hear what is wished, look at the engine, take each job one step further, let the scheduler decide.

A job's record is stored before anything is done for it. What cannot be stored is not done, but at the next turn.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from hopsml import profiles
from hopsml.errors import StoreError
from hopsml.profiles import Profile
from hopsml.service import autoscaler, lifecycle
from hopsml.service.autoscaler import ScalingView
from hopsml.service.engine import Engine, Look, SubmitOrder
from hopsml.service.holder import is_gone
from hopsml.service.lifecycle import Ending, JobRecord, NextStep, Sight, TaskLaunch
from hopsml.service.lifecycle.sight import over, strays
from hopsml.service.manager import requests
from hopsml.service.manager.managed_job import ManagedJob
from hopsml.service.manager.scheduled import start_due
from hopsml.service.scheduler import admission, demand, reasons, standing
from hopsml.service.scheduler.demand import Demand
from hopsml.service.scheduler.job import QueuedJob
from hopsml.service.scheduler.policy import Policy, Queue
from hopsml.service.scheduler.reasons import Cause, Reason
from hopsml.service.scheduler.resources import Placement, Resources
from hopsml.service.scheduler.scheduler import Action, PreemptJob, ResizeJob, Scheduler, StartJob
from hopsml.service.scheduler.standing import NodeStanding, QueueStanding
from hopsml.service.spec import JobSpec
from hopsml.service.store import JobRow, JobStore, StaleRecord, WishKind, WishRow
from hopsml.service.store.rows import Account, Leader
from hopsml.service.store.schedules import Schedules
from hopsml.service.workspaces import Workspaces
from hopsml.states import Lifecycle
from hopsml.submission import SubmissionPlan

log = logging.getLogger("hopsml.service")

TURN_S = 1.0  # between two looks at the engine
LEASE_S = 30.0  # of the lead; a look may take as long as a ResourceManager that does not answer lets it


class Manager:
    """The jobs of one database on one engine. ``turn`` is called by one thread; what is asked of it, by any."""

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
        """``prefix``: of all tags of this service; ``holder``: this process among others; ``address``: where it is asked."""
        self._store, self._engine, self._workspaces = store, engine, workspaces
        self._schedules = Schedules(store)
        self._profile: Profile = profiles.load(profile)
        self.prefix, self._holder, self._address = prefix, holder, address
        self._policy, self._queues, self._clock, self._lease_s = policy, queues, clock, lease_s
        self._lock = threading.RLock()
        self._jobs: dict[int, ManagedJob] = {}
        self._not_understood: dict[int, tuple[TaskLaunch, ...]] = {}  # jobs of another version of hopsml
        self._scheduler = Scheduler(policy, queues)
        self._newest = 0  # the serial up to which jobs are known
        self._is_loaded = False
        self._there: dict[str, Resources] = {}  # nodes that the engine has listed, with what they have
        self._scaling = ScalingView()
        self.leader: Leader | None = None
        self._leads_until = 0.0  # by the monotonic clock: the other one may be put back
        self.problem = ""  # why the engine could not be asked, the last time

    @property
    def leads(self) -> bool:
        """True if this process is the leader, which runs the jobs."""
        return self.leader is not None and self.leader.holder == self._holder

    def _lead(self) -> Leader:
        """Return this server's lease. Raises StaleRecord if it has none or it has expired: another server may lead."""
        lead = self.leader
        if lead is None or not self.leads or self._clock() >= lead.until_s or time.monotonic() >= self._leads_until:
            raise StaleRecord("the lead")
        return lead

    def term(self) -> int:
        """Return the term of this server's lease; 0 if it has expired or the database has a newer one.

        Raises StoreError.
        """
        try:
            lead = self._lead()
        except StaleRecord:
            return 0
        return lead.term if self._store.still_leads(lead) else 0

    # ------------------------------------------------------------------------------------------ a turn

    def turn(self) -> None:
        """Take everything one step further. Raises StoreError; the next turn begins with what is stored."""
        try:
            self._turn()
        except StaleRecord as stale:
            log.warning("%s was changed by another server, or ran out: all jobs are read again", stale)
            self._forget()
        except BaseException:
            self._forget()
            raise

    def _turn(self) -> None:
        self._renew()
        if not self.leads:
            return
        look = self._engine.look()
        if not self._store.still_leads(self._lead()):  # what a newer leader has started would be taken for strays
            raise StaleRecord("the lead")
        with self._lock:
            now = self._clock()
            self.problem = look.problem
            if look.nodes is not None:
                self._note_nodes(look)
            if not self._is_loaded and look.nodes is not None:
                self._load(now)
            if self._is_loaded:
                self._go_on(look, now)

    def _renew(self) -> None:
        """Acquire or renew the lease. Cached state is valid only under the lease under which it was read."""
        term, asked = 0, time.monotonic()
        with contextlib.suppress(StaleRecord):
            term = self._lead().term
        self.leader = self._store.lead(self._holder, self._address, self._clock(), self._lease_s, is_gone, term)
        self._leads_until = asked + self._lease_s
        if not self.leads or self.leader.term != term:
            self._forget()
            self._engine.forget_orders()

    def _forget(self) -> None:
        with self._lock:
            nodes = self._scheduler.nodes.emptied()
            self._jobs, self._scheduler, self._newest, self._is_loaded = (
                {},
                Scheduler(self._policy, self._queues),
                0,
                False,
            )
            self._scheduler.nodes = nodes
            self._not_understood.clear()

    def _load(self, now: float) -> None:
        """What was left by an earlier life of the service, or by another one."""
        rows = self._store.living()
        launches = self._store.launches(row.serial for row in rows)
        for row in rows:
            self._take(row, launches[row.serial], now)
        self._is_loaded = True
        log.info("%d jobs that are not over", len(rows))

    def _take(self, row: JobRow, launches: tuple[TaskLaunch, ...], now: float) -> None:
        self._newest = max(self._newest, row.serial)
        try:
            job = ManagedJob.of(row, launches)
        except ValueError as error:  # what another hopsml has checked; it may come back, so nothing is concluded
            log.error("%s is left alone: its job file is not understood here: %s", row.id, error)
            self._not_understood[row.serial] = launches
            return
        self._jobs[row.serial] = job
        if job.record.state != Lifecycle.PAUSED:
            self._scheduler.adopt(self._queued(job, now), now)

    def _queued(self, job: ManagedJob, now: float) -> QueuedJob:
        row, record = job.row, job.record
        self._check_queue(row.queue)
        used = requests.placement_of(row.placement) if record.holds_slots else ()
        target = requests.placement_of(row.target) if used and record.shrinking_since_s else ()
        return QueuedJob(
            requests.request(row.id, row.owner, row.queue, row.priority, job.spec, self._engine),
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
        """A queue that nobody has configured is one like any other: jobs in it must not be lost."""
        if name not in self._scheduler.queues:
            self._scheduler.queue(Queue(name))

    def _go_on(self, look: Look, now: float) -> None:
        start_due(self._schedules, self._lead(), now)
        self._take_new(now)
        for wish in self._store.open_wishes():
            self._grant(wish, now)
        for job in list(self._jobs.values()):
            self._step(job, look.sight, now)
        self._lead()
        living = self._living()
        for stray in strays(look.sight, living):
            log.warning("%s bears our tag and belongs to no job that runs: it is killed", stray)
            self._engine.kill(stray)
        for tag in over(look.sight, living):
            self._engine.forget(tag)
        self._carry_out(self._scheduler.tick(now), now)

    def _living(self) -> dict[str, str]:
        known = [*(job.record.launches for job in self._jobs.values()), *self._not_understood.values()]
        return {one.tag: one.application_id for launches in known for one in launches if not one.state.is_final}

    def _take_new(self, now: float) -> None:
        rows = self._store.new({*self._jobs, *self._not_understood}, self._newest)
        launches = self._store.launches(row.serial for row in rows)
        for row in rows:
            self._take(row, launches[row.serial], now)

    def _note_nodes(self, look: Look) -> None:
        """Nodes as they are; what is used on them and not by our jobs is others'."""
        nodes, seen = self._scheduler.nodes, {node.name: node for node in look.nodes or ()}
        for gone in nodes.rows.keys() - seen.keys():
            nodes.gone(gone)
        ours = self._used_by_node()
        self._there = {node.name: node.capacity for node in seen.values()}
        for node in seen.values():
            is_open = node.is_open and node.name not in self._scaling.closed
            nodes.put(node.name, node.capacity, node.label, is_open=is_open)
            others = node.used.minus(ours.get(node.name, Resources()))
            nodes.others(node.name, Resources(max(0, others.gpus), max(0, others.cores), max(0, others.memory_mib)))

    def _used_by_node(self) -> dict[str, Resources]:
        found: dict[str, Resources] = {}
        for job in self._scheduler.jobs.values():
            for node, amount in standing.uses(job, job.used).items():
                found[node] = found.get(node, Resources()).plus(amount)
        return found

    # ------------------------------------------------------------------------------------------ one job

    def _step(self, job: ManagedJob, sight: Sight, now: float) -> None:
        self._follow(job, lifecycle.step(job.record, sight, self.prefix, now), now)

    def _follow(self, job: ManagedJob, step: NextStep, now: float, placement: Placement = ()) -> None:
        """Store a job's new state, and only then carry out its consequences. Raises StaleRecord under an older lease."""
        before, lead = job.record, self._lead()
        account = self._account(job, step.record, placement)
        if _is_news(before, step.record):
            stored = self._store.save(before, step.record, lead, now, account)
            job.record, job.row = stored, replace(job.row, **asdict(account), tries=stored.tries)
            if (before.state, before.cause) != (stored.state, stored.cause):
                log.info("%s: %s: %s", job.id, stored.state, stored.cause)
        else:
            job.record = step.record  # what is only remembered
        for launch in step.submit:
            self._engine.submit(self._order(job, launch, lead))
        for tag in step.withdraw:
            self._engine.withdraw(tag)
        for application, slots in step.tell:
            self._engine.tell(application, slots)
        for application in step.ask:
            self._engine.ask(application)
        for application in step.kill:
            self._engine.kill(application)
        self._carry_out(self._told(job, before, now), now)
        if job.record.state.is_final:
            del self._jobs[job.row.serial]

    def _account(self, job: ManagedJob, after: JobRecord, placement: Placement = ()) -> Account:
        """What is stored of a job besides its record, ``after`` what has just become of it."""
        queued = self._scheduler.jobs.get(job.id)
        if queued is None:
            return Account(job.row.attained_s, job.row.waited_s, job.row.failed_fills, None)
        kept = placement or (queued.placement if _has_shrunk(job.record, after) else queued.used)
        target = queued.placement if after.shrinking_since_s else ()
        stored = [[dict(nodes) for nodes in each] or None for each in (kept, target)]
        return Account(queued.attained_s, queued.waited_s, queued.failed_fills, *stored)

    def _told(self, job: ManagedJob, before: JobRecord, now: float) -> list[Action]:
        """Let the scheduler know what has become of a job."""
        after = job.record
        if _has_shrunk(before, after):
            return self._scheduler.resized(job.id, self._scheduler.jobs[job.id].placement, now)
        if before.holds_slots and not after.holds_slots:
            if after.state != Lifecycle.WAITING:
                return self._scheduler.ended(job.id, now)
            filled = before.ending != Ending.NOT_FILLED
            return self._scheduler.released(job.id, now) if filled else self._scheduler.not_filled(job.id, now)
        if before.state == Lifecycle.WAITING and (after.state.is_final or after.state == Lifecycle.PAUSED):
            return self._scheduler.cancel(job.id, now)
        if before.state == Lifecycle.PAUSED and after.state == Lifecycle.WAITING:
            self._scheduler.adopt(self._queued(job, now), now)
        return []

    def _order(self, job: ManagedJob, launch: TaskLaunch, lead: Leader) -> SubmitOrder:
        slots = dict(zip(job.spec.tasks, job.record.slots, strict=False)).get(launch.task, 0)
        order = self._workspaces.order(job.row, job.spec, launch, self._profile, self.prefix, slots)

        def plan() -> SubmissionPlan:
            if not self._store.still_leads(lead):  # the new leader has launched the job again, under another tag
                raise StaleRecord("the lead was taken by another server before the submission")
            return order.plan()

        return replace(order, plan=plan)

    # ------------------------------------------------------------------------------------------ decisions and wishes

    def _carry_out(self, actions: list[Action], now: float) -> None:
        jobs = {job.id: job for job in self._jobs.values()}
        for action in actions:
            if (job := jobs.get(action.job_id)) is None:
                continue
            match action:
                case StartJob():
                    slots = requests.slots(job.spec, action.placement)
                    placed = lifecycle.place(job.record, self.prefix, now, slots)
                    self._follow(job, placed, now, action.placement)
                case ResizeJob():
                    self._resize(job, action, now)
                case PreemptJob():
                    cause = f"for {action.in_favour_of}, which goes first"
                    self._end(job, Ending.PREEMPTED, cause, now)

    def _resize(self, job: ManagedJob, action: ResizeJob, now: float) -> None:
        """Stored first, told by the steps that follow. What a job may take counts as used before its driver hears of it."""
        follow: list[Action] = []
        if not action.in_favour_of:
            follow = self._scheduler.resized(job.id, action.placement, now)
        slots = requests.slots(job.spec, action.placement)
        cause = requests.change_text(job.spec, job.record.slots, slots, action.in_favour_of)
        self._follow(job, NextStep(lifecycle.resize(job.record, slots, cause, now)), now)
        self._carry_out(follow, now)

    def _end(self, job: ManagedJob, ending: Ending, cause: str, now: float) -> None:
        self._follow(job, NextStep(lifecycle.end(job.record, ending, cause, now)), now)

    def _grant(self, wish: WishRow, now: float) -> None:
        job = self._jobs.get(wish.job)
        if job is None:
            said = f"the job is over ({self._store.job(wish.job).state})"
            self._store.answer(wish.id, said, self._lead(), now)
            return
        match wish.kind:
            case WishKind.CANCEL:
                self._end(job, Ending.CANCELLED, f"cancelled by {wish.who}", now)
            case WishKind.PAUSE:
                self._end(job, Ending.PAUSED, f"paused by {wish.who}", now)
            case WishKind.RESUME:
                self._follow(job, NextStep(lifecycle.resume(job.record, f"resumed by {wish.who}")), now)
            case WishKind.MOVE:
                self._move(job, wish, now)
        self._store.answer(wish.id, "", self._lead(), now)

    def _move(self, job: ManagedJob, wish: WishRow, now: float) -> None:
        queue, _, priority = wish.value.partition(" ")
        self._store.move(job.row.serial, queue, int(priority), self._lead(), now)
        job.row = replace(job.row, queue=queue, priority=int(priority))
        if job.record.state == Lifecycle.WAITING:
            account = asdict(self._account(job, job.record))
            self._carry_out(self._scheduler.cancel(job.id, now), now)
            job.row = replace(job.row, **account)
            self._scheduler.adopt(self._queued(job, now), now)

    # ------------------------------------------------------------------------------------------ what is asked

    def why(self, row: JobRow) -> str:
        """Why a job does not run, in words, or with how many slots an elastic one does; else ""."""
        with self._lock:
            if not self._is_loaded:
                return self._not_here()
            if row.id not in self._scheduler.jobs:
                return ""
            now = self._clock()
            reason: Reason = reasons.why(self._scheduler, row.id, now)
            said = [reason.text(lambda at: time.strftime("%H:%M", time.localtime(at)))]
            if reason.cause in (Cause.NO_ROOM, Cause.ROOM_KEPT):
                said += [self._scaling.waits.get(row.id, ""), self._scaling.problem]
            return "; ".join(one for one in said if one)

    def refusal(self, spec: JobSpec) -> str:
        """Why a job could never run here, with what could; "" where it can, or where that is not known yet."""
        with self._lock:
            if not self._scheduler.nodes.rows:
                return ""
            asked = requests.request(spec.name, "", spec.queue, spec.priority, spec, self._engine)
            queue = self._scheduler.queues.get(spec.queue, Queue(spec.queue))
            return admission.refusal(asked, self._scheduler.nodes, queue, self._scaling.addable)

    def growth(self, spec: JobSpec) -> str:
        """Which nodes have to be added before a job can run, in words; "" for none."""
        with self._lock:
            addable = self._scaling.addable
            asked = requests.gang(spec, self._engine)
            return autoscaler.growth(asked, self._scheduler.nodes, addable) if addable else ""

    # ------------------------------------------------------------------------------------------ nodes that come and go

    def demand(self) -> tuple[Demand, dict[str, Resources]] | None:
        """What waits for room, and the nodes that there are; None where it is not known, or not this server's to decide."""
        with self._lock:
            if not self._is_loaded or not self.leads or self.problem:
                return None
            return demand.of(self._scheduler, self._clock()), dict(self._there)

    def scaled(self, view: ScalingView) -> frozenset[str]:
        """What has been decided about nodes: from now on nothing is placed on those that are to go; which are in use."""
        with self._lock:
            self._scaling = view
            for name in view.closed:
                self._scheduler.nodes.close(name)
            return frozenset(filter(self._scheduler.nodes.in_use, view.closed))

    def resign(self) -> None:
        """Let another server lead at once."""
        with contextlib.suppress(StoreError):
            if self.leader is not None and self.leads:
                self._store.resign(self.leader)

    def standing(self) -> str:
        """Whether jobs are run here, in words."""
        if self._is_loaded and not self.problem:
            return "jobs are run here"
        return f"jobs wait: {self.problem}" if self._is_loaded else self._not_here()

    def _not_here(self) -> str:
        if self.leader is not None and not self.leads:
            return f"another server runs the jobs of this database: ask {self.leader.address}"
        return "the cluster has not answered yet" + (f": {self.problem}" if self.problem else "; ask again in a moment")

    def capacity(self) -> tuple[Resources, Resources]:
        """Of all nodes; and what of it is not promised to anybody."""
        with self._lock:
            return self._scheduler.nodes.capacity(), self._scheduler.nodes.free()

    def nodes(self) -> list[NodeStanding]:
        """What is where; nothing where another server leads."""
        with self._lock:
            return standing.nodes(self._scheduler)

    def queues(self) -> list[QueueStanding]:
        """Who has how much of its share."""
        with self._lock:
            return standing.queues(self._scheduler)


def _has_shrunk(before: JobRecord, after: JobRecord) -> bool:
    """Whether a job has now given back what it was to."""
    goes_on = after.holds_slots and after.ending == Ending.NONE
    return goes_on and bool(before.shrinking_since_s) and not after.shrinking_since_s


def _is_news(before: JobRecord, after: JobRecord) -> bool:
    """Whether the store has to know: not of what a launch is only watched by."""
    plain = replace(after, launches=tuple(_plain(launch) for launch in after.launches))
    return plain != replace(before, launches=tuple(_plain(launch) for launch in before.launches))


def _plain(launch: TaskLaunch) -> TaskLaunch:
    return replace(launch, unseen_since_s=None, containers=0, answer=None)
