"""Jobs of tasks: their states, how a job is found again, and what a task has to do about one that it finds.

A job is a YARN application (``yarn_jobs``) or a process on this machine (``local_jobs``). It is known by its tag, which
follows from the task instance alone, so that a task that was killed between starting a job and writing down its id
finds it again. Nothing here knows Airflow.
"""

from __future__ import annotations

import enum
import hashlib
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, cast

from hopsml import submission
from hopsml.errors import ArgumentError
from hopsml.profiles import Profile

TAG_PREFIX = "hopsml-task-"
LOG_PIECE_BYTES = 256 * 1024
LIMIT_S = 900.0  # with a ResourceManager or a store that does not answer


class JobState(enum.StrEnum):
    """The state of a job."""

    WAITING = "WAITING"  # accepted, no resources yet
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    KILLED = "KILLED"
    GONE = "GONE"  # unknown to YARN, or its folder is gone

    @property
    def is_active(self) -> bool:
        """Whether the job has not ended."""
        return self in (JobState.WAITING, JobState.RUNNING)


@dataclass(frozen=True)
class JobStatus:
    """The state of a job at one moment; ``detail``: an explanation for people, may be empty."""

    state: JobState
    detail: str = ""


@dataclass(frozen=True)
class Job:
    """Identifies a started job in any process; stored in XCom, the trigger and Airflow's task state."""

    kind: str  # "yarn" | "local"
    id: str  # YARN's application id; the folder of a local job
    where: Mapping[str, Any] = field(default_factory=dict)  # the ResourceManagers; nothing for a local job

    def as_dict(self) -> dict[str, Any]:
        """The job as JSON values, for ``from_dict``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Job:
        """The job that ``as_dict`` described. Raises ArgumentError for anything else."""
        try:
            return cls(str(content["kind"]), str(content["id"]), dict(content.get("where") or {}))
        except (KeyError, TypeError, AttributeError) as error:
            raise ArgumentError(f"{content!r:.200} is no job: a dict with kind, id and where is expected") from error


@dataclass(frozen=True)
class Request:
    """Everything needed to start a task's job."""

    tag: str
    script: str
    profile: str
    python: str  # interpreter of the driver
    project_url: str
    arguments: tuple[str, ...] = ()
    num_workers: int | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)  # of the driver
    name: str = ""
    folder: str = ""  # of the local jobs


@dataclass(frozen=True)
class Known:
    """A job found by its tag; ``delivered``: a task has passed its result on."""

    job: Job
    state: JobState
    delivered: bool


class Jobs(Protocol):
    """Interface to one kind of job. Every call has a deadline of its own and raises HopsmlErrors."""

    def find(self, request: Request) -> list[Known]:
        """All jobs started for the request's tag, newest first."""

    def start(self, request: Request) -> Job:
        """Start a job; from its return on ``find`` finds the job by its tag."""

    def look(self, job: Job) -> JobStatus:
        """The job's present state."""

    def read_log(self, job: Job, offset: int, last: bool = False) -> tuple[str, int]:
        """What the driver has printed from ``offset`` on (at most LOG_PIECE_BYTES), and the offset behind it; ``last``: the
        job is over, what is still on its way is waited for.
        """

    def errors(self, job: Job) -> str:
        """Further text that explains a job's failure; may be empty."""

    def end(self, job: Job) -> None:
        """End the job and all its processes, and wait for it; nothing happens if it is over."""

    def outcome(self, job: Job, request: Request) -> dict[str, Any]:
        """The result of the run that the driver announced; without one, what its log says of metrics."""

    def mark_delivered(self, job: Job, request: Request) -> None:
        """Note that the job's result was passed on: a later task with the same tag starts another job."""


_MODULES = {"yarn": "hopsml.airflow.yarn_jobs", "local": "hopsml.airflow.local_jobs"}


def of_kind(kind: str) -> Jobs:
    """The module that handles jobs of this kind. Raises ArgumentError for an unknown one."""
    if kind not in _MODULES:
        raise ArgumentError(f"a job of kind {kind!r} is not known; there are: {', '.join(_MODULES)}")
    return cast("Jobs", importlib.import_module(_MODULES[kind]))


def kind_of(profile: Profile) -> str:
    """The kind of job under a profile: "yarn" in YARN's cluster mode, else "local", a process of this machine."""
    return "yarn" if submission.is_detachable(profile) else "local"


def tag_of(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """A tag that all tries of a task instance share and no other task has; lower case and short, for YARN."""
    text = "\0".join((dag_id, run_id, task_id, str(map_index)))
    return TAG_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:32]


class TaskStep(enum.Enum):
    """What a task has to do first: start a job, follow a running one, or collect the result of one that has ended."""

    START = "start"
    FOLLOW = "follow"
    COLLECT = "collect"


def decide(
    stored: tuple[Job, JobState] | None, done: Sequence[str], found: Sequence[Known]
) -> tuple[TaskStep, Job | None, str]:
    """Start a job, follow one, or collect the result of one that is over; and why, for the log.

    Args:
        stored: the job that an earlier try of this task wrote down, and how it stands now.
        done: ids of jobs whose results were passed on already: the task was cleared to run again since.
        found: what bears the task's tag, the youngest first.
    """
    if stored is not None and stored[0].id not in done:
        job, state = stored
        if state.is_active:
            return TaskStep.FOLLOW, job, f"an earlier try started {job.id}, which is {state}: following it"
        if state is JobState.SUCCEEDED:
            return TaskStep.COLLECT, job, f"an earlier try started {job.id}, which has succeeded: taking its result"
    for known in found:
        if known.job.id not in done and known.state.is_active:
            return (
                TaskStep.FOLLOW,
                known.job,
                f"{known.job.id} was started for this task and is {known.state}: following it",
            )
    if found:
        youngest = found[0]
        if youngest.state is JobState.SUCCEEDED and not youngest.delivered and youngest.job.id not in done:
            return TaskStep.COLLECT, youngest.job, f"{youngest.job.id} was started for this task and has succeeded"
        if not youngest.state.is_active:
            return TaskStep.START, None, f"the last job of this task, {youngest.job.id}, is over ({youngest.state})"
    return TaskStep.START, None, "nothing was started for this task yet"


class Patience:
    """Tolerates a service that does not answer, for a limited time; logs when that begins and ends, not each time."""

    def __init__(self, say: Callable[..., Any], limit_s: float = LIMIT_S) -> None:
        """``say``: a logger's method, called with a format and its values."""
        self._say, self._limit_s = say, limit_s
        self._answered, self._away = time.monotonic(), False

    def answered(self) -> None:
        """Note that the service has answered."""
        now = time.monotonic()
        if self._away:
            self._say("it answers again, after %.0f s", now - self._answered)
        self._answered, self._away = now, False

    def away(self, error: Exception) -> None:
        """Note that the service did not answer; raises ``error`` once that has lasted for the whole limit."""
        if time.monotonic() - self._answered > self._limit_s:
            raise error
        if not self._away:
            self._say("%s; asking again, for up to %.0f s", error, self._limit_s)
        self._away = True


_KNOWN = ("appPath", "args", "appName", "profile")
_REASONS = {
    "distributionStrategy": "the script says which verb trains, for instance experiment.collective_all_reduce",
    "experimentType": "the script says which verb trains",
    "amMemory": "give spark.driver.memory",
    "amVCores": "give spark.driver.cores",
}


def without_effect(description: Mapping[str, Any], job_name: str) -> list[str]:
    """A sentence for each key of the predecessor's description of a job that is ignored here."""
    strange = [
        key
        for key in description
        if key not in _KNOWN and (not key.startswith("spark.") or key.startswith("spark.tensorflow."))
    ]
    return [
        f"job {job_name!r}: {key}={description[key]!r:.80} has no effect: "
        + _REASONS.get(key, "it is not one of hopsml's keys")
        for key in strange
    ]
