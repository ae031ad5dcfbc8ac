"""What goes into the store and comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hopsml.states import Lifecycle


@dataclass(frozen=True, slots=True)
class NewJob:
    """A submission. ``spec``: the job file as JSON, checked; ``workspace``: the digest of its code, "" for none uploaded.

    ``idempotency_key``: of two submissions of an owner with the same one there is one job.
    """

    name: str
    owner: str
    queue: str
    priority: int
    spec: str
    profile: str
    workspace: str = ""
    retries: int = 0
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class JobLimits:
    """How many jobs of one owner are stored: ``unfinished`` ones, and all together; 0: any number.

    ``unfinished_length`` and ``stored_length``: of their job files, in characters. The server holds those of unfinished
    jobs in memory.
    """

    unfinished: int = 10_000
    stored: int = 50_000
    unfinished_length: int = 256 << 20
    stored_length: int = 2 << 30


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as it is told. ``attained_s``: GPU-seconds it had before its newest try; ``placement``: of each part of its
    gang, node -> slots; ``target``: the same without what it is about to give back, None for nothing.
    """

    serial: int
    name: str
    owner: str
    queue: str
    priority: int
    spec: str
    workspace: str
    profile: str
    state: Lifecycle
    ending: str
    cause: str
    tries: int
    retries: int
    failed_submissions: int
    preemptions: int
    failed_fills: int
    attained_s: float
    waited_s: float
    placement: list[dict[str, int]] | None
    submitted_s: float
    placed_s: float
    started_s: float
    ending_since_s: float
    ended_s: float
    version: int
    target: list[dict[str, int]] | None
    shrinking_since_s: float

    @property
    def id(self) -> str:
        """What people call it: its name, and a number that no other job has."""
        return f"{self.name}-{self.serial}"


@dataclass(frozen=True, slots=True)
class Account:
    """What the scheduler has to know of a job after a restart; ``placement``, ``target``: as its row's."""

    attained_s: float = 0.0
    waited_s: float = 0.0
    failed_fills: int = 0
    placement: list[dict[str, int]] | None = None
    target: list[dict[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A change of state: of a task's application, or, with ``task`` "", of the job."""

    id: int
    job: int
    try_number: int
    task: str
    state: Lifecycle
    cause: str
    at_s: float


class WishKind(StrEnum):
    """What people want of a job that is there already."""

    CANCEL = "CANCEL"
    PAUSE = "PAUSE"
    RESUME = "RESUME"
    MOVE = "MOVE"  # to the queue, and priority, in ``value``


@dataclass(frozen=True, slots=True)
class WishRow:
    """``value``: of a MOVE, "QUEUE PRIORITY"; ``answer``: what became of it, once it is answered."""

    id: int
    job: int
    kind: WishKind
    value: str
    who: str
    at_s: float
    answered_s: float | None = None
    answer: str = ""


@dataclass(frozen=True, slots=True)
class RowPage:
    """Some of many; ``cursor`` leads to the next ones, None at the end."""

    jobs: tuple[JobRow, ...]
    cursor: int | None = None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are meant; what is empty does not matter. ``text``: a part of the name, whatever its case."""

    states: tuple[Lifecycle, ...] = ()
    owner: str = ""
    queue: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class JobCount:
    """How many jobs of a queue are in a state; ``since_s``: since when the oldest of them waits, where they do."""

    queue: str
    state: Lifecycle
    count: int
    since_s: float


@dataclass(frozen=True, slots=True)
class Leader:
    """Lease of the server that runs the jobs of a database, valid until ``until_s``.

    ``term``: number of the lease, which grows by one at each change of leader; changes under an older one are refused.
    """

    holder: str
    address: str
    until_s: float
    term: int = 0
