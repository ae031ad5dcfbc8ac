"""Records that the job store accepts and returns."""

from __future__ import annotations

from dataclasses import dataclass

from hopsml.core.newer_python import StrEnum
from hopsml.core.states import Lifecycle


@dataclass(frozen=True, slots=True)
class NewJob:
    """A submission of a job.

    Attributes:
        name: Name of the job.
        owner: The user.
        queue: Name of the queue.
        priority: Priority in the queue.
        spec: The validated job file as JSON.
        profile: Name of the profile that it runs under.
        workspace: Digest of its uploaded code; empty if none was uploaded.
        retries: Failures after which it is tried again.
        idempotency_key: Two submissions of an owner with the same key are one job; None for no key.
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
    """Limits of one owner's stored jobs; 0 is no limit.

    The server holds the job files of unfinished jobs in memory.

    Attributes:
        unfinished: Most jobs that have not ended.
        stored: Most jobs altogether.
        unfinished_length: Most characters of the job files of jobs that have not ended.
        stored_length: Most characters of all job files.
    """

    unfinished: int = 10_000
    stored: int = 50_000
    unfinished_length: int = 256 << 20
    stored_length: int = 2 << 30


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as it is stored; times are in seconds since 1970.

    ``attained_s`` are the GPU-seconds before the newest try. ``placement`` maps nodes to slots for each part of its
    gang; ``target`` is the same without the slots that it is about to release, or None if it releases none.
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
        """Return the name that users see: the job's name and its unique number."""
        return f"{self.name}-{self.serial}"


@dataclass(frozen=True, slots=True)
class Account:
    """State of a job that the scheduler needs after a restart; ``placement`` and ``target`` are those of its row."""

    attained_s: float = 0.0
    waited_s: float = 0.0
    failed_fills: int = 0
    placement: list[dict[str, int]] | None = None
    target: list[dict[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A change of state of a task's application, or of the job if ``task`` is ""."""

    id: int
    job: int
    try_number: int
    task: str
    state: Lifecycle
    cause: str
    at_s: float


class RequestKind(StrEnum):
    """Kind of a user's request for an existing job."""

    CANCEL = "CANCEL"
    PAUSE = "PAUSE"
    RESUME = "RESUME"
    MOVE = "MOVE"  # to the queue and priority in ``value``


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A user's request for a job.

    Attributes:
        id: Number of the request.
        job: Serial of the job.
        kind: What is requested.
        value: "QUEUE PRIORITY" for MOVE; else empty.
        who: The user.
        at_s: Time of the request, in seconds since 1970.
        answered_s: Time at which it was applied or refused; None before.
        answer: Reason of a refusal; empty if it was applied.
    """

    id: int
    job: int
    kind: RequestKind
    value: str
    who: str
    at_s: float
    answered_s: float | None = None
    answer: str = ""


@dataclass(frozen=True, slots=True)
class RowPage:
    """A page of jobs; ``cursor`` selects the next page, and is None at the end."""

    jobs: tuple[JobRow, ...]
    cursor: int | None = None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Filter of jobs, in which empty fields match all; ``text`` is a part of the name, in any case."""

    states: tuple[Lifecycle, ...] = ()
    owner: str = ""
    queue: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class JobCount:
    """Number of jobs of a queue in a state; ``since_s`` is the start of the oldest waiting job's wait."""

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
