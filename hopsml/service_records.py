"""Records that the job service sends to its Python client: jobs, runs, metrics, schedules, secrets, tokens."""

from __future__ import annotations

import msgspec

from hopsml.core.states import Lifecycle


class JobProgress(msgspec.Struct, frozen=True):
    """Progress of a job's newest run.

    Attributes:
        run: Id of the run.
        done: Units done; None before the first report.
        total: All units; None if that is not known.
        unit: "step", "epoch" or "trial".
        metric_name: Name of the main metric; empty if there is none.
        metric: Its newest value, of a search the best one.
    """

    run: str
    done: int | None
    total: int | None
    unit: str
    metric_name: str
    metric: float | None

    def text(self) -> str:
        """Return the progress as "step 10 of 40" or "trials 3 of 12"; "starting" before the first report."""
        if self.done is None:
            return "starting"
        count = f"{self.done} of {self.total}" if self.total else str(self.done)
        return f"{'trials' if self.unit == 'trial' else self.unit} {count}"


class ServiceJob(msgspec.Struct, frozen=True):
    """Job of the service; times are in seconds since 1970, 0 for not yet.

    ``why`` explains why it does not run, ``progress`` is that of its newest run; in a list they are present only if
    requested. ``actions`` are what can be done with it in this state, such as ``pause``.
    """

    id: str
    serial: int
    name: str
    owner: str
    queue: str
    priority: int
    state: Lifecycle
    cause: str
    tries: int
    retries: int
    preemptions: int
    submitted_s: float
    started_s: float
    ended_s: float
    why: str = ""
    actions: list[str] = []
    progress: JobProgress | None = None


class JobApplication(msgspec.Struct, frozen=True):
    """YARN application or process that was started for a task of a job."""

    task: str
    number: int
    state: Lifecycle
    application_id: str
    tag: str
    cause: str


class JobSize(msgspec.Struct, frozen=True):
    """Numbers of slots of a task: held, planned, minimum and maximum.

    The task is about to release slots if ``target`` is below ``slots``.
    """

    task: str
    slots: int
    target: int
    fewest: int
    most: int


class ServiceJobDetail(ServiceJob, frozen=True, kw_only=True):
    """Job with its applications, the sizes of its tasks and its specification; ``spec`` is YAML."""

    spec: str
    profile: str
    applications: list[JobApplication]
    sizes: list[JobSize] = []


class JobChange(msgspec.Struct, frozen=True):
    """Change of the state of a job or task; ``task`` is empty for the job itself."""

    id: int
    task: str
    state: Lifecycle
    cause: str
    try_number: int
    at_s: float


class JobRun(msgspec.Struct, frozen=True):
    """Run that a task of a job has made; ``metric`` is the value of its main metric, None without one."""

    id: str
    state: str
    metric_name: str
    metric: float | None


class JobMetric(msgspec.Struct, frozen=True):
    """Statistics of a metric of a run: number of reports, last step, and values; None if no value was a number."""

    name: str
    reports: int
    step: float
    last: float | None
    lowest: float | None
    highest: float | None


class JobRunMetrics(JobRun, frozen=True, kw_only=True):
    """Run of a job's task, with all metrics that it has reported.

    ``trial`` is, for a search, the trial with these metrics: the best one, or the one with the most steps if none is
    best.
    """

    metrics: list[JobMetric]
    trial: str = ""


class RankLogPart(msgspec.Struct, frozen=True):
    """Response with a part of a worker's log."""

    run: str
    newest: str
    lines: list[str]
    end: int
    is_whole: bool
    is_over: bool


class TokenRecord(msgspec.Struct, frozen=True):
    """Record of a user's access token, without the token itself; times are in seconds since 1970."""

    id: str
    user: str
    role: str
    label: str
    created_s: float
    expires_s: float | None
    revoked_s: float | None


class AuditRecord(msgspec.Struct, frozen=True):
    """Call that has changed something or was rejected; ``user`` is empty for a call without a valid token."""

    id: int
    at_s: float
    user: str
    role: str
    action: str
    target: str
    outcome: int
    peer: str


class AuditLogPage(msgspec.Struct):
    """Page of audit records; ``cursor`` selects the next page, None on the last one."""

    entries: list[AuditRecord]
    cursor: int | None


class ServiceSchedule(msgspec.Struct, frozen=True):
    """Schedule that starts a job repeatedly; ``spec`` is YAML.

    ``planned_s`` is the next start, in seconds since 1970.
    """

    id: str
    owner: str
    schedule: str
    zone: str
    overlap: str
    is_paused: bool
    planned_s: float
    last_job: str
    note: str
    spec: str


class SecretRecord(msgspec.Struct, frozen=True):
    """Record of a secret, without its value; ``stored_s`` is in seconds since 1970."""

    name: str
    stored_s: float


class JobListPage(msgspec.Struct):
    """Page of jobs; ``cursor`` selects the next page, None on the last one."""

    jobs: list[ServiceJob]
    cursor: int | None


class DriverLogPart(msgspec.Struct):
    """Response with a part of a driver's output; ``end`` is the offset after it."""

    text: str
    end: int
