"""Request and response models of the API, for the OpenAPI document; times are seconds since 1970."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from hopsml.core.states import Lifecycle
from hopsml.service.browse.run_list import RunProgress, RunRow
from hopsml.service.lifecycle.record import permitted_actions
from hopsml.service.scheduler.cluster_status import NodeStatus, QueueStatus
from hopsml.service.scheduler.resources import UNLIMITED, Resources
from hopsml.service.store import ChangeRow, JobRow
from hopsml.service.store.accounts import TokenRow

RoleName = Literal["viewer", "user", "operator", "admin"]


class RefusalAnswer(BaseModel):
    """Response of every request that fails, with a status from 400 on."""

    error: str = Field(description="Description of the error.")
    remedy: str = Field(description="Remedy; empty if there is none.")


class Submission(BaseModel):
    """A job to be queued."""

    model_config = ConfigDict(extra="forbid")

    spec: str = Field(max_length=1 << 20, description="Content of the job file.")
    workspace: str = Field(
        default="",
        pattern="^([0-9a-f]{64})?$",
        description="Digest of the uploaded code; null if the job needs no code.",
    )


class QueuePlace(BaseModel):
    """The queue and priority that a job is moved to."""

    model_config = ConfigDict(extra="forbid")

    queue: str | None = Field(
        default=None, pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", description="Default: the unchanged value."
    )
    priority: int | None = Field(default=None, ge=1, le=100, description="Higher is more urgent.")


class Uploaded(BaseModel):
    """Uploaded code of a job, by its digest."""

    workspace: str = Field(description="SHA-256 of the zip.")


class JobProgressAnswer(BaseModel):
    """Progress of a job's newest run."""

    run: str = Field(description="Id of the run.")
    done: int | None = Field(description="Units done; null before the first report.")
    total: int | None = Field(description="All units; null where that is not known.")
    unit: str = Field(description="step, epoch or trial.")
    metric_name: str
    metric: float | None = Field(
        description="Newest value of the main metric, of a search the best one; null for none."
    )

    @classmethod
    def of(cls, run: RunRow, progress: RunProgress | None) -> JobProgressAnswer:
        """Convert the row of a run with its progress."""
        metric = run.metric if run.metric is not None and math.isfinite(run.metric) else None
        done, total, unit = (None, None, "step") if progress is None else (progress.done, progress.total, progress.unit)
        return cls(run=run.id, done=done, total=total, unit=unit, metric_name=run.metric_name, metric=metric)


class JobAnswer(BaseModel):
    """A job and its state."""

    id: str = Field(description="Name and number of the job.")
    serial: int = Field(description="Unique number of the job.")
    name: str
    owner: str
    queue: str
    priority: int
    state: Lifecycle
    cause: str = Field(description="Reason for the state.")
    tries: int = Field(description="Number of starts.")
    retries: int = Field(description="Number of remaining retries.")
    preemptions: int = Field(description="Number of preemptions.")
    submitted_s: float
    started_s: float = Field(description="Start of the job; 0 if it has not started.")
    ended_s: float = Field(description="End of the job; 0 if it has not ended.")
    actions: list[str] = Field(
        description="What can be done with it in this state: pause, resume, cancel, move, clone, remove."
    )
    why: str = Field(
        default="",
        description="Reason for waiting, with numbers; empty if the job runs or has ended, or if the list was "
        "requested without reasons.",
    )

    progress: JobProgressAnswer | None = Field(
        default=None,
        description="Progress of a running job's newest run; null without one, and in lists without `progress`.",
    )

    @classmethod
    def of(cls, row: JobRow, why: str = "", progress: JobProgressAnswer | None = None) -> JobAnswer:
        """Convert a job's row; ``why`` is the reason why it waits, ``progress`` that of its newest run."""
        given = {"why": why, "progress": progress, "actions": permitted_actions(row.state)}
        return cls.model_validate(
            {**{name: getattr(row, name) for name in cls.model_fields if name not in given}, **given}
        )


class JobPage(BaseModel):
    """A page of jobs, the newest first."""

    jobs: list[JobAnswer]
    cursor: int | None = Field(description="For ``before``, to get the next ones; null at the end.")


class JobDetail(JobAnswer):
    """A job with its job file, applications and sizes."""

    spec: str = Field(description="The job file, checked, as YAML.")
    profile: str
    applications: list[ApplicationAnswer]
    sizes: list[SizeAnswer] = Field(description="Number of slots of each task; that of an elastic task may change.")


class SizeAnswer(BaseModel):
    """Numbers of slots of a task."""

    task: str
    slots: int = Field(description="Current number of slots; 0 if the task does not run.")
    target: int = Field(
        description="Target number of slots; lower than the current number while the task releases slots."
    )
    fewest: int
    most: int


class ApplicationAnswer(BaseModel):
    """An application that was started for a task."""

    task: str
    number: int = Field(description="Number of the attempt, from 1; higher after a relaunch of the task.")
    state: Lifecycle
    application_id: str = Field(description="Application id of YARN; empty before the submission.")
    tag: str
    cause: str


class StateChangeAnswer(BaseModel):
    """A change of state of a job or task."""

    id: int
    task: str = Field(description="Empty for the job itself.")
    state: Lifecycle
    cause: str
    try_number: int
    at_s: float

    @classmethod
    def of(cls, row: ChangeRow) -> StateChangeAnswer:
        """Convert the row of a state change."""
        return cls.model_validate({name: getattr(row, name) for name in cls.model_fields})


class JobRunAnswer(BaseModel):
    """A run that a task of a job has created."""

    id: str
    state: str
    metric_name: str
    metric: float | None = Field(description="Main metric; null if there is none, or if it is not a number.")


class MetricAnswer(BaseModel):
    """A metric that a run has reported; null where no value was a number."""

    name: str
    reports: int = Field(description="Number of reports.")
    step: float = Field(description="Value of the last report.")
    last: float | None
    lowest: float | None
    highest: float | None


class JobMetricsAnswer(JobRunAnswer):
    """A run of a job's task, with all metrics that it, or one of its trials, has reported."""

    trial: str = Field(
        default="", description="Only for a search: the best trial, or else the trial with the most steps."
    )
    metrics: list[MetricAnswer]


class RankLogAnswer(BaseModel):
    """Log lines of one worker of a run; `run` is empty if there is no run yet."""

    run: str
    newest: str = Field(description="The job's newest run.")
    lines: list[str]
    end: int = Field(description="Offset of the next part, in lines.")
    is_whole: bool = Field(description="True if there is no more output at present.")
    is_over: bool = Field(description="True if the run (for the newest run: the job) will write no more output.")


class Reasons(BaseModel):
    """The reason why a job does not run."""

    why: str


class LogAnswer(BaseModel):
    """A part of a driver's log."""

    text: str
    end: int = Field(description="Offset of the next part, in bytes.")


class Amount(BaseModel):
    """GPUs, cores, and memory in MiB."""

    gpus: int
    cores: int
    memory_mib: int

    @classmethod
    def of(cls, resources: Resources) -> Amount:
        """Convert resources of the scheduler."""
        return cls(gpus=resources.gpus, cores=resources.cores, memory_mib=resources.memory_mib)


class ClusterAnswer(BaseModel):
    """Resources of the cluster, and the server that runs its jobs."""

    capacity: Amount
    free: Amount
    leads: bool
    leader: str = Field(description="Address of the server that runs the jobs.")
    problem: str = Field(description="Error of the last poll of the cluster; empty if it succeeded.")


class TokenRequest(BaseModel):
    """A token to be created for a user."""

    model_config = ConfigDict(extra="forbid")

    user: str = Field(min_length=1, max_length=200)
    role: RoleName = "viewer"
    label: str = Field(default="", max_length=200, description="Purpose of the token.")
    lasts_s: float | None = Field(
        default=None, gt=0, lt=1e10, description="Lifetime in seconds; without it the token does not expire."
    )


class TokenAnswer(BaseModel):
    """Description of a token, without the token itself."""

    id: str
    user: str
    role: RoleName
    label: str
    created_s: float
    expires_s: float | None
    revoked_s: float | None

    @classmethod
    def of(cls, row: TokenRow) -> TokenAnswer:
        """Convert the row of a token."""
        values = {name: getattr(row, name) for name in cls.model_fields}
        return cls.model_validate({**values, "role": row.role.name.lower()})


class NewToken(BaseModel):
    """A new token, which cannot be read again."""

    token: str


class ScheduleAnswer(BaseModel):
    """A schedule that submits a job at given times."""

    id: str = Field(description="Name and number of the job.")
    owner: str
    schedule: str = Field(description="Cron's five fields.")
    zone: str
    overlap: str = Field(description="skip, queue or cancel.")
    is_paused: bool
    planned_s: float = Field(description="Time of the next job.")
    last_job: str = Field(description="Last job; empty if there is none.")
    note: str = Field(description="Outcome of the last time if no job was started.")
    spec: str = Field(description="The job file, checked, as YAML.")


class SecretRequest(BaseModel):
    """The value of a secret."""

    model_config = ConfigDict(extra="forbid")

    value: SecretStr


class SecretAnswer(BaseModel):
    """Description of a secret, without its value."""

    name: str
    stored_s: float


JobDetail.model_rebuild()


class JobOnNodeAnswer(BaseModel):
    """Resources that a job uses on a node."""

    id: str
    owner: str
    uses: Amount


class NodeAnswer(BaseModel):
    """A node of the cluster, with the jobs that use it."""

    name: str
    label: str = Field(description="Node label (partition of YARN); empty for none.")
    capacity: Amount
    free: Amount = Field(description="Free resources.")
    others: Amount = Field(description="Resources that other applications of the cluster use.")
    jobs: list[JobOnNodeAnswer]

    @classmethod
    def of(cls, node: NodeStatus) -> NodeAnswer:
        """Convert the manager's status of a node."""
        jobs = [JobOnNodeAnswer(id=one.job_id, owner=one.owner, uses=Amount.of(one.uses)) for one in node.jobs]
        amounts = {name: Amount.of(getattr(node, name)) for name in ("capacity", "free", "others")}
        return cls(name=node.name, label=node.label, jobs=jobs, **amounts)


class NodesAnswer(BaseModel):
    """All nodes by name; empty if another server is the leader, or before the first response of the cluster."""

    nodes: list[NodeAnswer]


class LimitAnswer(BaseModel):
    """Limits of each resource; null where there is no limit."""

    gpus: int | None
    cores: int | None
    memory_mib: int | None

    @classmethod
    def of(cls, limit: Resources | None) -> LimitAnswer:
        """Convert the scheduler's limit; None is no limit."""
        values = (None, None, None) if limit is None else (limit.gpus, limit.cores, limit.memory_mib)
        gpus, cores, memory_mib = (None if value is None or value >= UNLIMITED else value for value in values)
        return cls(gpus=gpus, cores=cores, memory_mib=memory_mib)


class QueueAnswer(BaseModel):
    """A queue of the cluster, with its shares and their use."""

    name: str
    weight: float = Field(description="Weight of the queue in its share of the cluster.")
    guaranteed: Amount = Field(description="Guaranteed resources, which the queue gets back by preemption.")
    limit: LimitAnswer
    used: Amount = Field(description="Resources that its jobs use or have reserved.")
    running: int = Field(description="How many jobs.")
    waiting: int = Field(description="Number of waiting jobs, without paused ones.")

    @classmethod
    def of(cls, found: QueueStatus) -> QueueAnswer:
        """Convert the manager's status of a queue."""
        return cls(
            name=found.queue.name,
            weight=found.queue.weight,
            guaranteed=Amount.of(found.queue.guaranteed),
            limit=LimitAnswer.of(found.queue.limit),
            used=Amount.of(found.has),
            running=found.running,
            waiting=found.waiting,
        )


class QueuesAnswer(BaseModel):
    """All queues of the cluster."""

    queues: list[QueueAnswer]
