"""Job service of one server process: the store, the uploaded code, and the thread that runs the jobs."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hopsml.core import suggestions
from hopsml.core.metrics import Meter
from hopsml.errors import ArgumentError, StoreError
from hopsml.service import spec as specs
from hopsml.service.engine import Engine, LogPiece
from hopsml.service.lifecycle.record import holds_slots
from hopsml.service.manager import Manager, requests
from hopsml.service.manager.manager import TURN_S
from hopsml.service.manager.requests import TaskSize
from hopsml.service.metrics import TURN_BOUNDS_S
from hopsml.service.render import spark_submit
from hopsml.service.retention import Retention
from hopsml.service.scaler import Scaler
from hopsml.service.spec import JobSpec, limits
from hopsml.service.store import JobRow, JobStore
from hopsml.service.store.accounts import AuditLog, Role, Secrets
from hopsml.service.workspaces import Workspaces, job_name_prefix

log = logging.getLogger("hopsml.service")

DAY_S = 86_400.0
AUDIT_DAYS = 90.0  # days for which an entry of the audit log is retained
DROP_S = 3600.0  # seconds between two removals of older entries
PATH_BYTES = 4096  # bytes allowed for the workspace folder's path, which replaces the code's name in the job file
LEAST_S = 0.25  # least seconds between two passes: a thousand submissions at once do not cause a thousand passes


@dataclass
class JobService:
    """Job service of one server, with the thread that runs its jobs.

    Attributes:
        store: Database of jobs.
        engine: Engine that runs applications.
        workspaces: Uploaded code.
        manager: Reconciliation loop that advances jobs.
        secrets: Stored secrets of users.
        profile: Name of the profile that jobs run under.
        queues: Names of the configured queues.
        retention: Thread that removes files of ended jobs.
        scaler: Thread that adds and removes nodes; None without a nodes file.
        audit_days: Days for which entries of the audit log are retained.
        meter: Metrics that the service thread records.
        on_lead: Called when this server becomes the leader.
        on_end: Called when the server ends, before another one can become the leader.
        is_local: True if jobs run on this machine, in the environment of the service.
        only_user: The account that may run jobs if they have the server's rights; empty if any account may.
        dataset_stores: URLs below which users may look at the data sets of their jobs.
    """

    store: JobStore
    engine: Engine
    workspaces: Workspaces
    manager: Manager
    secrets: Secrets
    profile: str
    queues: tuple[str, ...]
    retention: Retention
    scaler: Scaler | None = None
    audit_days: float = AUDIT_DAYS
    meter: Meter = field(default_factory=Meter)
    on_lead: Callable[[], object] = lambda: None
    on_end: Callable[[], object] = lambda: None
    is_local: bool = False
    only_user: str = ""
    dataset_stores: tuple[str, ...] = ()
    _dropped_s: float = -math.inf
    _woken: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the threads that run jobs, remove old files and scale nodes."""
        self._thread = threading.Thread(target=self._run, name="hopsml-jobs", daemon=True)
        self._thread.start()
        self.retention.start()
        if self.scaler is not None:
            self.scaler.start()

    def _run(self) -> None:
        """Run passes until the service is closed, and log changes of the server's status."""
        told, led = "", 0
        while not self._ended.is_set():
            self._woken.clear()
            now = self._turn()
            term = self.manager.leader.term if self.manager.leader is not None and self.manager.leads else 0
            if term and term != led:  # also if another server has led while this one was suspended
                self.on_lead()
            led = term
            if now != told:
                log.warning("%s", now)
                told = now
            self._ended.wait(LEAST_S)
            self._woken.wait(TURN_S - LEAST_S)

    def _turn(self) -> str:
        """Run one pass of the manager; return the server's status, or the store's error, for the log."""
        began = time.perf_counter()
        try:
            self.manager.run_pass()
            self.meter.observe("hopsml_turn_seconds", time.perf_counter() - began, TURN_BOUNDS_S)
            self.drop_old_audit_entries(time.time())
        except StoreError as error:
            return str(error)
        except Exception:  # the failure of one job must not end the service
            log.exception("a turn failed; the next one begins with what is stored")
        return self.manager.standing()

    def drop_old_audit_entries(self, now: float) -> None:
        """Delete entries of the audit log that are older than ``audit_days``.

        Only the leader does so, at most once an hour.

        Args:
            now: The time, in seconds since 1970.
        """
        if self.manager.leads and now - self._dropped_s >= DROP_S:
            self._dropped_s = now
            if dropped := AuditLog(self.store).delete_before(now - self.audit_days * DAY_S):
                log.info("%d entries of the audit log are older than %g days and dropped", dropped, self.audit_days)

    def wake(self) -> None:
        """Start the next pass of the manager without waiting for its interval."""
        self._woken.set()

    def close(self) -> None:
        """Stop the threads and pending submissions; running applications continue, and the next server finds them."""
        self._ended.set()
        self._woken.set()
        if self.scaler is not None:
            self.scaler.close()
        if self._thread is not None:
            self._thread.join()
        self.retention.close()
        self.engine.close()
        self.on_end()
        self.manager.resign()
        self.store.close()

    def remove(self, row: JobRow) -> None:
        """Delete the files of an ended job; its row is retained. Raises ArgumentError if the job has not ended."""
        if not row.state.is_final:
            raise ArgumentError(
                f"job {row.id} is {row.state}, and needs its files: end it by `hopsml jobs cancel {row.id}`, then remove "
                "them"
            )
        self.retention.remove(row, time.time())

    def check(self, job: JobSpec, workspace: str, owner: str) -> None:
        """Raise an error if a job can never run on this service.

        Args:
            job: The job to check.
            workspace: Digest of its uploaded code.
            owner: The user, whose secrets the job may name.

        Raises:
            ArgumentError: The job's length, queue, secrets, scripts, environment or size are not accepted.
            ServiceError: The uploaded code is not on this server.
        """
        _check_length(job)
        self.check_queue(job.queue)
        self.secrets.check(owner, job.secrets)
        if missing := self.workspaces.missing(job, workspace):
            raise ArgumentError(f"job {job.name}: {'; '.join(missing)}; correct the name, or the code")
        for name, task in job.tasks.items():
            if task.environment is not None and self.is_local:
                raise ArgumentError(
                    f"job {job.name}: tasks.{name}.environment: jobs of profile {self.profile} run on this machine in the "
                    "environment of the service: install there what they need, and leave environment out"
                )
        spark_submit.check_paths(job, self.profile, self.is_local)
        self.workspaces.check_archives(job)
        if refused := self.manager.refusal(job):
            raise ArgumentError(f"job {job.name} can never run here: {refused}")

    def check_account(self, user: str, role: Role) -> None:
        """Raise ArgumentError if an account may run jobs, and its jobs would have the server's rights."""
        if self.only_user and role >= Role.USER and user != self.only_user:
            raise ArgumentError(
                f"account {user!r} as {role.name.lower()}: jobs of profile {self.profile} run as {self.only_user}, the user "
                "of this server, and could read its secrets and make anybody an administrator; give it the role viewer, run "
                "jobs under a profile of YARN's, or start the server with --trust-users"
            )

    def check_queue(self, name: str) -> None:
        """Raise ArgumentError if a queue is not configured."""
        if name not in self.queues:
            there = "there are: " + ", ".join(self.queues)
            raise ArgumentError(f"there is no queue {name!r}; {suggestions.suggestion_text(name, self.queues, there)}")

    def why(self, row: JobRow) -> str:
        """Return the reason why a job does not run; "" if it runs or has ended."""
        return "" if row.state.is_final else self.manager.why(row)

    def sizes(self, row: JobRow, spec: JobSpec) -> list[TaskSize]:
        """Return the number of slots of each task, with its limits; 0 slots if the job does not hold any (now)."""
        if not holds_slots(row.state):  # its row has the placement of its last try
            return requests.task_sizes(spec, ())
        return requests.task_sizes(spec, *(requests.placement_of(stored) for stored in (row.placement, row.target)))

    def own_name(self, row: JobRow) -> str:
        """Return the common prefix of the names of a job's applications and runs."""
        return job_name_prefix(row.id, self.manager.prefix)

    def log(self, row: JobRow, task: str, offset: int, limit: int, try_number: int | None = None) -> LogPiece | None:
        """Return a part of a driver's log, of a task's newest launch; None if there is no log.

        Args:
            row: The job.
            task: Name of the task; empty for the job's first task.
            offset: First byte of the log to return.
            limit: Most bytes to return.
            try_number: Number of the try, from 1; None for the newest try.
        """
        application_id = self.application(row, task, try_number)
        return self.engine.log(application_id, offset, limit) if application_id else None

    @staticmethod
    def check_try(row: JobRow, try_number: int | None) -> None:
        """Raise ArgumentError if a job has no try of this number."""
        if try_number is not None and not 1 <= try_number <= max(1, row.tries):
            raise ArgumentError(
                f"job {row.id} has no try {try_number}: it was tried {row.tries} times, and the first one is 1"
            )

    def application(self, row: JobRow, task: str, try_number: int | None = None) -> str:
        """Return the application id of a task's newest launch; "" if it has not been launched yet.

        Args:
            row: The job.
            task: Name of the task; empty for the job's first task.
            try_number: Number of the try, from 1; None for the newest try.

        Raises:
            ArgumentError: The job has no such task or no such try.
        """
        self.check_try(row, try_number)
        launches = self.store.launches_of(row.serial, row.tries if try_number is None else try_number)
        tasks = dict.fromkeys(launch.task for launch in launches)
        if task and task not in tasks and task not in (known := JobSpec.model_validate_json(row.spec).tasks):
            raise ArgumentError(f"job {row.id} has no task {task[:80]!r}; there are: {', '.join(known)}")
        found = [launch for launch in launches if launch.application_id and launch.task == (task or next(iter(tasks)))]
        return found[-1].application_id if found else ""


def _check_length(job: JobSpec) -> None:
    """Raise ArgumentError if a job file, which has a line for each value, would be too long for its driver."""
    # Nearly all jobs are short: they need not be written as YAML.
    if len(job.model_dump_json(by_alias=True, exclude_defaults=True)) < limits.FILE_BYTES >> 5:
        return
    length = len(specs.dump(job).encode()) + PATH_BYTES
    if length > limits.FILE_BYTES:
        raise ArgumentError(
            f"job {job.name} has {length} bytes with a line for each value, and a job file has at most {limits.FILE_BYTES}; "
            "put long lists into a file of the code"
        )
