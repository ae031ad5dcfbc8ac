"""Stored state of a job and of the applications of its newest try."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hopsml.core.newer_python import StrEnum
from hopsml.core.states import Lifecycle


@dataclass(frozen=True, slots=True)
class SlotsAnswer:
    """Answer of a driver to the number of slots that it was granted.

    Attributes:
        told: The number of slots that the driver received.
        held: The maximum number of slots that it holds.
    """

    told: int
    held: int


@dataclass(frozen=True, slots=True)
class SeenApplication:
    """Application as one poll of the engine returned it.

    ``state`` is STARTING, RUNNING, FINISHED, FAILED, or STOPPED if the application was killed. ``was_interrupted`` is
    True if a failed application ended with the exit status of an interrupt.
    """

    id: str
    state: Lifecycle
    diagnostics: str = ""
    containers: int | None = None  # running containers, including the driver's; None: the engine does not count them
    answer: SlotsAnswer | None = None  # None: the driver has not answered yet
    was_interrupted: bool = False


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Applications in one engine snapshot, and the submissions of this process.

    Attributes:
        applications: Tag of a launch -> its applications, the oldest first; None if the engine does not answer.
        submitting: Tags of submissions that are in progress in this process.
        refused: Tag -> reason for which its submission failed.
        problem: Error of an engine that does not answer, or refuses.
        unreadable_s: Seconds for which it has not answered.
    """

    applications: Mapping[str, tuple[SeenApplication, ...]] | None
    submitting: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    unreadable_s: float = 0.0


def stray_applications(sight: EngineSnapshot, living: Mapping[str, str]) -> Iterable[str]:
    """Yield the IDs of running applications with a tag of this service that belong to no permitted launch.

    Of two applications with the same tag, the older one is permitted.

    Args:
        sight: Snapshot of the engine.
        living: Tag -> application ID, "" if not known yet, of each launch that may run.
    """
    for tag, applications in (sight.applications or {}).items():
        known = living.get(tag)
        for position, application in enumerate(applications):
            mine = known is not None and (application.id == known if known else position == 0)
            if not mine and not application.state.is_final:
                yield application.id


def ended_tags(sight: EngineSnapshot, living: Mapping[str, str]) -> Iterable[str]:
    """Return the tags of launches that have ended, or were refused, and whose end is stored.

    Args:
        sight: Snapshot of the engine.
        living: As for ``stray_applications``, after the jobs were advanced by this snapshot.
    """
    ended = (
        tag
        for tag, applications in (sight.applications or {}).items()
        if all(application.state.is_final for application in applications)
    )
    return [tag for tag in {*ended, *sight.refused} - sight.submitting if tag not in living]


class Ending(StrEnum):
    """Reason for which the applications of a job are being ended; a later member overrides an earlier one."""

    NONE = "NONE"
    PREEMPTED = "PREEMPTED"  # in favour of another job; the job returns to its place in the queue
    NOT_FILLED = "NOT_FILLED"  # the cluster did not allocate all requested containers
    NOT_SUBMITTED = "NOT_SUBMITTED"  # the service ended or lost its lease before an application was submitted
    FAILED = Lifecycle.FAILED.value  # a task failed
    TIME_LIMIT = "TIME_LIMIT"
    PAUSED = Lifecycle.PAUSED.value
    CANCELLED = Lifecycle.CANCELLED.value

    def is_overridden_by(self, other: Ending) -> bool:
        """Return True if ``other`` overrides this reason."""
        order = list(Ending)
        return order.index(self) < order.index(other)


@dataclass(frozen=True, slots=True)
class TaskRule:
    """Properties of a task on which the job's state depends.

    Attributes:
        name: Name of the task.
        relaunch: True if a failed application of the task is submitted again.
        containers: Number of containers, including the driver's, with which the task is complete.
        ends_with: Name of the task with whose success this one is ended; "" if it ends by itself.
    """

    name: str
    relaunch: bool = False
    containers: int = 1
    ends_with: str = ""


@dataclass(frozen=True, slots=True)
class TaskLaunch:
    """One application of a task; it is stored before it is submitted.

    Times are in seconds since 1970; 0 if the event has not occurred. ``unseen_since_s``, ``closing_since_s`` and
    ``answer`` are lost at a restart of the service, which only delays conclusions.

    Attributes:
        task: Name of the task.
        number: Number of the launch within the try.
        tag: Unique tag of this launch, by which any server finds its application.
        state: WAITING until the engine has the application, STARTING until its driver runs, CANCELLED if a user
            cancelled its job, STOPPED if the service or another party ended it, LOST if its end is unknown.
        application_id: ID that the engine assigned; "" if none is known.
        containers: Number of running containers; None if the engine does not count them.
        intended_s: Time at which the launch was stored.
        seen_s: Time at which the engine first listed the application.
        cause: Diagnostics of the application's end.
        unseen_since_s: Time since which the engine does not list the application; None if it is listed.
        closing_since_s: Time since which the launch is being ended with another task, or, after its failure, since which
            the end of that task is waited for; None if neither is the case.
        answer: The driver's answer to the number of slots that was sent to it.
    """

    task: str
    number: int
    tag: str
    state: Lifecycle = Lifecycle.WAITING
    application_id: str = ""
    containers: int | None = 0
    intended_s: float = 0.0
    seen_s: float = 0.0
    cause: str = ""
    unseen_since_s: float | None = None
    closing_since_s: float | None = None
    answer: SlotsAnswer | None = None


def holds_slots(state: Lifecycle) -> bool:
    """Return True if a job in this state occupies slots of the cluster."""
    return state in (Lifecycle.STARTING, Lifecycle.RUNNING, Lifecycle.CLOSING)


def permitted_actions(state: Lifecycle) -> tuple[str, ...]:
    """Return what users can do with a job in this state, by the names of the routes and commands."""
    if state.is_final:
        return ("clone", "remove")
    pause = ("pause",) if state in (Lifecycle.WAITING, Lifecycle.STARTING, Lifecycle.RUNNING) else ()
    resume = ("resume",) if state == Lifecycle.PAUSED else ()
    return (*pause, *resume, "cancel", "move", "clone")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """State of a job, with the launches of its newest try.

    Times are in seconds since 1970; 0 if the event has not occurred.

    Attributes:
        serial: Number of the job in the database.
        tasks: Rules of the job's tasks.
        state: State of the job.
        ending: Reason for which the job is being ended.
        cause: Text that explains the state.
        tries: Number of the newest try.
        retries: Number of failures that are still tolerated.
        failed_submissions: Number of consecutive submissions that failed before any application was seen.
        preemptions: Number of preemptions so far.
        time_limit_s: Limit of the running time in seconds; None if there is no limit.
        launches: Applications of the newest try, including those that were replaced.
        placed_s: Start of the newest try.
        started_s: Time at which all workers of the newest try ran.
        ending_since_s: Time since which the job is being ended.
        ended_s: Time at which the job ended.
        slots: Slots granted to the driver of each task, 0 for a task that is not elastic; empty if no task is.
        shrinking_since_s: Time since which the job has slots to release.
        version: Version of the row in the store.
    """

    serial: int
    tasks: tuple[TaskRule, ...]
    state: Lifecycle = Lifecycle.WAITING
    ending: Ending = Ending.NONE
    cause: str = ""
    tries: int = 0
    retries: int = 0
    failed_submissions: int = 0
    preemptions: int = 0
    time_limit_s: float | None = None
    launches: tuple[TaskLaunch, ...] = ()
    placed_s: float = 0.0
    started_s: float = 0.0
    ending_since_s: float = 0.0
    ended_s: float = 0.0
    slots: tuple[int, ...] = ()
    shrinking_since_s: float = 0.0
    version: int = 0

    @property
    def newest(self) -> tuple[TaskLaunch, ...]:
        """Newest launch of each task."""
        return tuple({launch.task: launch for launch in self.launches}.values())

    @property
    def living(self) -> tuple[TaskLaunch, ...]:
        """Launches that may still run."""
        return tuple(launch for launch in self.launches if not launch.state.is_final)

    def rule(self, launch: TaskLaunch) -> TaskRule:
        """Return the rule of a launch's task."""
        return next(rule for rule in self.tasks if rule.name == launch.task)

    def may_end(self, launch: TaskLaunch) -> bool:
        """Return True if the task of a launch ends with another task, and that one has finished."""
        chief = self.rule(launch).ends_with
        return any(one.task == chief and one.state == Lifecycle.FINISHED for one in self.newest)

    @property
    def holds_slots(self) -> bool:
        """True if the job occupies slots of the cluster: an application of it runs or is about to."""
        return holds_slots(self.state)

    def changed(self, launch: TaskLaunch) -> JobRecord:
        """Return a record with this launch replacing the one of the same tag, or appended if there is none."""
        if all(other.tag != launch.tag for other in self.launches):
            return replace(self, launches=(*self.launches, launch))
        return replace(self, launches=tuple(launch if one.tag == launch.tag else one for one in self.launches))
