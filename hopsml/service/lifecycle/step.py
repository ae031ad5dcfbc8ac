"""The rules by which a job goes on: pure functions of its record, one look at the engine, and the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hopsml.service.lifecycle.record import Ending, JobRecord, TaskLaunch
from hopsml.service.lifecycle.sight import SeenApplication, Sight
from hopsml.states import Lifecycle

SETTLE_S = 10.0  # from the end of a submission until the engine surely lists what came of it
GONE_S = 60.0  # so long an application that was there may be missing: a ResourceManager that restarts learns it again
FILL_S = 180.0  # from when the engine has all of its applications until all containers have to be there
SUBMIT_S = 900.0  # that a submission may take: an environment may have to be packed and uploaded first
FREE_SUBMISSIONS = 3  # that fail before anything is seen and count as nobody's fault
GRACE_S = {Ending.PREEMPTED: 60.0, Ending.PAUSED: 60.0, Ending.NOT_FILLED: 0.0}  # from being asked to being killed
USUAL_GRACE_S = 10.0
SHRINK_S = 180.0  # for giving slots back: the next commit has to come, and an executor has to be idle for a while


@dataclass(frozen=True, slots=True)
class NextStep:
    """``record`` is to be stored first; then what is in ``submit`` is submitted, what is in ``ask`` is asked to end, and
    what is in ``kill`` is killed, again at each step until it is gone. ``withdraw``: tags of submissions to be broken off.
    ``tell``: of applications how many slots they may have, at each step as well: after a restart nobody knows who was told.
    """

    record: JobRecord
    submit: tuple[TaskLaunch, ...] = ()
    ask: tuple[str, ...] = ()
    kill: tuple[str, ...] = ()
    withdraw: tuple[str, ...] = ()
    tell: tuple[tuple[str, int], ...] = ()


def place(record: JobRecord, prefix: str, now: float, slots: tuple[int, ...] = ()) -> NextStep:
    """A waiting job has been given its place: its next try begins. ``prefix``: of the tags, this service's own; ``slots``
    as in the record.
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
    return NextStep(_turned(begun, Lifecycle.STARTING, "given its slots"), submit=launches)


def end(record: JobRecord, ending: Ending, cause: str, now: float) -> JobRecord:
    """A job is to be ended, by somebody's wish or by the scheduler's; nothing happens to one that is over.

    One that waits is over at once, or paused; from others what runs is ended first. The more lasting ending wins.
    """
    if record.state.is_final or ending == Ending.NONE or not record.ending.is_before(ending):
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
    """A job goes on with fewer slots, or more; nothing happens to one that does not run, or ends.

    Those that it is to give back are its own until all of its drivers have said that they have no more than that.
    """
    if not record.holds_slots or record.ending != Ending.NONE or slots == record.slots:
        return record
    shrinks = any(new < old for new, old in zip(slots, record.slots, strict=True))
    return replace(record, slots=slots, shrinking_since_s=now if shrinks else 0.0, cause=cause)


def resume(record: JobRecord, cause: str) -> JobRecord:
    """A paused job waits again; nothing happens to others, but one that is about to pause is to wait instead."""
    if record.state == Lifecycle.PAUSED:
        return _turned(record, Lifecycle.WAITING, cause)
    if record.ending == Ending.PAUSED:
        return replace(record, ending=Ending.PREEMPTED, cause=cause)
    return record


def step(record: JobRecord, sight: Sight, prefix: str, now: float) -> NextStep:
    """What has become of a job's applications since, and what follows. With an engine that is silent nothing does."""
    if not record.holds_slots:
        return NextStep(record)
    if (gap := _unlaunched(record)) and record.ending == Ending.NONE:
        record = end(record, Ending.NOT_SUBMITTED, f"no application of task {gap} is recorded", now)
    seen = replace(record, launches=tuple(_seen(launch, sight, now) for launch in record.launches))
    if seen.ending == Ending.NONE:
        judged = _judged(seen, sight, prefix, now)
        if judged.record.ending == Ending.NONE:
            return replace(judged, tell=tuple(_told(judged.record)))
        seen = judged.record
    return _ended(seen, sight, now)


def _unlaunched(record: JobRecord) -> str:
    """Return the name of a task without an application; "" if each has one."""
    launched = {launch.task for launch in record.launches}
    return next((task.name for task in record.tasks if task.name not in launched), "")


def _has_finished(record: JobRecord) -> bool:
    """True if each task has an application and it has finished: a job without applications has not."""
    finished = all(launch.state == Lifecycle.FINISHED for launch in record.newest)
    return bool(record.tasks) and finished and not _unlaunched(record)


def _tag(prefix: str, serial: int, number: int, task: int, launch: int) -> str:
    """In lower case, as YARN keeps tags; below its 100 characters."""
    return f"{prefix}-{serial}-{number}" + (f"-{task}-{launch}" if task or launch > 1 else "")


# ------------------------------------------------------------------------------------- what is seen


def _seen(launch: TaskLaunch, sight: Sight, now: float) -> TaskLaunch:
    if launch.state.is_final:
        return launch
    if sight.applications is None:
        return replace(launch, unseen_since_s=None)
    found = _own(launch, sight.applications.get(launch.tag, ()))
    if found is not None:
        return _as_seen(launch, found, now)
    if launch.tag in sight.submitting:
        return replace(launch, unseen_since_s=None)
    since = now if launch.unseen_since_s is None else launch.unseen_since_s
    if now - since < (GONE_S if launch.application_id else SETTLE_S):
        return replace(launch, unseen_since_s=since)
    if launch.application_id:
        cause = f"{launch.application_id} is not known any more, and how it ended is not"
        return replace(launch, state=Lifecycle.LOST, cause=cause)
    if launch.tag in sight.refused:
        return replace(launch, state=Lifecycle.FAILED, cause=f"it was not submitted: {sight.refused[launch.tag]}")
    return replace(launch, state=Lifecycle.LOST, cause="the service ended before it was submitted")


def _own(launch: TaskLaunch, applications: tuple[SeenApplication, ...]) -> SeenApplication | None:
    if not launch.application_id:
        return applications[0] if applications else None
    return next((one for one in applications if one.id == launch.application_id), None)


def _as_seen(launch: TaskLaunch, found: SeenApplication, now: float) -> TaskLaunch:
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


# ------------------------------------------------------------------------------------- what follows


def _judged(record: JobRecord, sight: Sight, prefix: str, now: float) -> NextStep:
    """Nobody has asked for its end: it is over, goes on, is mended, or has to be ended."""
    if _has_finished(record):
        return NextStep(_over(record, Lifecycle.FINISHED, "all tasks have finished", now))
    relaunched: list[TaskLaunch] = []
    for launch in record.newest:
        if not launch.state.is_final or launch.state == Lifecycle.FINISHED:
            continue
        if not launch.application_id and launch.state == Lifecycle.LOST:
            return NextStep(end(record, Ending.NOT_SUBMITTED, launch.cause, now))
        index, rule = next((index, rule) for index, rule in enumerate(record.tasks) if rule.name == launch.task)
        if not rule.relaunch or not record.retries:
            said = f"task {launch.task} {_said(launch.state)}: {launch.cause or 'it did not say why'}"
            return NextStep(end(record, Ending.FAILED, said, now))
        number = launch.number + 1
        again = TaskLaunch(
            launch.task, number, _tag(prefix, record.serial, record.tries, index, number), intended_s=now
        )
        record = replace(record.changed(again), retries=record.retries - 1)
        relaunched.append(again)
    return NextStep(_shrunk(_in_time(_started(record, now), sight, now), sight, now), submit=tuple(relaunched))


def _started(record: JobRecord, now: float) -> JobRecord:
    """RUNNING, once each task runs with all of its workers; then its time begins to count."""
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
    """No more than the engine has seen: on this machine that is drivers, which still have to start their workers."""
    if all(launch.containers is not None for launch in launches):
        return "all of its workers are there"
    return "its driver runs" if len(launches) == 1 else "all of its drivers run"


def _told(record: JobRecord) -> Iterator[tuple[str, int]]:
    """What each driver that there is may have."""
    for rule, slots in zip(record.tasks, record.slots, strict=False):
        for launch in record.newest:
            if slots and launch.task == rule.name and launch.application_id and not launch.state.is_final:
                yield launch.application_id, slots


def _shrunk(record: JobRecord, sight: Sight, now: float) -> JobRecord:
    """Whether what it was to give back is given back; one that takes too long for that ends with its next commit."""
    if not record.shrinking_since_s or record.ending != Ending.NONE or sight.applications is None:
        return record
    allowed = {rule.name: slots for rule, slots in zip(record.tasks, record.slots, strict=True) if slots}
    if all(_has_at_most(launch, allowed[launch.task]) for launch in record.newest if launch.task in allowed):
        has = ", ".join(f"{name} has {slots}" for name, slots in allowed.items())
        return replace(record, shrinking_since_s=0.0, cause=f"slots are given back: {has}")
    if record.state == Lifecycle.RUNNING and now - max(record.shrinking_since_s, record.started_s) > SHRINK_S:
        cause = f"it has not given its slots back within {SHRINK_S:g} s ({record.cause}), and ends for that"
        return end(record, Ending.PREEMPTED, cause, now)
    return record


def _has_at_most(launch: TaskLaunch, slots: int) -> bool:
    answer = launch.answer
    return launch.state.is_final or (answer is not None and answer.told == slots and answer.held <= slots)


def _in_time(record: JobRecord, sight: Sight, now: float) -> JobRecord:
    limit = record.time_limit_s
    if record.state == Lifecycle.RUNNING and limit is not None and now - record.started_s > limit:
        return end(record, Ending.TIME_LIMIT, f"its time limit, {limit:g} s, is over", now)
    if record.state != Lifecycle.STARTING or sight.applications is None:
        return record
    under_way = [launch for launch in record.newest if launch.tag in sight.submitting]
    late = [launch for launch in under_way if now - launch.intended_s > SUBMIT_S]
    if late:
        return end(record, Ending.NOT_SUBMITTED, f"task {late[0].task} was not submitted within {SUBMIT_S:g} s", now)
    if all(launch.seen_s and now - launch.seen_s > FILL_S for launch in record.newest):
        cause = f"the cluster has not given all of its containers within {FILL_S:g} s"
        return end(record, Ending.NOT_FILLED, cause, now)
    return record


def _ended(record: JobRecord, sight: Sight, now: float) -> NextStep:
    """It is to end: ask, then kill, until nothing of it is left."""
    if _has_finished(record):  # it was quicker
        return NextStep(_over(record, Lifecycle.FINISHED, "all tasks have finished", now))
    if not record.living:
        return NextStep(_after(record, now))
    seen = tuple(launch.application_id for launch in record.living if launch.application_id)
    withdraw = tuple(launch.tag for launch in record.living if launch.tag in sight.submitting)
    if now - record.ending_since_s < GRACE_S.get(record.ending, USUAL_GRACE_S):
        return NextStep(record, ask=seen, withdraw=withdraw)
    return NextStep(record, kill=seen, withdraw=withdraw)


def _after(record: JobRecord, now: float) -> JobRecord:
    """Nothing of it is left: what it is now."""
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
    return replace(record, state=state, cause=cause)


def _over(record: JobRecord, state: Lifecycle, cause: str, now: float) -> JobRecord:
    return replace(record, state=state, cause=cause, ending=Ending.NONE, ended_s=now)


def _said(state: Lifecycle) -> str:
    return {Lifecycle.FAILED: "failed", Lifecycle.STOPPED: "was killed from outside"}.get(state, "was lost")


def differences(before: JobRecord, after: JobRecord) -> Iterator[tuple[str, Lifecycle, str]]:
    """Changes of state, for the record of them: (task, or "" for the job itself; its state now; the cause)."""
    resized = (before.slots, bool(before.shrinking_since_s)) != (after.slots, bool(after.shrinking_since_s))
    if before.state != after.state or before.ending != after.ending or (resized and after.holds_slots):
        yield "", after.state, after.cause
    known = {launch.tag: launch.state for launch in before.launches}
    for launch in after.launches:
        if known.get(launch.tag) != launch.state:
            yield launch.task, launch.state, launch.cause
