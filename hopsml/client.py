"""Python client of the job service, which the command ``hopsml jobs`` uses as well.

client = hopsml.client.Client.of_environment()      # $HOPSML_SERVER and $HOPSML_TOKEN, or this machine's server
job = client.submit("job.yaml")                     # uploads the code next to it
client.wait(job.id).state                           # "FINISHED"
client.why(job.id), client.cancel(job.id)
"""

from __future__ import annotations

import http.client
import json
import re
import secrets
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hopsml.core import log_stream, processes, proxies
from hopsml.core.states import Lifecycle
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, JobNotFound, ServiceError
from hopsml.storage import backoff

CA = Settings.server_ca.name
TIMEOUT_S = 60.0  # longest silence of a server in a call
_TRIES = 4  # attempts of a call that is safe to repeat, while the server is unavailable or restarts
_FOLLOWING_TRIES = 8  # attempts of a call that follows a job: about a minute, in which a server restarts
_PAUSE_S = 0.5
_ADDRESS = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:[0-9]{1,5})?(/[^\s?#]*)?")
_PATIENCE_S = 60.0  # longest time to repeat a call that the server has rejected with Retry-After
T = TypeVar("T")


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


class _RankLog(msgspec.Struct, frozen=True):
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


class _AuditPage(msgspec.Struct):
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


class _Page(msgspec.Struct):
    """Page of jobs; ``cursor`` selects the next page, None on the last one."""

    jobs: list[ServiceJob]
    cursor: int | None


class _LogPart(msgspec.Struct):
    """Response with a part of a driver's output; ``end`` is the offset after it."""

    text: str
    end: int


class _StaysHere(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirect, because the token is intended for one server only."""

    def redirect_request(self, *told: Any) -> None:
        """Reject the redirect, by returning None."""


class Client:
    """Client of one job service.

    Methods raise ArgumentError or JobFileError for an invalid call, JobNotFound, and ServiceError if the service
    rejects the call, with its message, or does not answer.
    """

    def __init__(self, address: str, token: str, certificate: str | Path = "") -> None:
        """Create a client; nothing is sent yet.

        Args:
            address: URL of the server.
            token: access token.
            certificate: PEM file with the certificate of the server or its authority, which is trusted in addition to
                the system's.

        Raises:
            ArgumentError: the address, the token or the certificate file is invalid.
        """
        if not _ADDRESS.fullmatch(address):
            raise ArgumentError(
                f"{address.partition('?')[0][:200]!r} is not the address of a job service; use the address that "
                "`hopsml server` has printed, without its token, such as  http://127.0.0.1:8080/"
            )
        if not token.isascii() or not token.isprintable():
            raise ArgumentError("the token contains characters that no token has; copy it again into HOPSML_TOKEN")
        self._address, self._token = address.rstrip("/"), token
        trust = [urllib.request.HTTPSHandler(context=_trust(certificate))] if address.startswith("https:") else []
        self._opener = proxies.opener(self._address, _StaysHere(), *trust)

    @classmethod
    def of_environment(cls) -> Client:
        """Create a client by $HOPSML_SERVER and $HOPSML_TOKEN, else for this user's server on this machine.

        $HOPSML_SERVER_CA names a file with certificates that are trusted in addition to the system's. The token of this
        user's own server is sent to that server only.

        Raises:
            ArgumentError: no server is configured or recorded, or a token is missing.
        """
        address, token = SETTINGS.server, SETTINGS.token
        certificate = SETTINGS.server_ca
        if address and token:
            return cls(address, token, certificate)
        file = state_folder() / "client.json"
        try:
            known = json.loads(file.read_text())
            its_address, its_token = str(known["address"]), str(known["token"])
        except (OSError, ValueError, LookupError, TypeError):
            if starting := _starting(state_folder()):
                raise ServiceError(starting) from None
            raise ArgumentError(
                f"no job service is known, since there is no file {file}; start one with `hopsml server`, or set "
                "HOPSML_SERVER and HOPSML_TOKEN"
            ) from None
        if address and address.rstrip("/") != its_address.rstrip("/"):
            raise ArgumentError(
                f"HOPSML_SERVER={address}: this user's own server is {its_address}, and its token is not sent to "
                "other servers; set HOPSML_TOKEN to a token of the other server"
            )
        return cls(its_address, token or its_token, certificate or str(known.get("certificate", "")))

    def submit(self, job_file: str | Path, *, idempotency_key: str = "") -> ServiceJob:
        """Queue the job of a file, and upload the code that it names as its workspace.

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
        """Upload the workspace of a job file, and return the request that refers to it."""
        from hopsml.service import spec, workspaces
        from hopsml.service.render import spark_submit

        job, path = spec.load(job_file), Path(job_file)
        code = workspaces.pack(spark_submit.workspace_folder(job, path.absolute()))
        digest = self._text("workspace", self._call("POST", "workspaces", content=code))
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
            page = self._as(self._call("GET", "jobs", query={**query, **more}), _Page)
            found += page.jobs
            if (before := page.cursor) is None:
                break
        return found

    def job(self, job: str | int) -> ServiceJobDetail:
        """Return one job, by its id or its number. Raises JobNotFound."""
        return self._job(job, _TRIES)

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
            tries = _FOLLOWING_TRIES if follow else _TRIES
            part = self._as(self._call("GET", path, query=query, tries=tries), _RankLog)
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
        return self._log(job, task, offset, try_number, _TRIES)

    def _log(self, job: str | int, task: str, offset: int, number: int | None, tries: int) -> tuple[str, int]:
        """Return a part of a driver's output, with at most ``tries`` attempts."""
        query = {"task": task, "offset": offset, "try": number if number is not None else ""}
        part = self._as(self._call("GET", f"jobs/{_quoted(job)}/log", query=query, tries=tries), _LogPart)
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
            yield from log_stream.pieces(lambda query, last: self._open(path, query, last), task)
        except log_stream.NoStreamHere:
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
            page = self._as(self._call("GET", "audit", query=query), _AuditPage)
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

    # ------------------------------------------------------------------------------------ HTTP

    def _open(self, path: str, query: Mapping[str, Any], last: str) -> Any:
        """Open a stream of events. Raises OSError if the server is unavailable, else errors as ``_call`` does."""
        url = f"{self._address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        sent = {"Authorization": f"Bearer {self._token}", **({"Last-Event-ID": last} if last else {})}
        try:
            return self._opener.open(urllib.request.Request(url, headers=sent), timeout=TIMEOUT_S)
        except urllib.error.HTTPError as refused:
            if refused.code not in (404, 429, 502, 503, 504):
                raise self._refusal(refused) from None
            refused.close()
            if refused.code == 404:
                raise log_stream.NoStreamHere from None
            # Too many calls, or the server restarts behind a proxy.
            raise ConnectionError(f"HTTP {refused.code}") from None

    def _call(
        self,
        method: str,
        path: str,
        asked: Mapping[str, Any] | None = None,
        *,
        content: bytes = b"",
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: bool = True,
        tries: int = _TRIES,
    ) -> Any:
        """Send a request, repeatedly if it is safe, and return the JSON of the response."""
        url = f"{self._address}/api/v1/{path}"
        if query:
            url += "?" + urllib.parse.urlencode(
                {name: value for name, value in query.items() if value != ""}, doseq=True
            )
        kind = "application/json" if asked is not None else "application/zip"
        data = json.dumps(asked).encode() if asked is not None else content or None
        sent = {"Authorization": f"Bearer {self._token}", "Content-Type": kind, **(headers or {})}
        request = urllib.request.Request(url, data, sent, method=method)
        problem, patient_until = "", time.monotonic() + _PATIENCE_S
        refusal, asked_s = None, 0.0
        attempts = iter(range(tries if repeat else 1))
        while (attempt := next(attempts, None)) is not None:
            if attempt:
                time.sleep(max(asked_s, backoff.pause_s(attempt, _PAUSE_S)))
            refusal, asked_s = None, 0.0
            try:
                with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                    said = answer.read()
                return self._json(said or b"null")
            except urllib.error.HTTPError as refused:
                wait_s = _wait_s(refused)
                if refused.code == 503 and wait_s is not None:  # for instance, its database is unavailable
                    refusal, asked_s = self._refusal(refused), wait_s
                    continue
                if wait_s is None or time.monotonic() + wait_s > patient_until:
                    raise self._refusal(refused) from None
                refused.close()
                time.sleep(wait_s)
                # The request was not processed, so that any request may be repeated.
                attempts = iter(range(tries if repeat else 1))
            except (OSError, UnicodeError, http.client.IncompleteRead) as error:
                reason = getattr(error, "reason", None)
                if isinstance(reason, ssl.SSLError):
                    raise _distrust(self._address, reason) from None
                if isinstance(reason or error, TimeoutError):
                    problem = f"it has sent nothing for {TIMEOUT_S:g} s"
                    break  # the server accepts connections but hangs: another attempt would wait as long
                problem = str(reason or error)
            except http.client.HTTPException as error:
                raise self._stranger(f"its answer is not HTTP: {type(error).__name__}") from None
        if refusal is not None:
            raise refusal
        if starting := _starting(state_folder()):
            raise ServiceError(starting)
        raise ServiceError(
            f"the job service at {self._address} does not answer ({problem}); check that `hopsml server` is "
            f"running{proxies.explain(self._address)}"
        )

    def _as(self, found: Any, kind: type[T]) -> T:
        """Convert a response to a type. Raises ServiceError if it does not fit."""
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError as error:
            raise self._stranger(str(error)) from None

    def _done(self, found: Any) -> None:
        """Check that a response is empty, as the service sends it for a completed action."""
        self._as(found, type(None))

    def _text(self, name: str, found: Any) -> str:
        """Return a string field of a response. Raises ServiceError without it."""
        text = self._as(found, dict[str, Any]).get(name)
        if not isinstance(text, str):
            raise self._stranger(f"its answer has no {name}")
        return text

    def _json(self, said: bytes) -> Any:
        """Parse a response as JSON. Raises ServiceError if it is none."""
        try:
            return json.loads(said)
        except ValueError:
            raise self._stranger(f"it says {said[:60].decode(errors='replace')!r}") from None

    def _refusal(self, refused: urllib.error.HTTPError) -> Exception:
        """Return the error for a response with an error status, with the service's message.

        A response that has none is reported as that of another server.
        """
        try:
            with refused:
                said = json.loads(refused.read())
            text = f"{said['error']}; {said['remedy']}" if said.get("remedy") else str(said["error"])
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError):
            place = refused.headers.get("location", "")
            return self._stranger(
                f"HTTP {refused.code}" + (f", which was redirected to {place[:200]}" if place else "")
            )
        if refused.code == 404:
            return JobNotFound(text)
        return ArgumentError(text) if refused.code in (400, 422) else ServiceError(text)

    def _stranger(self, said: str) -> ServiceError:
        """Return the error for a server that is no job service of this version."""
        return ServiceError(
            f"the server at {self._address} is not a job service of this version of hopsml "
            f"({' '.join(said.split())}); set HOPSML_SERVER to the address that `hopsml server` has printed"
        )


STARTING = "starting"  # file in the state folder that names the process of a server which does not accept requests yet


def _starting(state: Path) -> str:
    """Return the error message if this user's server is just starting; "" if it is not."""
    try:
        file = state / STARTING
        process, age_s = file.read_text(), time.time() - file.stat().st_mtime
    except (OSError, ValueError):
        return ""
    if processes.is_gone(process):
        return ""
    return (
        f"this user's job service has been starting for {max(0.0, age_s):.0f} s and does not accept requests yet; repeat "
        "the command when `hopsml server` has printed its address"
    )


def state_folder() -> Path:
    """Return the folder with the state of this user's server: $HOPSML_SERVER_STATE, else ``~/.hopsml/server``."""
    return Path(SETTINGS.server_state or Path.home() / ".hopsml" / "server")


def _trust(certificate: str | Path) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities and the certificates of a file.

    A server's own certificate in the file suffices. Raises ArgumentError.
    """
    made = ssl.create_default_context()
    if certificate:
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            made.load_verify_locations(certificate)
        except OSError as error:  # includes ssl.SSLError
            said = getattr(error, "reason", None) or error.strerror or error
            raise ArgumentError(
                f"{CA}={certificate}: the file contains no readable certificates ({said}); set the variable to a PEM "
                "file with the certificate of the server or of its authority"
            ) from error
    return made


def _distrust(address: str, error: ssl.SSLError) -> ServiceError:
    """Return the error for a server with which TLS fails."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message.rstrip(".")
        return ServiceError(
            f"the certificate of {address} is not trusted ({said}); use the host name in the certificate, or set "
            f"{CA} to a file with the certificate of its authority"
        )
    return ServiceError(
        f"the TLS connection to {address} failed ({error.reason}); write http:// for a server without TLS"
    )


def _quoted(job: str | int) -> str:
    """Return a job's id as part of a URL's path."""
    return urllib.parse.quote(str(job), safe="")


def _wait_s(refused: urllib.error.HTTPError) -> float | None:
    """Return the seconds of the header Retry-After; None without one."""
    said = refused.headers.get("Retry-After", "") if refused.code in (429, 503) else ""
    return max(float(said), 0.05) if said.isdecimal() else None
