"""What the service remembers of a job: how it stands, and the applications of its newest try."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from hopsml.service.lifecycle.sight import SlotsAnswer
from hopsml.states import Lifecycle


class Ending(StrEnum):
    """Why the applications of a job are being ended; the later ones go before the earlier ones."""

    NONE = "NONE"
    PREEMPTED = "PREEMPTED"  # for another job; it goes back to its place in the queue
    NOT_FILLED = "NOT_FILLED"  # the cluster has not given all that was asked for
    NOT_SUBMITTED = "NOT_SUBMITTED"  # the service ended, or moved, before an application was handed over
    FAILED = Lifecycle.FAILED.value  # a task has
    TIME_LIMIT = "TIME_LIMIT"
    PAUSED = Lifecycle.PAUSED.value
    CANCELLED = Lifecycle.CANCELLED.value

    def is_before(self, other: Ending) -> bool:
        """Whether ``other`` wins over this one."""
        order = list(Ending)
        return order.index(self) < order.index(other)


@dataclass(frozen=True, slots=True)
class TaskRule:
    """What the life of a job depends on, of one task. ``containers``: with so many, the driver's among them, it is whole."""

    name: str
    relaunch: bool = False
    containers: int = 1


@dataclass(frozen=True, slots=True)
class TaskLaunch:
    """One application that a job was to have: its row is there before it is submitted.

    ``tag``: of this launch alone; by it the application is found, whoever asks. ``state``: WAITING until the engine has
    it, STARTING until its driver runs, STOPPED where it was ended by us or from outside, LOST where it is not known how
    it ended. Times: seconds since 1970, 0 for not yet. ``unseen_since_s`` and ``answer``, its driver's to the number of
    slots that it was told, are not kept over a restart, which only delays conclusions.
    """

    task: str
    number: int
    tag: str
    state: Lifecycle = Lifecycle.WAITING
    application_id: str = ""
    containers: int | None = 0  # None: of an engine that does not count them
    intended_s: float = 0.0
    seen_s: float = 0.0
    cause: str = ""
    unseen_since_s: float | None = None
    answer: SlotsAnswer | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """``tries``: the number of the newest one; ``launches``: its applications, those that were replaced among them.

    ``retries``: how many failures are still forgiven. ``failed_submissions``: one after the other, before any was seen.
    ``slots``: of each task how many its driver may have, 0 for one that is not told; empty where none is.
    ``shrinking_since_s``: since when it is to give some back. ``version`` is the store's. Times: seconds since 1970, 0 for
    not yet.
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
        """Of each task its last launch."""
        return tuple({launch.task: launch for launch in self.launches}.values())

    @property
    def living(self) -> tuple[TaskLaunch, ...]:
        """What may still run."""
        return tuple(launch for launch in self.launches if not launch.state.is_final)

    @property
    def holds_slots(self) -> bool:
        """Whether it has a place on the cluster: something of it runs, or is about to."""
        return self.state in (Lifecycle.STARTING, Lifecycle.RUNNING, Lifecycle.CLOSING)

    def changed(self, launch: TaskLaunch) -> JobRecord:
        """With this launch in the place of the one with its tag; behind the others where there is none."""
        if all(other.tag != launch.tag for other in self.launches):
            return replace(self, launches=(*self.launches, launch))
        return replace(self, launches=tuple(launch if one.tag == launch.tag else one for one in self.launches))
