"""Removal of the files that ended jobs leave on a server's disk; their rows in the database are retained.

A sweep removes the job file, the drivers' logs if this machine is the engine, the files exchanged with the drivers on the
project's store, and unpacked code that no job and no schedule needs. A job's runs belong to its owner, and are retained.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hopsml.errors import JobNotFound, PathNotFound, StorageError, StoreError
from hopsml.service.driver import driver_requests
from hopsml.service.engine import Engine
from hopsml.service.manager import Manager
from hopsml.service.store import JobRow, JobStore
from hopsml.service.workspaces import Workspaces, job_name_prefix
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url

log = logging.getLogger("hopsml.service")

DAY_S = 86_400.0
KEEP_DAYS = 90.0  # days for which the files of a job are retained after its end
SWEEP_S = 3600.0  # seconds between two sweeps
CLOSE_S = 5.0  # seconds for which a server that shuts down waits for a sweep
UPLOADED_S = 3600.0  # seconds for which uploaded code is retained before a job refers to it


@dataclass(frozen=True, slots=True)
class RemovedCounts:
    """Numbers of jobs' files, drivers' logs and unpacked workspaces that a sweep has removed."""

    jobs: int = 0
    logs: int = 0
    workspaces: int = 0


class Retention:
    """Thread that removes the files of ended jobs once an hour, on the server that is the leader."""

    def __init__(
        self,
        store: JobStore,
        engine: Engine,
        workspaces: Workspaces,
        manager: Manager,
        project_url: str,
        keep_days: float = KEEP_DAYS,
    ) -> None:
        """Initialize the thread, which ``start`` starts.

        Args:
            store: Database of jobs.
            engine: Engine that may store drivers' logs on this machine.
            workspaces: Uploaded code, and job files.
            manager: Reports whether this server is the leader.
            project_url: Folder on shared storage below which files are exchanged with drivers.
            keep_days: Days for which files are retained after the end of a job.
        """
        self._store, self._engine, self._workspaces, self._manager = store, engine, workspaces, manager
        self._project_url, self._keep_s = project_url, keep_days * DAY_S
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that sweeps."""
        self._thread = threading.Thread(target=self._run, name="hopsml-retention", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the sweeping thread; wait at most ``CLOSE_S`` for a sweep in progress, as the store may be unreachable."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        """Sweep once an hour while this server is the leader, until the thread is stopped."""
        wait_s = 1.0  # until there is a leader
        while not self._ended.wait(wait_s):
            wait_s = SWEEP_S if self._manager.leads else 1.0
            if self._manager.leads:
                try:
                    self.sweep(time.time())
                except (StoreError, OSError) as error:
                    log.warning("files of ended jobs could not be removed: %s", error)

    def sweep(self, now: float) -> RemovedCounts:
        """Remove the files of jobs whose retention has expired, and code that is no longer needed. Raises StoreError."""
        before_s = now - self._keep_s
        with self._lock:
            over: dict[int, bool] = {}

            def is_old(serial: int | None) -> bool:
                if serial is not None and serial not in over:
                    over[serial] = self._store.ended_before([serial], before_s) == {serial}
                return serial is not None and over[serial]

            logs = self._engine.remove(before_s, lambda tag: is_old(self._serial(tag)))
            ids = self._workspaces.jobs()
            ended = self._store.ended_before(ids.values(), before_s)
            jobs = [job for job, serial in ids.items() if serial in ended]
            names = {serial: job for job, serial in ids.items()}
            for job in jobs:
                self._workspaces.remove_job(job)
            serials = ended | {serial for serial, old in over.items() if old}
            self._remove_exchanged({name for serial in serials if (name := self._job_id(serial, names))}, serials)
            workspaces = self._remove_workspaces(now)
        found = RemovedCounts(len(jobs), logs, workspaces)
        if found != RemovedCounts():
            log.info(
                "removed, as they ended more than %g days ago: files of %d jobs, logs of %d drivers; %d unused workspaces",
                *(self._keep_s / DAY_S, found.jobs, found.logs, found.workspaces),
            )
        return found

    def remove(self, row: JobRow, now: float) -> RemovedCounts:
        """Remove the files of one ended job, and its code unless another job needs it. Raises StoreError."""
        with self._lock:
            logs = self._engine.remove(math.inf, lambda tag: self._serial(tag) == row.serial)
            jobs = self._workspaces.remove_job(row.id)
            self._remove_exchanged({row.id}, {row.serial})
            self._store.forget_code(row.serial)
            return RemovedCounts(int(jobs), logs, self._remove_workspaces(now))

    def _remove_workspaces(self, now: float) -> int:
        """Delete unpacked code that no job needs; return the number of workspaces."""
        return self._workspaces.remove_unused(lambda: self._store.code_in_use(now - self._keep_s), now - UPLOADED_S)

    def _remove_exchanged(self, ids: Collection[str], serials: Collection[int]) -> None:
        """Remove the files exchanged with drivers on the project's store.

        If the store is unreachable they remain: the next sweep cannot find them again, and they are small.
        """
        if not ids:
            return
        folders, root = (
            {job_name_prefix(job, self._manager.prefix) for job in ids},
            urls.join(self._project_url, driver_requests.FOLDER),
        )
        try:
            store = for_url(root)
            for one in store.list_dir(root):
                if one.name in folders or self._serial(one.name.partition(".")[0]) in serials:
                    store.delete(one.url, recursive=True)
        except PathNotFound:
            return
        except StorageError as error:
            log.warning("files exchanged with drivers of ended jobs could not be removed: %s", error)

    def _job_id(self, serial: int, names: Mapping[int, str]) -> str:
        """Return the id of a job; of one whose row was removed that of its files here, "" if there are none."""
        try:
            return self._store.job(serial).id
        except JobNotFound:
            return names.get(serial, "")

    def _serial(self, tag: str) -> int | None:
        """Return the serial of the job that a launch's tag belongs to; None for a tag of another service."""
        own, _, rest = tag.partition(f"{self._manager.prefix}-")
        number = rest.partition("-")[0]
        return int(number) if not own and number.isdecimal() else None
