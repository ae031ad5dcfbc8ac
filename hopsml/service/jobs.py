"""The service as its addresses use it: store, code, and the thread that runs the jobs."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hopsml import suggestions
from hopsml.errors import ArgumentError, StoreError
from hopsml.service import spec as specs
from hopsml.service.engine import Engine, LogPiece
from hopsml.service.manager import Manager, requests
from hopsml.service.manager.manager import TURN_S
from hopsml.service.manager.requests import TaskSize
from hopsml.service.metrics import TURN_BOUNDS_S
from hopsml.service.retention import Retention
from hopsml.service.scaler import Scaler
from hopsml.service.spec import JobSpec, limits
from hopsml.service.store import JobRow, JobStore
from hopsml.service.store.audit import AuditLog
from hopsml.service.store.secrets import Secrets
from hopsml.service.store.tokens import Role
from hopsml.service.workspaces import Workspaces, own_name
from hopsml.serving.metrics import Meter

log = logging.getLogger("hopsml.service")

DAY_S = 86_400.0
AUDIT_DAYS = 90.0  # that an entry of the audit log is kept
DROP_S = 3600.0  # between two looks for older ones
PATH_BYTES = 4096  # of the workspace's folder, which takes the place of its name
LEAST_S = 0.25  # from one turn to the next: a thousand submissions at once are not a thousand turns


@dataclass
class JobService:
    """One server's; ``start`` and ``close`` begin and end its thread."""

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
    meter: Meter = field(default_factory=Meter)  # of its thread
    on_lead: Callable[[], object] = lambda: None  # called when this server begins to run the jobs
    is_local: bool = False  # jobs run on this machine, in the environment of the service
    only_user: str = ""  # the account that may run jobs, where they run as the server itself; empty: any may
    _dropped_s: float = -math.inf
    _woken: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to run jobs."""
        self._thread = threading.Thread(target=self._run, name="hopsml-jobs", daemon=True)
        self._thread.start()
        self.retention.start()
        if self.scaler is not None:
            self.scaler.start()

    def _run(self) -> None:
        told, led = "", False
        while not self._ended.is_set():
            self._woken.clear()
            now = self._turn()
            if self.manager.leads and not led:
                self.on_lead()
            led = self.manager.leads
            if now != told:
                log.warning("%s", now)
                told = now
            self._ended.wait(LEAST_S)
            self._woken.wait(TURN_S - LEAST_S)

    def _turn(self) -> str:
        """How things stand after it, for whoever reads the log."""
        began = time.perf_counter()
        try:
            self.manager.turn()
            self.meter.observe("hopsml_turn_seconds", time.perf_counter() - began, TURN_BOUNDS_S)
            self.drop_old(time.time())
        except StoreError as error:
            return str(error)
        except Exception:  # one job's trouble must not end the service
            log.exception("a turn failed; the next one begins with what is stored")
        return self.manager.standing()

    def drop_old(self, now: float) -> None:
        """Forget entries of the audit log that are older than they are kept; whoever leads does, at most once an hour."""
        if self.manager.leads and now - self._dropped_s >= DROP_S:
            self._dropped_s = now
            if dropped := AuditLog(self.store).drop(now - self.audit_days * DAY_S):
                log.info("%d entries of the audit log are older than %g days and dropped", dropped, self.audit_days)

    def wake(self) -> None:
        """Let the next turn begin at once."""
        self._woken.set()

    def close(self) -> None:
        """End the thread, and what it has begun to submit; applications go on, and are found by the next server."""
        self._ended.set()
        self._woken.set()
        if self.scaler is not None:
            self.scaler.close()
        if self._thread is not None:
            self._thread.join()
        self.retention.close()
        self.engine.close()
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
        """Raise ArgumentError for a job that could never run here, ServiceError where its code is not here."""
        _check_length(job)
        self.check_queue(job.queue)
        self.secrets.check(owner, job.secrets)
        if missing := self.workspaces.missing(job, workspace):
            raise ArgumentError(
                f"job {job.name}: {'; '.join(missing)}; correct the name, or the workspace that is uploaded"
            )
        for name, task in job.tasks.items():
            if task.environment is not None and self.is_local:
                raise ArgumentError(
                    f"job {job.name}: tasks.{name}.environment: jobs of profile {self.profile} run on this machine in the "
                    "environment of the service: install there what they need, and leave environment out"
                )
        self.workspaces.check_archives(job)
        if refused := self.manager.refusal(job):
            raise ArgumentError(f"job {job.name} can never run here: {refused}")

    def check_account(self, user: str, role: Role) -> None:
        """Raise ArgumentError if an account may run jobs and these would have the server's rights."""
        if self.only_user and role >= Role.USER and user != self.only_user:
            raise ArgumentError(
                f"account {user!r} as {role.name.lower()}: jobs of profile {self.profile} run as {self.only_user}, the user "
                "of this server, and could read its secrets and make anybody an administrator; give it the role viewer, run "
                "jobs under a profile of YARN's, or start the server with --trust-users"
            )

    def check_queue(self, name: str) -> None:
        """Raise ArgumentError for a queue that there is not."""
        if name not in self.queues:
            there = "there are: " + ", ".join(self.queues)
            raise ArgumentError(f"there is no queue {name!r}; {suggestions.instead(name, self.queues, there)}")

    def why(self, row: JobRow) -> str:
        """Why a job does not run; "" where it does, or is over."""
        return "" if row.state.is_final else self.manager.why(row)

    def sizes(self, row: JobRow, spec: JobSpec) -> list[TaskSize]:
        """How many slots each task has, and could have."""
        placements = (requests.placement_of(stored) for stored in (row.placement, row.target))
        return requests.sizes(spec, *placements)

    def own_name(self, row: JobRow) -> str:
        """What the names of all applications and runs of a job begin with."""
        return own_name(row.id, self.manager.prefix)

    def log(self, row: JobRow, task: str, offset: int, limit: int, try_number: int | None = None) -> LogPiece | None:
        """What the driver of a task has printed, of its newest launch; of the newest try where none is named."""
        application_id = self.application(row, task, try_number)
        return self.engine.log(application_id, offset, limit) if application_id else None

    @staticmethod
    def check_try(row: JobRow, try_number: int | None) -> None:
        """Raise ArgumentError for a try that there has not been."""
        if try_number is not None and not 1 <= try_number <= max(1, row.tries):
            raise ArgumentError(
                f"job {row.id} has no try {try_number}: it was tried {row.tries} times, and the first one is 1"
            )

    def application(self, row: JobRow, task: str, try_number: int | None = None) -> str:
        """The id of the newest launch of a task, of the first one where none is named; "" where none has one (yet).

        Raises ArgumentError for a task that the job does not have, and for a try that there has not been.
        """
        self.check_try(row, try_number)
        launches = self.store.launches_of(row.serial, row.tries if try_number is None else try_number)
        tasks = dict.fromkeys(launch.task for launch in launches)
        if task and task not in tasks and task not in (known := JobSpec.model_validate_json(row.spec).tasks):
            raise ArgumentError(f"job {row.id} has no task {task[:80]!r}; there are: {', '.join(known)}")
        found = [launch for launch in launches if launch.application_id and launch.task == (task or next(iter(tasks)))]
        return found[-1].application_id if found else ""


def _check_length(job: JobSpec) -> None:
    """Raise ArgumentError for a job that its driver could not read: it gets a file with a line for each value."""
    if len(job.model_dump_json(by_alias=True, exclude_defaults=True)) < limits.FILE_BYTES >> 5:  # nearly all of them
        return
    length = len(specs.dump(job).encode()) + PATH_BYTES
    if length > limits.FILE_BYTES:
        raise ArgumentError(
            f"job {job.name} has {length} bytes with a line for each value, and a job file has at most {limits.FILE_BYTES}; "
            "put long lists into a file of the workspace"
        )
