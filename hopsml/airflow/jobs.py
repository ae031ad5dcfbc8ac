"""Jobs of tasks: their states, how a job is found again, and the decision what a task does with one that it finds.

A job is a YARN application (``yarn_jobs``) or a process on this machine (``local_jobs``). It is identified by a tag,
which depends on the task instance alone, so that a task that was killed between starting a job and recording its id
finds it again. This module does not depend on Airflow.
"""

from __future__ import annotations

import enum
import hashlib
import importlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, cast

from hopsml import submission
from hopsml.core.profiles import Profile
from hopsml.core.states import ENDS, Lifecycle
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import run_dir, urls
from hopsml.storage.run_dir import EXPERIMENTS, RunDir
from hopsml.tracking import catalog


def result_of_record(url: str, application: str | None = None) -> dict[str, Any]:
    """Return the result of the run that a driver has recorded at ``url``, with the keys of ``result_of_run``.

    Args:
        url: the record's file.
        application: YARN's application id that the record must have; None: any.

    Returns:
        The result; empty if there is no record, or that of another application.

    Raises:
        StorageError: the store cannot be read.
    """
    record = run_dir.read_job_record(url)
    if record is None or (application is not None and record.get("application") != application):
        return {}
    return result_of_run(RunDir(str(record["run_dir"])))


def result_of_run(directory: RunDir) -> dict[str, Any]:
    """Return ``run_dir``, ``run_id``, ``state``, ``error`` and ``metrics`` of a run.

    ``state`` is empty until it has ended.
    """
    status = directory.read_status() or {}
    try:
        metrics = directory.read_json(directory.outputs_json)
    except PathNotFound:
        metrics = {}
    metrics.pop("log", None)
    return {
        "run_dir": directory.url,
        "run_id": directory.run_id,
        "state": status.get("state", ""),
        "error": status.get("error", ""),
        "metrics": metrics,
    }


def metrics_of_log(text: str) -> dict[str, Any]:
    """Return the JSON object in the last line of the output as metrics, for a script without a run.

    Empty if there is none.
    """
    lines = text.rstrip().splitlines()
    try:
        metrics = json.loads(lines[-1]) if lines else {}
    except ValueError:
        metrics = {}
    return metrics if isinstance(metrics, dict) else {}


def result_if_ended(run: str, project_url: str) -> dict[str, Any] | None:
    """Return the result of a run, with the keys of ``result_of_run``; None while it has not begun or not ended.

    Args:
        run: id, path or URL of the run.
        project_url: project in which ids are resolved.

    Raises:
        StorageError: the store cannot be read.
    """
    directory = RunDir(run if "/" in run else urls.join(project_url, EXPERIMENTS, run))
    try:
        stored = catalog.read(directory, brief=True)
    except PathNotFound:
        return None
    if stored.state not in ENDS:
        return None
    return {**result_of_run(directory), "state": stored.state}


def checked_states(name: str, states: Collection[str]) -> tuple[str, ...]:
    """Validate the names of end states, and return them. Raises ArgumentError for an unknown one."""
    for state in states:
        if state not in ENDS:
            raise ArgumentError(
                f"{name}: {state!r} is not a final state of a run; the final states are {', '.join(ENDS)}"
            )
    return tuple(states)


TAG_PREFIX = "hopsml-task-"
LOG_PIECE_BYTES = 256 * 1024
LIMIT_S = 900.0  # longest tolerated outage of a ResourceManager or a store


_PUBLISHED = {
    Lifecycle.STARTING: "WAITING",  # accepted, no resources yet
    Lifecycle.RUNNING: "RUNNING",
    Lifecycle.FINISHED: "SUCCEEDED",
    Lifecycle.FAILED: "FAILED",
    Lifecycle.STOPPED: "KILLED",
    Lifecycle.LOST: "GONE",  # unknown to YARN, or its folder was removed
}  # states of jobs, with their names in events, results and messages of tasks


def state_name(state: Lifecycle) -> str:
    """Return the name of a job's state in events and messages of tasks."""
    return _PUBLISHED[state]


def state_of_name(name: str) -> Lifecycle:
    """Return the state of a job with this published name. Raises KeyError for another one."""
    return {known: state for state, known in _PUBLISHED.items()}[name]


@dataclass(frozen=True)
class JobStatus:
    """State of a job at one moment; ``detail`` is an explanation for users and may be empty."""

    state: Lifecycle
    detail: str = ""


@dataclass(frozen=True)
class Job:
    """Identifier of a started job, valid in any process; stored in XCom, the trigger and Airflow's task state."""

    kind: str  # "yarn" | "local"
    id: str  # YARN's application id; the folder of a local job
    where: Mapping[str, Any] = field(default_factory=dict)  # the ResourceManagers; empty for a local job

    def as_dict(self) -> dict[str, Any]:
        """Return the job as JSON values, for ``from_dict``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Job:
        """Return the job that ``as_dict`` described. Raises ArgumentError for anything else."""
        try:
            return cls(str(content["kind"]), str(content["id"]), dict(content.get("where") or {}))
        except (KeyError, TypeError, AttributeError) as error:
            raise ArgumentError(f"{content!r:.200} is not a job; give a dict with kind, id and where") from error


@dataclass(frozen=True)
class Request:
    """Parameters from which a task's job is started."""

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
class KnownJob:
    """Job found by its tag; ``delivered`` is True if a task has returned its result."""

    job: Job
    state: Lifecycle
    delivered: bool


class Jobs(Protocol):
    """Interface to one kind of job; every call has a deadline and raises subclasses of ``HopsmlError``."""

    def find(self, request: Request) -> list[KnownJob]:
        """Return all jobs started for the request's tag, newest first."""

    def start(self, request: Request) -> Job:
        """Start a job for the request; ``find`` finds it by its tag once this returns."""

    def status(self, job: Job) -> JobStatus:
        """Return the job's present state."""

    def read_log(self, job: Job, offset: int, last: bool = False) -> tuple[str, int]:
        """Read the driver's output from a byte offset.

        Args:
            job: the job.
            offset: bytes that were read before.
            last: whether the job has ended, so that output that is still being stored is waited for.

        Returns:
            At most LOG_PIECE_BYTES of text, and the offset after it.
        """

    def errors(self, job: Job) -> str:
        """Return further text that explains a job's failure; may be empty."""

    def end(self, job: Job) -> None:
        """End the job and all its processes, and wait for that; has no effect if it has ended."""

    def outcome(self, job: Job, request: Request) -> dict[str, Any]:
        """Return the result of the run that the driver recorded; without one, metrics from its log."""

    def mark_delivered(self, job: Job, request: Request) -> None:
        """Record that the job's result was returned: a later task with the same tag starts another job."""


_MODULES = {"yarn": "hopsml.airflow.yarn_jobs", "local": "hopsml.airflow.local_jobs"}


def jobs_of_kind(kind: str) -> Jobs:
    """Return the module that implements ``Jobs`` for this kind. Raises ArgumentError for an unknown one."""
    if kind not in _MODULES:
        raise ArgumentError(f"the job kind {kind!r} is unknown; the known kinds are {', '.join(_MODULES)}")
    return cast("Jobs", importlib.import_module(_MODULES[kind]))


def kind_of(profile: Profile) -> str:
    """Return the kind of job under a profile: "yarn" in YARN's cluster mode, else "local"."""
    return "yarn" if submission.is_detachable(profile) else "local"


def tag_of(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """Return a tag that all tries of a task instance share and no other task has; lower case and short, for YARN."""
    text = "\0".join((dag_id, run_id, task_id, str(map_index)))
    return TAG_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:32]


class TaskStep(enum.Enum):
    """First step of a task: start a job, follow a running one, or collect the result of one that has ended."""

    START = "start"
    FOLLOW = "follow"
    COLLECT = "collect"


def decide_first_step(
    stored: tuple[Job, Lifecycle] | None, done: Sequence[str], found: Sequence[KnownJob]
) -> tuple[TaskStep, Job | None, str]:
    """Decide whether to start a job, follow one, or collect the result of one that has ended.

    Args:
        stored: the job that an earlier try of this task recorded, and its present state.
        done: ids of jobs whose results were returned already: since then the task was cleared to run again.
        found: jobs with the task's tag, newest first.

    Returns:
        The step, its job (None to start one), and the reason, for the log.
    """
    if stored is not None and stored[0].id not in done:
        job, state = stored
        if not state.is_final:
            return (
                TaskStep.FOLLOW,
                job,
                (f"an earlier try started {job.id}, which is {state_name(state)}; this task follows that job"),
            )
        if state is Lifecycle.FINISHED:
            return (
                TaskStep.COLLECT,
                job,
                (f"an earlier try started {job.id}, which has succeeded; this task uses its result"),
            )
    for known in found:
        if known.job.id not in done and not known.state.is_final:
            return (
                TaskStep.FOLLOW,
                known.job,
                f"{known.job.id} was started for this task and is {state_name(known.state)}; this task follows that job",
            )
    if found:
        youngest = found[0]
        if youngest.state is Lifecycle.FINISHED and not youngest.delivered and youngest.job.id not in done:
            return (
                TaskStep.COLLECT,
                youngest.job,
                (f"{youngest.job.id} was started for this task and has succeeded; this task uses its result"),
            )
        if youngest.state.is_final:
            return (
                TaskStep.START,
                None,
                f"the last job of this task, {youngest.job.id}, has ended ({state_name(youngest.state)})",
            )
    return TaskStep.START, None, "no job was started for this task yet"


class OutageTolerance:
    """Tolerance of a service outage for a limited time; its beginning and its end are logged, not each failure."""

    def __init__(self, say: Callable[..., Any]) -> None:
        self._say = say  # method of a logger
        self._answered, self._away = time.monotonic(), False

    def record_answer(self) -> None:
        """Record that the service has answered."""
        now = time.monotonic()
        if self._away:
            self._say("the cluster answers again after %.0f s", now - self._answered)
        self._answered, self._away = now, False

    def record_outage(self, error: Exception) -> None:
        """Record that the service did not answer; raise ``error`` once the outage exceeds the limit."""
        if time.monotonic() - self._answered > LIMIT_S:
            raise error
        if not self._away:
            self._say("%s; retrying for up to %.0f s", error, LIMIT_S)
        self._away = True


_KNOWN = ("appPath", "args", "appName", "profile")
_REASONS = {
    "distributionStrategy": "the script chooses the kind of training, for instance by experiment.collective_all_reduce",
    "experimentType": "the script chooses the kind of training",
    "amMemory": "set spark.driver.memory instead",
    "amVCores": "set spark.driver.cores instead",
}


def ignored_key_messages(description: Mapping[str, Any], job_name: str) -> list[str]:
    """Return a message for each key of the predecessor's job description that hopsml ignores."""
    strange = [
        key
        for key in description
        if key not in _KNOWN and (not key.startswith("spark.") or key.startswith("spark.tensorflow."))
    ]
    return [
        f"job {job_name!r}: {key}={description[key]!r:.80} has no effect: "
        + _REASONS.get(key, "hopsml does not know this key")
        for key in strange
    ]
