"""Reasons for which a job waits, or is refused before it is queued as it could never run.

A reason has numbers, jobs that hold the needed slots, the expected start, and possible remedies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from hopsml.core.newer_python import StrEnum
from hopsml.service.scheduler import taking
from hopsml.service.scheduler.job import JobPhase, QueuedJob
from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.resources import NOTHING, UNLIMITED, GangRequest, GangShape, Queue, Resources, SlotGroup
from hopsml.service.scheduler.scheduler import Action, Scheduler, StartJob


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes of one group that an autoscaler could add.

    Attributes:
        capacity: Resources of one node.
        count: Maximum number of nodes to add.
        label: Label of the nodes.
        group: Name of the group.
        price: Relative price of a node.
        boot_s: Usual time until a node is in the cluster, in seconds.
    """

    capacity: Resources
    count: int
    label: str = ""
    group: str = ""
    price: float = 1.0
    boot_s: float = 0.0


def why_impossible(request: GangRequest, nodes: Nodes, queue: Queue, addable: tuple[NodeKind, ...] = ()) -> str:
    """Return the reason for which a job can never run, with the largest shape that could.

    Args:
        request: Request of the job.
        nodes: Nodes of the cluster; all of them count as empty.
        queue: Queue of the job.
        addable: Nodes that could be added.

    Returns:
        "" if the job can run.
    """
    gang = request.gang
    empty = nodes.without_usage()
    for kind_number, kind in enumerate(addable):
        for number in range(kind.count):
            empty.set_node(f"+{kind_number}-{number}", kind.capacity, kind.label)
    if queue.limit is not None and not gang.least.within(queue.limit):
        most = f"queue {queue.name!r} has at most {resources_text(queue.limit)}"
        return f"needs {resources_text(gang.least)}, {most}; request less, or another queue"
    if queue.driver_limit_mib is not None and request.driver_mib > queue.driver_limit_mib:
        return (
            f"its driver needs {request.driver_mib} MiB, drivers in queue {queue.name!r} have at most"
            f" {queue.driver_limit_mib} MiB together; request a smaller driver, or another queue"
        )
    if empty.place(gang, least=True) is not None:
        return ""
    culprit = next((part for part in gang.parts if empty.place(GangShape((part,)), least=True) is None), None)
    if culprit is None:
        there = f"there are {resources_text(empty.capacity())}, on nodes that each of them would fit"
        return f"its tasks do not fit together: they need {resources_text(gang.least)}; {there}; request less"
    which = f"the {culprit.name}" if culprit.is_driver else f"task {culprit.name!r}"
    return f"{which} needs {culprit.at_least} x {resources_text(culprit.each)}; {_largest(culprit, empty)}"


def _largest(part: SlotGroup, empty: Nodes) -> str:
    """Return the text that names the largest part of this kind that would fit."""
    where = (
        f"nodes with label {part.label!r}" if part.label else "nodes without a label" if empty.has_labels() else "nodes"
    )
    if empty.place(GangShape((replace(part, count=1, least=1),))) is None:
        largest = empty.largest_node(part.label)
        if largest == Resources():
            return f"there are no {where}"
        if part.each.gpus and not largest.gpus:  # the largest is that with the most GPUs
            return f"none of the {where} has a GPU; request none, or use a cluster with GPUs"
        return f"the largest of the {where} has {resources_text(largest)}, and a slot is on one node; request smaller slots"
    fits = empty.place(GangShape((replace(part, least=1),)))
    count = sum(fits[0].values()) if fits else 1
    return f"the {where} have room for {count} such slots at most; request {count}"


def resources_text(resources: Resources) -> str:
    """Return resources as text, such as ``2 GPUs, 8 cores, 16 GiB``; zero and unlimited amounts are omitted."""
    resources = Resources(
        *(0 if each >= UNLIMITED else each for each in (resources.gpus, resources.cores, resources.memory_mib))
    )
    memory = resources.memory_mib
    said = [
        f"{resources.gpus} GPU{'' if resources.gpus == 1 else 's'}" if resources.gpus else "",
        f"{resources.cores} core{'' if resources.cores == 1 else 's'}" if resources.cores else "",
        (
            f"{memory // 1024} GiB"
            if memory % 1024 == 0
            else f"{memory / 1024:.1f} GiB"
            if memory > 1024
            else f"{memory} MiB"
        )
        if memory
        else "",
    ]
    return ", ".join(one for one in said if one) or "nothing"


SHOWN = 3  # maximum number of holders and nodes in a text
TRIED = 500  # maximum number of jobs for which a remedy is tried out: a trial copies all of them


class Cause(StrEnum):
    """Cause for which a job waits; ``why_waiting`` has the order of the checks."""

    PUT_OFF = "PUT_OFF"  # its last gang was allocated incompletely
    LEAVING = "LEAVING"  # other jobs are releasing the room that is promised to it
    QUEUE_LIMIT = "QUEUE_LIMIT"
    DRIVER_LIMIT = "DRIVER_LIMIT"
    NO_ROOM = "NO_ROOM"
    ROOM_KEPT = "ROOM_KEPT"  # for a job that goes first
    DUE = "DUE"  # it is about to start
    ELASTIC = "ELASTIC"  # it runs, and its number of slots may change
    NONE = "NONE"  # it runs, or it has ended


@dataclass(frozen=True, slots=True)
class BlockingJob:
    """Job that holds slots which another job needs.

    ``until_s`` is its expected end, or the time by which it has to release the slots; infinite if unknown.
    """

    job_id: str
    user: str
    slots: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason for which a job waits, or the sizes of an elastic job that runs.

    Times are of the scheduler's clock. ``slots`` and ``free`` refer to the part for which there is no room.

    Attributes:
        cause: Kind of the reason.
        job_id: ID of the job.
        queue: Name of its queue.
        ahead: Number of jobs of its queue that go first.
        part: Name of the part for which there is no room.
        slots: Minimum number of slots of that part.
        each: Resources of one of these slots.
        free: (node, free slots), most first.
        holders: Jobs that hold such slots.
        starts_s: Expected start, if other jobs end by their time limits, and no job goes first that is submitted later.
        preempts: True if the job can start at that time because it may preempt others then.
        would_start_with: Number of slots with which the job would start at once; 0 if there is none.
        other_queues: Queues in which the job would start at once.
        in_favour_of: ID of the job for which room is reserved.
        limit: Text about the limit that was reached.
        together: Names of parts each of which has room, but not all at once.
        sizes: For each elastic part of a running job: name, current, target, minimum and maximum number of slots.
        release_by_s: Time at which a running job is stopped if it has not released its slots by itself.
    """

    cause: Cause
    job_id: str
    queue: str
    ahead: int = 0
    part: str = ""
    slots: int = 0
    each: Resources = NOTHING
    free: tuple[tuple[str, int], ...] = ()
    holders: tuple[BlockingJob, ...] = ()
    starts_s: float = math.inf
    preempts: bool = False
    would_start_with: int = 0
    other_queues: tuple[str, ...] = ()
    in_favour_of: str = ""
    limit: str = ""
    together: tuple[str, ...] = ()
    sizes: tuple[tuple[str, int, int, int, int], ...] = ()
    release_by_s: float = math.inf

    def text(self, clock: Callable[[float], str]) -> str:
        """Return the reason as text, which command line, web page and REST interface share.

        Args:
            clock: Function that formats a time.
        """
        said = [self._needs(clock), *self._held(clock)]
        if math.isfinite(self.starts_s) and self.cause in (Cause.NO_ROOM, Cause.LEAVING, Cause.ROOM_KEPT):
            at = clock(self.starts_s)
            preempting = f"preempts other jobs about {at}, or starts when they end earlier"
            said.append(preempting if self.preempts else f"starts about {at}, or when other jobs end earlier")
        helps = [f"with {self.would_start_with}"] if self.would_start_with else []
        if self.other_queues:
            helps.append("in queue " + " or ".join(self.other_queues))
        if helps:
            said.append("would start now " + ", or ".join(helps))
        return "; ".join(one for one in said if one)

    def _needs(self, clock: Callable[[float], str]) -> str:
        """Return the text of the cause."""
        match self.cause:
            case Cause.PUT_OFF:
                return (
                    f"the cluster did not grant all requested containers; the next attempt is at {clock(self.starts_s)}"
                )
            case Cause.LEAVING:
                return "its slots are assigned, but other jobs must release them first"
            case Cause.QUEUE_LIMIT | Cause.DRIVER_LIMIT:
                return self.limit
            case Cause.ROOM_KEPT:
                return f"slots are reserved for {self.in_favour_of}, which has precedence"
            case Cause.DUE:
                return "is starting"
            case Cause.ELASTIC:
                by = clock(self.release_by_s) if math.isfinite(self.release_by_s) else ""
                return "; ".join(_size_text(*size, by) for size in self.sizes)
            case Cause.NONE:
                return ""
        return self._lacks()

    def _lacks(self) -> str:
        """Return the text about a part for which there is no room."""
        if self.together:
            return f"there are enough slots for each of {', '.join(self.together)}, but not for all of them at once"
        count = sum(slots for _, slots in self.free)
        where = ", ".join(f"{node} {slots}" for node, slots in self.free[:SHOWN])
        rest = len(self.free) - SHOWN
        more = f" and {rest} more node{'' if rest == 1 else 's'}" if rest > 0 else ""
        free = f"{count} {'is' if count == 1 else 'are'} free" + (f" ({where}{more})" if where else "")
        slots = f"{self.slots} slot{'' if self.slots == 1 else 's'} of {resources_text(self.each)}"
        before = f"; {self.ahead} of queue {self.queue} go{'es' * (self.ahead == 1)} first" if self.ahead else ""
        return f"needs {slots}, {free}{before}"

    def _held(self, clock: Callable[[float], str]) -> Iterator[str]:
        """Yield texts about the jobs that hold the needed slots."""
        for holder in self.holders[:SHOWN]:
            whose = f"{holder.user}'s {holder.job_id}" if holder.user else holder.job_id
            at = clock(holder.until_s) if math.isfinite(holder.until_s) else ""
            if self.cause == Cause.LEAVING:
                yield f"{whose} has to release {holder.slots}" + (f" by {at} at the latest" if at else "")
            else:
                yield f"{whose} holds {holder.slots}" + (f" until about {at}" if at else "")
        if len(self.holders) > SHOWN:
            more = len(self.holders) - SHOWN
            yield f"{more} more {'job' if more == 1 else 'jobs'} {self._verb(more)} the rest"

    def _verb(self, jobs: int) -> str:
        """Return what further jobs do with the needed slots."""
        if self.cause == Cause.LEAVING:
            return "has to release" if jobs == 1 else "have to release"
        return "holds" if jobs == 1 else "hold"


def why_waiting(
    scheduler: Scheduler, job_id: str, now: float, release_by_s: Mapping[str, float] | None = None
) -> Reason:
    """Return the reason for which a job waits, or the numbers of slots of an elastic job that runs.

    Args:
        scheduler: Scheduler with the job.
        job_id: ID of the job.
        now: Time in seconds of the scheduler's clock.
        release_by_s: IDs of jobs that have to release slots, and by which time they have done so, or are stopped.
    """
    limits = release_by_s or {}
    job = scheduler.jobs[job_id]
    queue = scheduler.queues[job.request.queue]
    about = Reason(Cause.NONE, job_id, queue.name)
    if job.phase == JobPhase.RUNNING and job.request.gang.is_elastic:
        limit_s = limits.get(job_id, math.inf)
        return replace(about, cause=Cause.ELASTIC, sizes=tuple(_sizes(job)), release_by_s=limit_s)
    if job.phase in (JobPhase.RUNNING, JobPhase.ENDING):
        return about
    if job.phase == JobPhase.PLACED:
        return replace(about, cause=Cause.LEAVING, holders=tuple(_leaving(scheduler, job, limits)))
    about = replace(about, ahead=sum(other.rank < job.rank or (other.rank == job.rank and other.sequence < job.sequence)
                                     for other in scheduler.waiting[queue.name]))  # fmt: skip
    if job.not_before_s > now:
        return replace(about, cause=Cause.PUT_OFF, starts_s=job.not_before_s)
    limit = _limit(scheduler, job)
    if limit is not None:
        return replace(about, cause=limit[0], limit=limit[1], other_queues=tuple(_other_queues(scheduler, job, now)))
    if scheduler.nodes.place(job.request.gang, least=True) is None:
        return _no_room(scheduler, job, about, now)
    if scheduler.kept_for in ("", job_id):
        return replace(about, cause=Cause.DUE)
    return replace(about, cause=Cause.ROOM_KEPT, in_favour_of=scheduler.kept_for)


def would_start(scheduler: Scheduler, job_id: str, request: GangRequest, now: float) -> bool:
    """Return True if a request in place of a waiting job would start at once.

    It is tried out on a copy of the scheduler; False for more than ``TRIED`` jobs.

    Args:
        scheduler: Scheduler with the job.
        job_id: ID of the job that would be cancelled.
        request: Request that would be submitted in its place.
        now: Time in seconds of the scheduler's clock.
    """
    if len(scheduler.jobs) > TRIED:
        return False
    trial = scheduler.trial()
    return _is_started(request.job_id, trial.cancel(job_id, now) + trial.submit(request, now))


def would_start_in_queue(scheduler: Scheduler, job_id: str, queue: str, now: float) -> bool:
    """Return True if a waiting job would start at once in another queue; tried out on a copy as by ``would_start``."""
    if len(scheduler.jobs) > TRIED:
        return False
    trial = scheduler.trial()
    job = trial.jobs[job_id]
    actions = trial.cancel(job_id, now)
    trial.adopt(replace(job, request=replace(job.request, queue=queue), is_cancelled=False), now)
    return _is_started(job_id, actions + trial.tick(now))


def _is_started(job_id: str, actions: list[Action]) -> bool:
    """Return True if the actions start this job."""
    return any(isinstance(action, StartJob) and action.job_id == job_id for action in actions)


def _sizes(job: QueuedJob) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield the sizes of each elastic part of a running job, as in ``Reason.sizes``."""
    for part, used, placed in zip(job.request.gang.parts, job.used, job.placement, strict=True):
        if part.at_least < part.count:
            yield part.name, sum(used.values()), sum(placed.values()), part.at_least, part.count


def _size_text(name: str, used: int, placed: int, fewest: int, most: int, by: str) -> str:
    """Return the text about the size of an elastic part."""
    said = f"{name} runs with {used} slot{'' if used == 1 else 's'} of {fewest} to {most}"
    if placed < used:
        return f"{said}, and has to release {used - placed}" + (f", or is stopped at {by}" if by else "")
    return said + (", and gets more when free slots are not needed by waiting jobs" if used < most else "")


def _no_room(scheduler: Scheduler, job: QueuedJob, about: Reason, now: float) -> Reason:
    """Return the reason of a job for whose gang there is no room."""
    nodes, gang = scheduler.nodes, job.request.gang
    lacking = next((one for one in gang.parts if nodes.place(GangShape((one,)), least=True) is None), None)
    part = lacking or max(gang.parts, key=lambda one: (one.each.gpus * one.at_least, one.at_least))
    free = nodes.slots_by_node(part)
    return replace(
        about,
        cause=Cause.NO_ROOM,
        part=part.name,
        slots=part.at_least,
        each=part.each,
        free=tuple(sorted(free.items(), key=lambda pair: (-pair[1], pair[0]))),
        holders=tuple(_holders(scheduler, part, now)),
        starts_s=scheduler.expected_start_s(job, now),
        preempts=scheduler.expected_start_s(job, now) < scheduler.start_without_preemption_s(job, now),
        would_start_with=_smaller(scheduler, job, part, sum(free.values()), now),
        together=() if lacking else tuple(one.name for one in gang.parts),
    )


def _smaller(scheduler: Scheduler, job: QueuedJob, part: SlotGroup, free: int, now: float) -> int:
    """Return with how many slots of this part the job would start at once; 0 if with no number."""
    if job.request.gang.parts.count(part) != 1:
        return 0
    for count in range(min(free, part.at_least - 1), 0, -1):
        gang = with_count(job.request.gang, part, count)
        if scheduler.nodes.place(gang) is not None:  # the other parts fit along with this number
            wanted = replace(job.request, gang=gang)
            return count if would_start(scheduler, job.request.job_id, wanted, now) else 0
    return 0


def with_count(gang: GangShape, part: SlotGroup, count: int) -> GangShape:
    """Return a gang with exactly this number of slots of one part."""
    return GangShape(tuple(replace(part, count=count, least=0) if one is part else one for one in gang.parts))


def _holders(scheduler: Scheduler, part: SlotGroup, now: float) -> list[BlockingJob]:
    """Return the jobs that hold slots of this kind on nodes of the same label, ordered by their expected ends.

    A job's driver is counted only if it has no workers there, because users count workers.
    """
    found = []
    for other in scheduler.started.values():
        workers = drivers = 0
        for its, nodes in zip(other.request.gang.parts, other.placement, strict=True):
            if its.label == part.label and _concern(its.each, part.each):
                count = sum(nodes.values())
                workers, drivers = (workers, drivers + count) if its.is_driver else (workers + count, drivers)
        if slots := workers or drivers:
            end = taking.expected_end_s(other, now)
            found.append(BlockingJob(other.request.job_id, other.request.user, slots, end))
    return sorted(found, key=lambda holder: (holder.until_s, -holder.slots, holder.job_id))


def _concern(theirs: Resources, needed: Resources) -> bool:
    """Return True if a slot has the scarce resource: GPUs if some are needed."""
    return theirs.gpus > 0 if needed.gpus else True


def _leaving(scheduler: Scheduler, job: QueuedJob, release_by_s: Mapping[str, float]) -> Iterator[BlockingJob]:
    """Yield the jobs that have to release slots on nodes of a placed job, with the number of these slots."""
    wanted = {node for nodes in job.placement for node in nodes}
    for other in scheduler.jobs.values():
        if slots := _to_release(other, wanted):
            limit_s = release_by_s.get(other.request.job_id, math.inf)
            yield BlockingJob(other.request.job_id, other.request.user, slots, limit_s)


def _to_release(job: QueuedJob, wanted: Collection[str]) -> int:
    """Return how many slots a job has to release on these nodes; drivers count if it has no workers there."""
    workers = drivers = 0
    for index, (part, used) in enumerate(zip(job.request.gang.parts, job.used, strict=False)):
        placed = job.placement[index] if index < len(job.placement) else {}
        count = sum(max(0, used[node] - placed.get(node, 0)) for node in used if node in wanted)
        workers, drivers = (workers, drivers + count) if part.is_driver else (workers + count, drivers)
    return workers or drivers


def _limit(scheduler: Scheduler, job: QueuedJob) -> tuple[Cause, str] | None:
    """Return the queue's limit that a job exceeds, with its text; None if there is none."""
    queue = scheduler.queues[job.request.queue]
    has, needs = scheduler.promised[queue.name], job.request.gang.least
    if queue.limit is not None and not has.plus(needs).within(queue.limit):
        limit = resources_text(queue.limit)
        text = f"needs {resources_text(needs)}; queue {queue.name} has {resources_text(has)} of its limit, {limit}"
        return Cause.QUEUE_LIMIT, text
    if not scheduler.is_within_limits(job):
        text = f"queue {queue.name}: its drivers have all the {queue.driver_limit_mib} MiB that drivers may have"
        return Cause.DRIVER_LIMIT, text
    return None


def _other_queues(scheduler: Scheduler, job: QueuedJob, now: float) -> Iterator[str]:
    """Yield the empty queues in which a job would start at once."""
    if scheduler.nodes.place(job.request.gang, least=True) is None:
        return
    for name, waiting in scheduler.waiting.items():
        moved = replace(job, request=replace(job.request, queue=name))
        is_free = name != job.request.queue and not len(waiting) and scheduler.is_within_limits(moved)
        if is_free and would_start_in_queue(scheduler, job.request.job_id, name, now):
            yield name
