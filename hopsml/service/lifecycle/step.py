"""Transitions of a job's state, as pure functions of its record, an engine snapshot and the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hopsml.core.states import Lifecycle
from hopsml.service.lifecycle.record import Ending, EngineSnapshot, JobRecord, SeenApplication, TaskLaunch

SETTLE_S = 10.0  # after a submission, until the engine reliably lists its application
GONE_S = 60.0  # tolerated absence of a listed application: a restarted ResourceManager recovers it after a while
FILL_S = 180.0  # from when the engine has all applications until all containers must run
SUBMIT_S = 900.0  # limit of a submission: an environment may have to be packed and uploaded first
UNREADABLE_S = 86400.0  # for which a job waits for a cluster that does not answer, or refuses: a day
FREE_SUBMISSIONS = 3  # submissions that may fail before an application is seen without counting as failures of the job
GRACE_S = {Ending.PREEMPTED: 60.0, Ending.PAUSED: 60.0, Ending.NOT_FILLED: 0.0}  # from the end request to the kill
USUAL_GRACE_S = 10.0
CLOSING_S = 30.0  # from the end request to the kill of a task that ends with another one
CHIEF_S = 30.0  # for which the failure of such a task is not counted, as the other one may be about to finish
SHRINK_S = 180.0  # limit for releasing slots: the next commit is needed, and an executor must be idle for a while


@dataclass(frozen=True, slots=True)
class NextStep:
    """New record of a job, and the actions to carry out after it has been stored.

    Attributes:
        record: Record to be stored first.
        submit: Launches to submit.
        ask: IDs of applications to be requested to end.
        kill: IDs of applications to kill; repeated at each step until they have ended.
        withdraw: Tags of submissions to abort.
        tell: (application ID, slots granted to it); repeated at each step, because a restarted service does not know
            which drivers received them.
    """

    record: JobRecord
    submit: tuple[TaskLaunch, ...] = ()
    ask: tuple[str, ...] = ()
    kill: tuple[str, ...] = ()
    withdraw: tuple[str, ...] = ()
    tell: tuple[tuple[str, int], ...] = ()


def begin_try(record: JobRecord, prefix: str, now: float, slots: tuple[int, ...] = ()) -> NextStep:
    """Begin the next try of a waiting job that was given its slots.

    Args:
        record: Record of the job; it is returned unchanged unless the job waits.
        prefix: Prefix of this service's tags.
        now: Time in seconds since 1970.
        slots: Slots granted to each task, as in the record.
    """
    if record.state != Lifecycle.WAITING:
        return NextStep(record)
    number = record.tries + 1
    launches = tuple(
        TaskLaunch(task.name, 1, _tag(prefix, record.serial, number, index, 1), intended_s=now)
        for index, task in enumerate(record.tasks)
    )
    begun = replace(record, tries=number, launches=launches, placed_s=now, started_s=0.0, ending=Ending.NONE)
    begun = replace(begun, slots=slots, shrinking_since_s=0.0)
    return NextStep(_turned(begun, Lifecycle.STARTING, "slots allocated"), submit=launches)


def begin_ending(record: JobRecord, ending: Ending, cause: str, now: float) -> JobRecord:
    """Begin to end a job, at the request of a user or the scheduler; a job that has ended is unchanged.

    A waiting job is cancelled or paused at once; of other jobs the applications are ended first. Of two endings the
    later in ``Ending`` applies.
    """
    if record.state.is_final or ending == Ending.NONE or not record.ending.is_overridden_by(ending):
        return record
    if record.holds_slots:
        since = record.ending_since_s if record.ending != Ending.NONE else now
        ends = replace(record, ending=ending, ending_since_s=since, shrinking_since_s=0.0)
        return _turned(ends, Lifecycle.CLOSING, cause)
    if ending == Ending.CANCELLED:
        return _over(record, Lifecycle.CANCELLED, cause, now)
    if ending == Ending.PAUSED and record.state == Lifecycle.WAITING:
        return _turned(record, Lifecycle.PAUSED, cause)
    return record


def resize(record: JobRecord, slots: tuple[int, ...], cause: str, now: float) -> JobRecord:
    """Change the slots of a running job; a job that does not run, or is being ended, is unchanged.

    Slots that the job must release still count as its own until all of its drivers have confirmed the lower number.
    """
    if not record.holds_slots or record.ending != Ending.NONE or slots == record.slots:
        return record
    shrinks = any(new < old for new, old in zip(slots, record.slots, strict=True))
    return replace(record, slots=slots, shrinking_since_s=now if shrinks else 0.0, cause=cause)


def release_by_s(record: JobRecord) -> float | None:
    """Return when a job has released the slots that it has to release, at the latest; None if that is not known.

    A job that is being ended is killed at that time, and a running one that does not shrink is ended.
    """
    if record.holds_slots and record.ending != Ending.NONE:
        return record.ending_since_s + GRACE_S.get(record.ending, USUAL_GRACE_S)
    if record.state == Lifecycle.RUNNING and record.shrinking_since_s:
        return max(record.shrinking_since_s, record.started_s) + SHRINK_S + GRACE_S[Ending.PREEMPTED]
    return None


def resume(record: JobRecord, cause: str) -> JobRecord:
    """Return a paused job to waiting; other jobs are unchanged.

    A job that is being paused will wait, instead of being paused, when its applications have ended.
    """
    if record.state == Lifecycle.PAUSED:
        return _turned(record, Lifecycle.WAITING, cause)
    if record.ending == Ending.PAUSED:
        return replace(record, ending=Ending.PREEMPTED, cause=cause)
    return record


def step(record: JobRecord, sight: EngineSnapshot, prefix: str, now: float) -> NextStep:
    """Update a job from a snapshot of its applications, and return the actions that follow.

    While the engine does not answer, no conclusions are drawn about applications.

    Args:
        record: Record of the job.
        sight: Snapshot of the engine.
        prefix: Prefix of this service's tags.
        now: Time in seconds since 1970.
    """
    if not record.holds_slots:
        return NextStep(_unless_unreadable(record, sight, now))
    if (gap := _unlaunched(record)) and record.ending == Ending.NONE:
        record = begin_ending(record, Ending.NOT_SUBMITTED, f"no application of task {gap} is recorded", now)
    seen = replace(record, launches=tuple(_seen(record, launch, sight, now) for launch in record.launches))
    if seen.ending == Ending.NONE:
        judged = _judged(seen, sight, prefix, now)
        if judged.record.ending == Ending.NONE:
            return replace(judged, tell=tuple(_told(judged.record)))
        seen = judged.record
    return _ended(seen, sight, now)


def _unless_unreadable(record: JobRecord, sight: EngineSnapshot, now: float) -> JobRecord:
    """Fail a job that waits for a cluster which has not answered for too long."""
    if record.state != Lifecycle.WAITING or sight.unreadable_s <= UNREADABLE_S:
        return record
    cause = f"the cluster could not be asked for {sight.unreadable_s / 3600:.0f} hours: {sight.problem}"
    return _over(record, Lifecycle.FAILED, cause, now)


def _unlaunched(record: JobRecord) -> str:
    """Return the name of a task without an application; "" if each has one."""
    launched = {launch.task for launch in record.launches}
    return next((task.name for task in record.tasks if task.name not in launched), "")


def _has_finished(record: JobRecord) -> bool:
    """Return True if each task has an application that has finished, or has ended with a task that has finished.

    A job without applications has not finished.
    """
    finished = all(
        launch.state == Lifecycle.FINISHED or (launch.state.is_final and record.may_end(launch))
        for launch in record.newest
    )
    return bool(record.tasks) and finished and not _unlaunched(record)


def _tag(prefix: str, serial: int, number: int, task: int, launch: int) -> str:
    """Return the tag of a launch: lower case, as YARN stores tags, and below YARN's limit of 100 characters."""
    return f"{prefix}-{serial}-{number}" + (f"-{task}-{launch}" if task or launch > 1 else "")


# ------------------------------------------------------------------------------------- observation


def _seen(record: JobRecord, launch: TaskLaunch, sight: EngineSnapshot, now: float) -> TaskLaunch:
    """Return a job's launch as updated by a snapshot."""
    if launch.state.is_final:
        return launch
    if sight.applications is None:
        is_submitted = not launch.application_id and launch.tag not in sight.submitting
        if is_submitted and sight.unreadable_s > SETTLE_S and now - launch.intended_s > SUBMIT_S:
            why = sight.refused.get(launch.tag) or sight.problem
            cause = (
                f"it was submitted with the tag {launch.tag}, but the cluster could not be asked for its application for "
                f"{SUBMIT_S:g} s, and kills it when it can be asked again: {why}"
            )
            return replace(launch, state=Lifecycle.FAILED, cause=cause)
        return replace(launch, unseen_since_s=None)
    found = _own(launch, sight.applications.get(launch.tag, ()))
    if found is not None:
        seen = _as_seen(launch, found, now)
        if record.ending != Ending.NONE:
            return _as_requested(record, seen, found.was_interrupted)
        is_by_request = found.was_interrupted or seen.state == Lifecycle.STOPPED
        if seen.state.is_final and is_by_request and record.may_end(launch):
            return replace(seen, state=Lifecycle.STOPPED, cause=f"ended with task {record.rule(launch).ends_with}")
        return seen
    if launch.tag in sight.submitting:
        return replace(launch, unseen_since_s=None)
    since = now if launch.unseen_since_s is None else launch.unseen_since_s
    if now - since < (GONE_S if launch.application_id else SETTLE_S):
        return replace(launch, unseen_since_s=since)
    if launch.application_id:
        cause = f"the cluster no longer knows {launch.application_id}, so its final state is unknown"
        return replace(launch, state=Lifecycle.LOST, cause=cause)
    if record.ending == Ending.CANCELLED:  # the submission was withdrawn
        return replace(launch, state=Lifecycle.CANCELLED, cause=record.cause)
    if launch.tag in sight.refused:
        return replace(launch, state=Lifecycle.FAILED, cause=f"submission failed: {sight.refused[launch.tag]}")
    return replace(launch, state=Lifecycle.LOST, cause="the service ended before the application was submitted")


def _as_requested(record: JobRecord, launch: TaskLaunch, was_interrupted: bool) -> TaskLaunch:
    """Return a launch of a job that is being ended, with that job's cause if the launch ended by it.

    A launch of a cancelled job that failed by another error is CANCELLED, too; its cause contains the error.
    """
    if launch.state not in (Lifecycle.FAILED, Lifecycle.STOPPED):
        return launch
    is_by_request = was_interrupted or launch.state == Lifecycle.STOPPED
    if record.ending == Ending.CANCELLED:
        cause = record.cause if is_by_request else f"{record.cause}; {launch.cause or 'it failed for no given reason'}"
        return replace(launch, state=Lifecycle.CANCELLED, cause=cause)
    return replace(launch, state=Lifecycle.STOPPED, cause=record.cause) if is_by_request else launch


def _own(launch: TaskLaunch, applications: tuple[SeenApplication, ...]) -> SeenApplication | None:
    """Return the application of a launch in a snapshot; None if it is not listed."""
    if not launch.application_id:
        return applications[0] if applications else None
    return next((one for one in applications if one.id == launch.application_id), None)


def _as_seen(launch: TaskLaunch, found: SeenApplication, now: float) -> TaskLaunch:
    """Return a launch with the state of its listed application."""
    return replace(
        launch,
        state=found.state,
        application_id=found.id,
        containers=found.containers,
        answer=found.answer or launch.answer,
        seen_s=launch.seen_s or now,
        cause=found.diagnostics if found.state.is_final else "",
        unseen_since_s=None,
    )


# ------------------------------------------------------------------------------------- consequences


def _judged(record: JobRecord, sight: EngineSnapshot, prefix: str, now: float) -> NextStep:
    """Return the next step of a job that is not being ended: finish it, continue, relaunch a task, or end it."""
    if _has_finished(record):
        return NextStep(_finished(record, now))
    relaunched: list[TaskLaunch] = []
    for launch in record.newest:
        if not launch.state.is_final or launch.state == Lifecycle.FINISHED or record.may_end(launch):
            continue
        if not launch.application_id and launch.state == Lifecycle.LOST:
            return NextStep(begin_ending(record, Ending.NOT_SUBMITTED, launch.cause, now))
        rule = record.rule(launch)
        if not rule.relaunch or not record.retries:
            if rule.ends_with and now - (launch.closing_since_s or now) < CHIEF_S:
                record = record.changed(replace(launch, closing_since_s=launch.closing_since_s or now))
                continue
            said = f"task {launch.task} {_said(launch.state)}: {launch.cause or 'no reason given'}"
            return NextStep(begin_ending(record, Ending.FAILED, said, now))
        number = launch.number + 1
        tag = _tag(prefix, record.serial, record.tries, record.tasks.index(rule), number)
        again = TaskLaunch(launch.task, number, tag, intended_s=now)
        record = replace(record.changed(again), retries=record.retries - 1)
        relaunched.append(again)
    closing = _closed(record, sight, now)
    record = _shrunk(_in_time(_started(closing.record, now), sight, now), sight, now)
    return replace(closing, record=record, submit=tuple(relaunched))


def _closed(record: JobRecord, sight: EngineSnapshot, now: float) -> NextStep:
    """Return the step that ends the launches whose tasks end with one that has finished: request the end, then kill."""
    closing = [launch for launch in record.newest if not launch.state.is_final and record.may_end(launch)]
    if new := [launch for launch in closing if launch.closing_since_s is None]:
        names = ", ".join(launch.task for launch in new)
        record = replace(record, cause=f"task {record.rule(new[0]).ends_with} has finished, and with it ends: {names}")
    for launch in new:
        record = record.changed(replace(launch, closing_since_s=now))
    late = {launch.tag for launch in closing if now - (launch.closing_since_s or now) >= CLOSING_S}
    known = [launch for launch in closing if launch.application_id]
    return NextStep(
        record,
        ask=tuple(launch.application_id for launch in known if launch.tag not in late),
        kill=tuple(launch.application_id for launch in known if launch.tag in late),
        withdraw=tuple(launch.tag for launch in closing if launch.tag in sight.submitting),
    )


def _started(record: JobRecord, now: float) -> JobRecord:
    """Set the job to RUNNING when each task runs with all of its workers; its running time starts then."""
    needed = {rule.name: rule.containers for rule in record.tasks}
    whole = all(
        launch.state == Lifecycle.FINISHED
        or (
            launch.state == Lifecycle.RUNNING
            and (launch.containers is None or launch.containers >= needed[launch.task])
        )
        for launch in record.newest
    )
    if record.state == Lifecycle.STARTING and whole:
        started = replace(record, started_s=record.started_s or now, failed_submissions=0)
        return _turned(started, Lifecycle.RUNNING, _what_is_there(record.newest))
    return record


def _what_is_there(launches: Sequence[TaskLaunch]) -> str:
    """Return the cause of RUNNING; without a count of containers it covers the drivers only."""
    if all(launch.containers is not None for launch in launches):
        return "all workers are connected"
    return "the driver is running" if len(launches) == 1 else "all drivers are running"


def _told(record: JobRecord) -> Iterator[tuple[str, int]]:
    """Yield (application ID, granted slots) of each driver that runs."""
    for rule, slots in zip(record.tasks, record.slots, strict=False):
        for launch in record.newest:
            if slots and launch.task == rule.name and launch.application_id and not launch.state.is_final:
                yield launch.application_id, slots


def _shrunk(record: JobRecord, sight: EngineSnapshot, now: float) -> JobRecord:
    """Check if the slots to be released are released; end the job at its next commit if that takes too long."""
    if not record.shrinking_since_s or record.ending != Ending.NONE or sight.applications is None:
        return record
    allowed = {rule.name: slots for rule, slots in zip(record.tasks, record.slots, strict=True) if slots}
    if all(_has_at_most(launch, allowed[launch.task]) for launch in record.newest if launch.task in allowed):
        has = ", ".join(f"{name} has {slots}" for name, slots in allowed.items())
        return replace(record, shrinking_since_s=0.0, cause=f"slots were released: {has}")
    if record.state == Lifecycle.RUNNING and now - max(record.shrinking_since_s, record.started_s) > SHRINK_S:
        cause = f"the slots were not released within {SHRINK_S:g} s ({record.cause}), so the job ends"
        return begin_ending(record, Ending.PREEMPTED, cause, now)
    return record


def _has_at_most(launch: TaskLaunch, slots: int) -> bool:
    """Return True if a launch has ended, or its driver confirmed that it holds at most this number of slots."""
    answer = launch.answer
    return launch.state.is_final or (answer is not None and answer.told == slots and answer.held <= slots)


def _in_time(record: JobRecord, sight: EngineSnapshot, now: float) -> JobRecord:
    """Return the record, with an ending if the time limit, a submission or the allocation of containers is overdue."""
    limit = record.time_limit_s
    if record.state == Lifecycle.RUNNING and limit is not None and now - record.started_s > limit:
        return begin_ending(record, Ending.TIME_LIMIT, f"the time limit of {limit:g} s is over", now)
    if record.state != Lifecycle.STARTING or sight.applications is None:
        return record
    under_way = [launch for launch in record.newest if launch.tag in sight.submitting]
    late = [launch for launch in under_way if now - launch.intended_s > SUBMIT_S]
    if late:
        return begin_ending(
            record, Ending.NOT_SUBMITTED, f"task {late[0].task} was not submitted within {SUBMIT_S:g} s", now
        )
    if all(launch.seen_s and now - launch.seen_s > FILL_S for launch in record.newest):
        cause = f"the cluster did not allocate all containers within {FILL_S:g} s"
        return begin_ending(record, Ending.NOT_FILLED, cause, now)
    return record


def _ended(record: JobRecord, sight: EngineSnapshot, now: float) -> NextStep:
    """Return the next step of a job that is being ended: request the end, then kill, until no application runs."""
    if _has_finished(record):  # it finished before it could be ended
        return NextStep(_finished(record, now))
    if not record.living:
        return NextStep(_after(record, now))
    seen = tuple(launch.application_id for launch in record.living if launch.application_id)
    withdraw = tuple(launch.tag for launch in record.living if launch.tag in sight.submitting)
    if now - record.ending_since_s < GRACE_S.get(record.ending, USUAL_GRACE_S):
        return NextStep(record, ask=seen, withdraw=withdraw)
    return NextStep(record, kill=seen, withdraw=withdraw)


def _after(record: JobRecord, now: float) -> JobRecord:
    """Return the record of a job that was being ended and whose applications have all ended."""
    free = replace(record, ending=Ending.NONE)
    match record.ending:
        case Ending.CANCELLED:
            return _over(record, Lifecycle.CANCELLED, record.cause, now)
        case Ending.PAUSED:
            return _turned(free, Lifecycle.PAUSED, record.cause)
        case Ending.PREEMPTED:
            return _turned(replace(free, preemptions=record.preemptions + 1), Lifecycle.WAITING, record.cause)
        case Ending.NOT_FILLED:
            return _turned(free, Lifecycle.WAITING, record.cause)
        case Ending.NOT_SUBMITTED if record.failed_submissions < FREE_SUBMISSIONS:
            again = replace(free, failed_submissions=record.failed_submissions + 1)
            return _turned(again, Lifecycle.WAITING, record.cause)
        case Ending.FAILED if record.retries > 0:
            return _turned(replace(free, retries=record.retries - 1), Lifecycle.WAITING, record.cause)
        case _:
            return _over(record, Lifecycle.FAILED, record.cause, now)


def _turned(record: JobRecord, state: Lifecycle, cause: str) -> JobRecord:
    """Return a record with another state and cause."""
    return replace(record, state=state, cause=cause)


def _finished(record: JobRecord, now: float) -> JobRecord:
    """Return the record of a job whose tasks have all finished, or have ended with others that have."""
    ended = [launch.task for launch in record.newest if launch.state != Lifecycle.FINISHED]
    rest = f"; {', '.join(ended)} ended with the task that is named in the job file" if ended else ""
    return _over(record, Lifecycle.FINISHED, f"all tasks have finished{rest}", now)


def _over(record: JobRecord, state: Lifecycle, cause: str, now: float) -> JobRecord:
    """Return the record of a job that has ended, which has nothing to release any more."""
    return replace(record, state=state, cause=cause, ending=Ending.NONE, ended_s=now, shrinking_since_s=0.0)


def _said(state: Lifecycle) -> str:
    """Return the part of a cause that describes how a task ended."""
    return {Lifecycle.FAILED: "failed", Lifecycle.STOPPED: "was killed from outside"}.get(state, "was lost")


def state_changes(before: JobRecord, after: JobRecord) -> Iterator[tuple[str, Lifecycle, str]]:
    """Yield the state changes between two records, for the job's history.

    Yields:
        (task, or "" for the job itself; its new state; the cause).
    """
    resized = (before.slots, bool(before.shrinking_since_s)) != (after.slots, bool(after.shrinking_since_s))
    if before.state != after.state or before.ending != after.ending or (resized and after.holds_slots):
        yield "", after.state, after.cause
    known = {launch.tag: launch.state for launch in before.launches}
    for launch in after.launches:
        if known.get(launch.tag) != launch.state:
            yield launch.task, launch.state, launch.cause
