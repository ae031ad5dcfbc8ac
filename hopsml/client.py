"""Python client of the job service, which the command ``hopsml jobs`` uses as well.

client = hopsml.client.Client.of_environment()      # $HOPSML_SERVER and $HOPSML_TOKEN, or this machine's server
job = client.submit("job.yaml")                     # uploads the code next to it
client.wait(job.id).state                           # "FINISHED"
client.why(job.id), client.cancel(job.id)
"""

from __future__ import annotations

import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hopsml.core import log_stream
from hopsml.core.states import Lifecycle
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError, ServiceError
from hopsml.service import server_record
from hopsml.service_connection import TRIES, Credentials, ServiceConnection, starting_message, state_folder
from hopsml.service_records import (
    AuditLogPage,
    AuditRecord,
    DriverLogPart,
    JobApplication,
    JobChange,
    JobListPage,
    JobMetric,
    JobProgress,
    JobRun,
    JobRunMetrics,
    JobSize,
    RankLogPart,
    SecretRecord,
    ServiceJob,
    ServiceJobDetail,
    ServiceSchedule,
    TokenRecord,
)

__all__ = [
    "AuditRecord",
    "Client",
    "JobApplication",
    "JobChange",
    "JobMetric",
    "JobProgress",
    "JobRun",
    "JobRunMetrics",
    "JobSize",
    "SecretRecord",
    "ServiceJob",
    "ServiceJobDetail",
    "ServiceSchedule",
    "TokenRecord",
]
_FOLLOWING_TRIES = 8  # attempts of a call that follows a job: about a minute, in which a server restarts


class Client(ServiceConnection):
    """Client of one job service.

    Methods raise ArgumentError or JobFileError for an invalid call, JobNotFound, and ServiceError if the service
    rejects the call, with its message, or does not answer.
    """

    @classmethod
    def of_environment(cls) -> Client:
        """Create a client by $HOPSML_SERVER and $HOPSML_TOKEN, else for this user's server on this machine.

        $HOPSML_SERVER_CA names a file with certificates that are trusted in addition to the system's. The token of this
        user's own server is sent to that server only.

        Raises:
            ArgumentError: no server is configured or recorded, or a token is missing.
        """
        if SETTINGS.server and SETTINGS.token:
            return cls(SETTINGS.server, SETTINGS.token, SETTINGS.server_ca)
        return cls.of_state(state_folder())

    @classmethod
    def of_state(cls, state: Path) -> Client:
        """Create a client for the server of a state folder on this machine, which belongs to this user.

        It continues with the server's new address and token after a restart, and sends nothing to the address while a
        process of another user listens there.

        Raises:
            ArgumentError: there is no record of a server, or it is not the one that HOPSML_SERVER names.
            ServiceError: the server is starting.
        """
        return cls(*_recorded(state), recorded=lambda: _recorded(state))

    def submit(self, job_file: str | Path, *, idempotency_key: str = "") -> ServiceJob:
        """Queue the job of a file, and upload the code that it names.

        Args:
            job_file: path of the job file.
            idempotency_key: calls with the same key queue one job together. Without one, each call queues exactly one
                job, even if its request is repeated because a response was lost.

        Raises:
            JobFileError: the file has mistakes.
        """
        asked = self._uploaded(job_file)
        headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
        return self._as(self._call("POST", "jobs", asked, headers=headers), ServiceJob)

    def put_schedule(self, job_file: str | Path) -> ServiceSchedule:
        """Create a schedule that starts the job of a file, or replace this user's schedule of the same name."""
        return self._as(self._call("POST", "schedules", self._uploaded(job_file), repeat=False), ServiceSchedule)

    def _uploaded(self, job_file: str | Path) -> dict[str, str]:
        """Upload the code of a job file, and return the request that refers to it."""
        from hopsml.service import code, spec, workspaces

        job, path = spec.load(job_file), Path(job_file)
        with code.local_code(job, path.absolute()) as folder:
            packed = workspaces.zip_folder(folder)
        digest = self._text("workspace", self._call("POST", "workspaces", content=packed))
        return {"spec": path.read_text(encoding="utf-8"), "workspace": digest}

    def jobs(
        self,
        *,
        states: tuple[Lifecycle, ...] = (),
        owner: str = "",
        queue: str = "",
        text: str = "",
        limit: int = 100,
        why: bool = False,
        progress: bool = False,
    ) -> list[ServiceJob]:
        """Return jobs that match all given filters, newest first.

        Args:
            states: states of the jobs; empty: any.
            owner: owner of the jobs; empty: any.
            queue: queue of the jobs; empty: any.
            text: part of the job's name.
            limit: maximum number of jobs.
            why: whether to include why jobs wait.
            progress: whether to include the progress of running jobs.
        """
        found: list[ServiceJob] = []
        before: int | None = None
        while len(found) < limit:
            query = {"state": [state.value for state in states], "owner": owner, "queue": queue, "text": text}
            more: dict[str, Any] = {
                "limit": min(1000, limit - len(found)),
                "why": "true" if why else "",
                "progress": "true" if progress else "",
            }
            more |= {"before": before} if before is not None else {}
            page = self._as(self._call("GET", "jobs", query={**query, **more}), JobListPage)
            found += page.jobs
            if (before := page.cursor) is None:
                break
        return found

    def job(self, job: str | int) -> ServiceJobDetail:
        """Return one job, by its id or its number. Raises JobNotFound."""
        return self._job(job, TRIES)

    def _job(self, job: str | int, tries: int) -> ServiceJobDetail:
        """Return one job, with at most ``tries`` attempts."""
        return self._as(self._call("GET", f"jobs/{_quoted(job)}", tries=tries), ServiceJobDetail)

    def why(self, job: str | int) -> str:
        """Return why a job does not run; empty if it runs or has ended."""
        return self._text("why", self._call("GET", f"jobs/{_quoted(job)}/why"))

    def changes(self, job: str | int, after: int = 0) -> list[JobChange]:
        """Return the changes of a job's state, oldest first; ``after``: only those with a higher id."""
        return self._as(self._call("GET", f"jobs/{_quoted(job)}/changes", query={"after": after}), list[JobChange])

    def runs(self, job: str | int) -> list[JobRun]:
        """Return the runs of a job's tasks, oldest first; ``hopsml runs status RUN`` shows more of each."""
        return self._as(self._call("GET", f"jobs/{_quoted(job)}/runs"), list[JobRun])

    def metrics(self, job: str | int) -> list[JobRunMetrics]:
        """Return the metrics of each of a job's runs, oldest first; ``hopsml runs metrics RUN`` shows them by step."""
        return self._as(self._call("GET", f"jobs/{_quoted(job)}/metrics"), list[JobRunMetrics])

    def rank_log(
        self, job: str | int, rank: int, task: str = "", run: str = "", *, follow: bool = False, poll_s: float = 1.0
    ) -> Iterator[str]:
        """Yield the lines that one worker of a run has printed.

        A worker's log reaches the run directory some seconds later.

        Args:
            job: id or number of the job.
            rank: rank of the worker.
            task: task of the run, if no run is named; empty: any.
            run: id of the run; empty: the newest one.
            follow: yield lines as they are stored, until the job ends, from run to run; or until the named run ends.
            poll_s: seconds between two requests.

        Raises:
            ArgumentError: there is no such rank.
        """
        asked, offset = run, 0
        while True:
            query = {"task": task, "run": asked, "offset": offset}
            path = f"jobs/{_quoted(job)}/ranks/{rank}/log"
            tries = _FOLLOWING_TRIES if follow else TRIES
            part = self._as(self._call("GET", path, query=query, tries=tries), RankLogPart)
            yield from part.lines
            asked, offset = part.run, part.end
            if part.is_over and part.is_whole and follow and not run and part.newest != part.run:
                asked, offset = "", 0
            elif part.is_whole and (part.is_over or not follow):
                return
            elif part.is_whole:
                time.sleep(poll_s)

    def log(self, job: str | int, task: str = "", offset: int = 0, *, try_number: int | None = None) -> tuple[str, int]:
        """Return a part of a task's driver output, and the offset of the next part.

        Args:
            job: id or number of the job.
            task: task of the job; empty: the first one that was started.
            offset: first byte.
            try_number: number of the try, from 1, for a job that was tried again; None: the newest one.
        """
        return self._log(job, task, offset, try_number, TRIES)

    def _log(self, job: str | int, task: str, offset: int, number: int | None, tries: int) -> tuple[str, int]:
        """Return a part of a driver's output, with at most ``tries`` attempts."""
        query = {"task": task, "offset": offset, "try": number if number is not None else ""}
        part = self._as(self._call("GET", f"jobs/{_quoted(job)}/log", query=query, tries=tries), DriverLogPart)
        return part.text, part.end

    def follow(self, job: str | int, task: str = "", poll_s: float = 1.0) -> Iterator[str]:
        """Yield the driver's output as it is printed, until the job ends; a server that restarts is waited for.

        A new try of the job is followed from its beginning.

        Args:
            job: id or number of the job.
            task: task of the job; empty: the first one that was started.
            poll_s: seconds between two requests, for a server without event streams.
        """
        self.job(job)  # raises at once if no service answers
        path = f"jobs/{_quoted(job)}/log/events"
        try:
            yield from log_stream.follow_log(lambda query, last: self._open(path, query, last), task)
        except log_stream.StreamUnavailable:
            yield from self._looked_for(job, task, poll_s)

    def _looked_for(self, job: str | int, task: str, poll_s: float) -> Iterator[str]:
        """Yield the driver's output by polling, for a server without event streams."""
        number, offset = max(1, self._job(job, _FOLLOWING_TRIES).tries), 0
        while True:
            found = self._job(job, _FOLLOWING_TRIES)  # read before the last part of the log
            text, offset = self._log(job, task, offset, number, _FOLLOWING_TRIES)
            if text:
                yield text
            elif found.tries > number:
                number, offset = number + 1, 0
            elif found.state.is_final:
                return
            else:
                time.sleep(poll_s)

    def wait(self, job: str | int, timeout_s: float | None = None, poll_s: float = 1.0) -> ServiceJobDetail:
        """Wait for the end of a job, and return it.

        Args:
            job: id or number of the job.
            timeout_s: longest wait in seconds; None: no limit.
            poll_s: seconds between two requests.

        Raises:
            TimeoutError: the job has not ended in time; it continues.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (found := self._job(job, _FOLLOWING_TRIES)).state.is_final:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(
                    f"job {found.id} is still {found.state} after {timeout_s:g} s: {found.why or found.cause}"
                )
            time.sleep(poll_s)
        return found

    def cancel(self, job: str | int) -> ServiceJob:
        """End a job permanently, and return it."""
        return self._changed(job, "cancel")

    def pause(self, job: str | int) -> ServiceJob:
        """Pause a job, which releases its slots until it is resumed, and return it."""
        return self._changed(job, "pause")

    def resume(self, job: str | int) -> ServiceJob:
        """Resume a paused job, which then waits for slots, and return it."""
        return self._changed(job, "resume")

    def move(self, job: str | int, *, queue: str | None = None, priority: int | None = None) -> ServiceJob:
        """Move a job to another queue or change its priority, and return it; None leaves the value."""
        return self._changed(job, "move", {"queue": queue, "priority": priority})

    def clone(self, job: str | int) -> ServiceJob:
        """Queue a copy of a job with the same code, and return it."""
        return self._changed(job, "clone")

    def remove(self, job: str | int) -> ServiceJob:
        """Delete an ended job's files from the server: its drivers' logs, and its code unless another job needs it.

        Its record and its runs are retained. Raises ServiceError if the job has not ended.
        """
        return self._changed(job, "remove")

    def cluster(self) -> dict[str, Any]:
        """Return the state of the cluster.

        Its keys are ``capacity`` and ``free`` (gpus, cores, memory_mib), ``leads``, ``leader`` and ``problem``.
        """
        return self._as(self._call("GET", "cluster"), dict[str, Any])

    def create_token(self, user: str, role: str = "viewer", *, label: str = "", lasts_s: float | None = None) -> str:
        """Create an access token for a user, as an administrator; it cannot be read again.

        Args:
            user: name of the user.
            role: viewer, user, operator or admin.
            label: description of the token.
            lasts_s: lifetime in seconds; None: unlimited.
        """
        asked = {"user": user, "role": role, "label": label, "lasts_s": lasts_s}
        return self._text("token", self._call("POST", "tokens", asked, repeat=False))

    def tokens(self) -> list[TokenRecord]:
        """Return the records of all tokens, oldest first, as an administrator."""
        return self._as(self._call("GET", "tokens"), list[TokenRecord])

    def revoke_token(self, token_id: str) -> None:
        """Revoke the token with this id, as an administrator."""
        self._done(self._call("DELETE", f"tokens/{_quoted(token_id)}", repeat=False))

    def audit(self, *, user: str = "", action: str = "", limit: int = 100) -> list[AuditRecord]:
        """Return records of changes and of rejected calls, newest first, as an administrator.

        Args:
            user: only calls of this user.
            action: only this action.
            limit: maximum number of records.
        """
        found: list[AuditRecord] = []
        before: int | None = None
        while len(found) < limit:
            query = {"user": user, "action": action, "limit": min(1000, limit - len(found))}
            query |= {"before": before} if before is not None else {}
            page = self._as(self._call("GET", "audit", query=query), AuditLogPage)
            found += page.entries
            if (before := page.cursor) is None:
                break
        return found

    def schedules(self) -> list[ServiceSchedule]:
        """Return all schedules, oldest first."""
        return self._as(self._call("GET", "schedules"), list[ServiceSchedule])

    def schedule(self, schedule: str | int) -> ServiceSchedule:
        """Return one schedule, by its id or its number. Raises JobNotFound."""
        return self._as(self._call("GET", f"schedules/{_quoted(schedule)}"), ServiceSchedule)

    def change_schedule(self, schedule: str | int, what: str) -> None:
        """Pause or resume a schedule; starts that were due during the pause are not repeated.

        Args:
            schedule: id or number of the schedule.
            what: ``pause`` or ``resume``.
        """
        self._done(self._call("POST", f"schedules/{_quoted(schedule)}/{_quoted(what)}", {}))

    def trigger_schedule(self, schedule: str | int) -> ServiceJob:
        """Start a schedule's job now, in addition to its planned times, and return it."""
        found = self._call("POST", f"schedules/{_quoted(schedule)}/trigger", {}, repeat=False)
        return self._as(found, ServiceJob)

    def remove_schedule(self, schedule: str | int) -> None:
        """Delete a schedule so that it starts no more jobs; jobs that it has started remain."""
        self._done(self._call("DELETE", f"schedules/{_quoted(schedule)}", repeat=False))

    def put_secret(self, name: str, value: str) -> None:
        """Store a secret for this user's jobs, which name it under ``secrets``; its value cannot be read again."""
        self._done(self._call("PUT", f"secrets/{_quoted(name)}", {"value": value}))

    def secrets(self) -> list[SecretRecord]:
        """Return the records of this user's secrets by name, without their values."""
        return self._as(self._call("GET", "secrets"), list[SecretRecord])

    def remove_secret(self, name: str) -> None:
        """Delete one of this user's secrets."""
        self._done(self._call("DELETE", f"secrets/{_quoted(name)}", repeat=False))

    def _changed(self, job: str | int, what: str, asked: Mapping[str, Any] | None = None) -> ServiceJob:
        """Request an action on a job, and return the job."""
        repeat = what != "clone"
        return self._as(self._call("POST", f"jobs/{_quoted(job)}/{what}", asked or {}, repeat=repeat), ServiceJob)


def _quoted(job: str | int) -> str:
    """Return a job's id as part of a URL's path."""
    return urllib.parse.quote(str(job), safe="")


def _recorded(state: Path) -> Credentials:
    """Return address, token and certificate of the server of a state folder; errors as of ``Client.of_state``."""
    known = server_record.read(state)
    if known is None:
        if starting := starting_message(state):
            raise ServiceError(starting)
        raise ArgumentError(
            f"no job service is known, since there is no file {state / server_record.RECORD}; start one with `hopsml "
            "server`, or set HOPSML_SERVER and HOPSML_TOKEN"
        )
    address = SETTINGS.server
    if address and address.rstrip("/") != known.address.rstrip("/"):
        raise ArgumentError(
            f"HOPSML_SERVER={address}: this user's own server is {known.address}, and its token is not sent to "
            "other servers; set HOPSML_TOKEN to a token of the other server"
        )
    return known.address, SETTINGS.token or known.token, SETTINGS.server_ca or known.certificate
