"""The job service from Python; ``hopsml job`` is made of it.

client = hopsml.client.Client.of_environment()      # $HOPSML_SERVER and $HOPSML_TOKEN, or the server of this machine
job = client.submit("job.yaml")                     # uploads the code beside it
client.wait(job.id).state                           # "FINISHED"
client.why(job.id), client.cancel(job.id)
"""

from __future__ import annotations

import http.client
import json
import os
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

from hopsml import proxies
from hopsml.errors import ArgumentError, JobNotFound, ServiceError
from hopsml.service import log_stream
from hopsml.states import Lifecycle
from hopsml.storage import backoff

CA = "HOPSML_SERVER_CA"
TIMEOUT_S = 60.0  # in which a server has to say something
_TRIES = 4  # of a call that is safe to repeat, while the server is away or starts anew
_FOLLOWING_TRIES = 8  # of one that follows a job: about a minute, in which a server is started anew
_PAUSE_S = 0.5
_ADDRESS = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:[0-9]{1,5})?(/[^\s?#]*)?")
_PATIENCE_S = 60.0  # for a server that says that there are too many calls
T = TypeVar("T")


class ServiceJob(msgspec.Struct, frozen=True):
    """A job. Times: seconds since 1970, 0 for not yet; ``why`` it does not run, of a list only where that was asked."""

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


class JobApplication(msgspec.Struct, frozen=True):
    """What was started for a task."""

    task: str
    number: int
    state: Lifecycle
    application_id: str
    tag: str
    cause: str


class JobSize(msgspec.Struct, frozen=True):
    """The slots of a task: that it has, that it is to have (fewer: it is about to give some back), the fewest, the most."""

    task: str
    slots: int
    target: int
    fewest: int
    most: int


class ServiceJobDetail(ServiceJob, frozen=True, kw_only=True):
    """A job with all that is known of it; ``spec``: YAML."""

    spec: str
    profile: str
    applications: list[JobApplication]
    sizes: list[JobSize] = []


class JobChange(msgspec.Struct, frozen=True):
    """A change of state; ``task`` is empty for the job itself."""

    id: int
    task: str
    state: Lifecycle
    cause: str
    try_number: int
    at_s: float


class JobRun(msgspec.Struct, frozen=True):
    """A run that a task of a job has made; ``metric``: its main one, None where there is none."""

    id: str
    state: str
    metric_name: str
    metric: float | None


class JobMetric(msgspec.Struct, frozen=True):
    """A metric of a run: how often it was reported, last at which step; None where no value was a number."""

    name: str
    reports: int
    step: float
    last: float | None
    lowest: float | None
    highest: float | None


class JobRunMetrics(JobRun, frozen=True, kw_only=True):
    """A run of a job's task, with all metrics that it has reported.

    ``trial``: in a search, the trial that has these metrics: the best one, or the one with the most steps if none is best.
    """

    metrics: list[JobMetric]
    trial: str = ""


class _RankLog(msgspec.Struct, frozen=True):
    run: str
    newest: str
    lines: list[str]
    end: int
    is_whole: bool
    is_over: bool


class TokenRecord(msgspec.Struct, frozen=True):
    """A token of somebody's, without itself. Times: seconds since 1970."""

    id: str
    user: str
    role: str
    label: str
    created_s: float
    expires_s: float | None
    revoked_s: float | None


class AuditRecord(msgspec.Struct, frozen=True):
    """A call that has changed something, or was refused; ``user`` is empty where nobody's token was given."""

    id: int
    at_s: float
    user: str
    role: str
    action: str
    target: str
    outcome: int
    peer: str


class _AuditPage(msgspec.Struct):
    entries: list[AuditRecord]
    cursor: int | None


class ServiceSchedule(msgspec.Struct, frozen=True):
    """A job that is started by itself; ``planned_s``: when its next one comes, seconds since 1970; ``spec``: YAML."""

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
    """A secret, without its value; ``stored_s``: seconds since 1970."""

    name: str
    stored_s: float


class _Page(msgspec.Struct):
    jobs: list[ServiceJob]
    cursor: int | None


class _LogPart(msgspec.Struct):
    text: str
    end: int


class _StaysHere(urllib.request.HTTPRedirectHandler):
    """Follows nobody elsewhere: the token is for one server alone."""

    def redirect_request(self, *told: Any) -> None:
        """A redirect is an answer that is none."""


class Client:
    """One server. Raises ServiceError for what it refuses, with its words, and where it does not answer."""

    def __init__(self, address: str, token: str, certificate: str | Path = "") -> None:
        """``certificate``: a PEM file with the server's own, or its authority's, to be trusted beside the system's."""
        if not _ADDRESS.fullmatch(address):
            raise ArgumentError(
                f"{address.partition('?')[0][:200]!r} is no address of a job service: write what `hopsml server` "
                "has printed, without its token: http://127.0.0.1:8080/"
            )
        if not token.isascii() or not token.isprintable():
            raise ArgumentError("the token has characters that none has: copy it once more into HOPSML_TOKEN")
        self._address, self._token = address.rstrip("/"), token
        trust = [urllib.request.HTTPSHandler(context=_trust(certificate))] if address.startswith("https:") else []
        self._opener = proxies.opener(self._address, _StaysHere(), *trust)

    @classmethod
    def of_environment(cls) -> Client:
        """By $HOPSML_SERVER and $HOPSML_TOKEN, else of the server that this user has started on this machine.

        $HOPSML_SERVER_CA names a file with certificates that are trusted beside the system's. That server's own token is
        sent to that server alone. Raises ArgumentError where there is neither.
        """
        address, token = os.environ.get("HOPSML_SERVER"), os.environ.get("HOPSML_TOKEN")
        certificate = os.environ.get(CA, "")
        if address and token:
            return cls(address, token, certificate)
        file = state_folder() / "client.json"
        try:
            known = json.loads(file.read_text())
            its_address, its_token = str(known["address"]), str(known["token"])
        except (OSError, ValueError, LookupError, TypeError):
            raise ArgumentError(
                f"no job service is known: {file} is not there; start one with `hopsml server`, or set HOPSML_SERVER and "
                "HOPSML_TOKEN"
            ) from None
        if address and address.rstrip("/") != its_address.rstrip("/"):
            raise ArgumentError(
                f"HOPSML_SERVER={address}: this user's own server is {its_address}, and its token is for nobody else; set "
                "HOPSML_TOKEN to one that the other server knows"
            )
        return cls(its_address, token or its_token, certificate or str(known.get("certificate", "")))

    def submit(self, job_file: str | Path, *, idempotency_key: str = "") -> ServiceJob:
        """Queue the job of a file; the code that it names as workspace is uploaded.

        ``idempotency_key``: of two calls with the same one there is one job; without it each call queues one, also where
        an answer is lost on its way and the call is repeated. Raises JobFileError for a file with mistakes.
        """
        asked = self._uploaded(job_file)
        headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
        return self._as(self._call("POST", "jobs", asked, headers=headers), ServiceJob)

    def put_schedule(self, job_file: str | Path) -> ServiceSchedule:
        """Start the job of a file by itself, as its ``schedule`` says; in the place of one's own schedule of this name."""
        return self._as(self._call("POST", "schedules", self._uploaded(job_file), repeat=False), ServiceSchedule)

    def _uploaded(self, job_file: str | Path) -> dict[str, str]:
        from hopsml.service import spec, workspaces
        from hopsml.service.render import workspace

        job, path = spec.load(job_file), Path(job_file)
        code = workspaces.pack(workspace.folder(job, path.absolute()))
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
    ) -> list[ServiceJob]:
        """Jobs, the newest first, at most ``limit``; ``text``: a part of the name; ``why``: say why jobs wait."""
        found: list[ServiceJob] = []
        before: int | None = None
        while len(found) < limit:
            query = {"state": [state.value for state in states], "owner": owner, "queue": queue, "text": text}
            more: dict[str, Any] = {"limit": min(1000, limit - len(found)), "why": "true" if why else ""}
            more |= {"before": before} if before is not None else {}
            page = self._as(self._call("GET", "jobs", query={**query, **more}), _Page)
            found += page.jobs
            if (before := page.cursor) is None:
                break
        return found

    def job(self, job: str | int) -> ServiceJobDetail:
        """One job, by its id or its number. Raises JobNotFound."""
        return self._job(job, _TRIES)

    def _job(self, job: str | int, tries: int) -> ServiceJobDetail:
        return self._as(self._call("GET", f"jobs/{_quoted(job)}", tries=tries), ServiceJobDetail)

    def why(self, job: str | int) -> str:
        """Why it does not run; empty where it does, or is over."""
        return self._text("why", self._call("GET", f"jobs/{_quoted(job)}/why"))

    def changes(self, job: str | int, after: int = 0) -> list[JobChange]:
        """What has happened to it, the oldest first; ``after``: only with a higher id."""
        return self._as(self._call("GET", f"jobs/{_quoted(job)}/changes", query={"after": after}), list[JobChange])

    def runs(self, job: str | int) -> list[JobRun]:
        """The runs that its tasks have made, the oldest first; ``hopsml status RUN`` tells more of one."""
        return self._as(self._call("GET", f"jobs/{_quoted(job)}/runs"), list[JobRun])

    def metrics(self, job: str | int) -> list[JobRunMetrics]:
        """What each of its runs has reported, the oldest first; ``hopsml metrics RUN`` tells it step by step."""
        return self._as(self._call("GET", f"jobs/{_quoted(job)}/metrics"), list[JobRunMetrics])

    def rank_log(
        self, job: str | int, rank: int, task: str = "", run: str = "", *, follow: bool = False, poll_s: float = 1.0
    ) -> Iterator[str]:
        """The lines that one worker has printed: of the run that is named, else of the newest one, of a task or of any.

        ``follow``: as they come, to the end of the job, from run to run; or of the run that is named. A worker's log
        reaches the run's directory some seconds later. ``poll_s``: between two looks. Raises ArgumentError where there is
        no such rank.
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
        """Some of what the driver of a task has printed from byte ``offset`` on, and where the next part begins.

        ``try_number``: of a job that was tried again, from 1 on; the newest one where it is not given.
        """
        return self._log(job, task, offset, try_number, _TRIES)

    def _log(self, job: str | int, task: str, offset: int, number: int | None, tries: int) -> tuple[str, int]:
        query = {"task": task, "offset": offset, "try": number if number is not None else ""}
        part = self._as(self._call("GET", f"jobs/{_quoted(job)}/log", query=query, tries=tries), _LogPart)
        return part.text, part.end

    def follow(self, job: str | int, task: str = "", poll_s: float = 1.0) -> Iterator[str]:
        """What the driver prints, as it comes, to the end of the job; a server that starts anew meanwhile is waited for.

        A new try of the job is followed from its beginning. ``poll_s``: between two looks, of a server without streams.
        """
        self.job(job)  # where nobody answers, or no service, that is said at once
        path = f"jobs/{_quoted(job)}/log/events"
        try:
            yield from log_stream.pieces(lambda query, last: self._open(path, query, last), task)
        except log_stream.NoStreamHere:
            yield from self._looked_for(job, task, poll_s)

    def _looked_for(self, job: str | int, task: str, poll_s: float) -> Iterator[str]:
        number, offset = max(1, self._job(job, _FOLLOWING_TRIES).tries), 0
        while True:
            found = self._job(job, _FOLLOWING_TRIES)  # before the last look
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
        """Wait for its end. Raises TimeoutError after ``timeout_s`` seconds; the job goes on."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (found := self._job(job, _FOLLOWING_TRIES)).state.is_final:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"job {found.id} is {found.state} after {timeout_s:g} s: {found.why or found.cause}")
            time.sleep(poll_s)
        return found

    def cancel(self, job: str | int) -> ServiceJob:
        """End it for good."""
        return self._changed(job, "cancel")

    def pause(self, job: str | int) -> ServiceJob:
        """Let it give its slots back until it is resumed."""
        return self._changed(job, "pause")

    def resume(self, job: str | int) -> ServiceJob:
        """Let it wait for slots again."""
        return self._changed(job, "resume")

    def move(self, job: str | int, *, queue: str | None = None, priority: int | None = None) -> ServiceJob:
        """Another queue, or another priority."""
        return self._changed(job, "move", {"queue": queue, "priority": priority})

    def clone(self, job: str | int) -> ServiceJob:
        """Queue the same job, with the same code, once more."""
        return self._changed(job, "clone")

    def remove(self, job: str | int) -> ServiceJob:
        """Delete an ended job's files from the server: its drivers' logs, and its code unless another job needs it.

        Its record and its runs are retained. Raises ServiceError if the job has not ended.
        """
        return self._changed(job, "remove")

    def cluster(self) -> dict[str, Any]:
        """``capacity``, ``free`` (gpus, cores, memory_mib), ``leads``, ``leader``, ``problem``."""
        return self._as(self._call("GET", "cluster"), dict[str, Any])

    def create_token(self, user: str, role: str = "viewer", *, label: str = "", lasts_s: float | None = None) -> str:
        """A token for somebody, for administrators; ``role``: viewer, user, operator or admin. Nobody can read it again."""
        asked = {"user": user, "role": role, "label": label, "lasts_s": lasts_s}
        return self._text("token", self._call("POST", "tokens", asked, repeat=False))

    def tokens(self) -> list[TokenRecord]:
        """Those that were created, the oldest first; for administrators."""
        return self._as(self._call("GET", "tokens"), list[TokenRecord])

    def revoke_token(self, token_id: str) -> None:
        """End one, by its id; for administrators."""
        self._done(self._call("DELETE", f"tokens/{_quoted(token_id)}", repeat=False))

    def audit(self, *, user: str = "", action: str = "", limit: int = 100) -> list[AuditRecord]:
        """Who has changed what, and who was refused, the newest first, at most ``limit``; for administrators."""
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
        """Those that there are, the oldest first."""
        return self._as(self._call("GET", "schedules"), list[ServiceSchedule])

    def schedule(self, schedule: str | int) -> ServiceSchedule:
        """One, by its id or its number. Raises JobNotFound."""
        return self._as(self._call("GET", f"schedules/{_quoted(schedule)}"), ServiceSchedule)

    def change_schedule(self, schedule: str | int, what: str) -> None:
        """``pause`` or ``resume``; what was due meanwhile is not made up for."""
        self._done(self._call("POST", f"schedules/{_quoted(schedule)}/{_quoted(what)}", {}))

    def trigger_schedule(self, schedule: str | int) -> ServiceJob:
        """Start its job now, besides its times."""
        found = self._call("POST", f"schedules/{_quoted(schedule)}/trigger", {}, repeat=False)
        return self._as(found, ServiceJob)

    def remove_schedule(self, schedule: str | int) -> None:
        """Start nothing more; its jobs stay."""
        self._done(self._call("DELETE", f"schedules/{_quoted(schedule)}", repeat=False))

    def put_secret(self, name: str, value: str) -> None:
        """Keep a value for one's own jobs, which name it under ``secrets``; nobody can read it again."""
        self._done(self._call("PUT", f"secrets/{_quoted(name)}", {"value": value}))

    def secrets(self) -> list[SecretRecord]:
        """One's own, by name, without their values."""
        return self._as(self._call("GET", "secrets"), list[SecretRecord])

    def remove_secret(self, name: str) -> None:
        """Forget one of one's own."""
        self._done(self._call("DELETE", f"secrets/{_quoted(name)}", repeat=False))

    def _changed(self, job: str | int, what: str, asked: Mapping[str, Any] | None = None) -> ServiceJob:
        repeat = what != "clone"
        return self._as(self._call("POST", f"jobs/{_quoted(job)}/{what}", asked or {}, repeat=repeat), ServiceJob)

    # ------------------------------------------------------------------------------------ HTTP

    def _open(self, path: str, query: Mapping[str, Any], last: str) -> Any:
        """A stream of events. Raises OSError where the server is away, and what it refuses as ``_call`` does."""
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
            raise ConnectionError(f"HTTP {refused.code}") from None  # told to wait, or it starts anew behind a proxy

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
                if refused.code == 503 and wait_s is not None:  # its database is away, for instance
                    refusal, asked_s = self._refusal(refused), wait_s
                    continue
                if wait_s is None or time.monotonic() + wait_s > patient_until:
                    raise self._refusal(refused) from None
                refused.close()
                time.sleep(wait_s)
                attempts = iter(range(tries if repeat else 1))  # nothing was done: it may be repeated, whatever it is
            except (OSError, UnicodeError, http.client.IncompleteRead) as error:
                reason = getattr(error, "reason", None)
                if isinstance(reason, ssl.SSLError):
                    raise _distrust(self._address, reason) from None
                if isinstance(reason or error, TimeoutError):
                    problem = f"it has said nothing for {TIMEOUT_S:g} s"
                    break  # it is there and stands still: who asks again waits as long again
                problem = str(reason or error)
            except http.client.HTTPException as error:
                raise self._stranger(f"it does not speak HTTP: {type(error).__name__}") from None
        if refusal is not None:
            raise refusal
        raise ServiceError(
            f"the job service at {self._address} does not answer ({problem}); see whether `hopsml server` runs"
            f"{proxies.explain(self._address)}"
        )

    def _as(self, found: Any, kind: type[T]) -> T:
        try:
            return msgspec.convert(found, kind)
        except msgspec.ValidationError as error:
            raise self._stranger(str(error)) from None

    def _done(self, found: Any) -> None:
        """A service has nothing to say where something is done."""
        self._as(found, type(None))

    def _text(self, name: str, found: Any) -> str:
        text = self._as(found, dict[str, Any]).get(name)
        if not isinstance(text, str):
            raise self._stranger(f"its answer has no {name}")
        return text

    def _json(self, said: bytes) -> Any:
        try:
            return json.loads(said)
        except ValueError:
            raise self._stranger(f"it says {said[:60].decode(errors='replace')!r}") from None

    def _refusal(self, refused: urllib.error.HTTPError) -> Exception:
        """What the service has refused, in its words; what is no answer of a service is said to be none."""
        try:
            with refused:
                said = json.loads(refused.read())
            text = f"{said['error']}; {said['remedy']}" if said.get("remedy") else str(said["error"])
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError):
            place = refused.headers.get("location", "")
            return self._stranger(f"HTTP {refused.code}" + (f", to be found at {place[:200]}" if place else ""))
        if refused.code == 404:
            return JobNotFound(text)
        return ArgumentError(text) if refused.code in (400, 422) else ServiceError(text)

    def _stranger(self, said: str) -> ServiceError:
        return ServiceError(
            f"what answers at {self._address} is no job service of this hopsml ({' '.join(said.split())}); set "
            "HOPSML_SERVER to the address that `hopsml server` has printed"
        )


def state_folder() -> Path:
    """Where this user's server keeps what it has: $HOPSML_SERVER_STATE, else ``~/.hopsml/server``."""
    return Path(os.environ.get("HOPSML_SERVER_STATE") or Path.home() / ".hopsml" / "server")


def _trust(certificate: str | Path) -> ssl.SSLContext:
    """The system's authorities, and a file's: one with a server's own certificate, too. Raises ArgumentError."""
    made = ssl.create_default_context()
    if certificate:
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            made.load_verify_locations(certificate)
        except OSError as error:  # among them ssl.SSLError
            said = getattr(error, "reason", None) or error.strerror or error
            raise ArgumentError(
                f"{CA}={certificate}: there are no certificates to read ({said}); name a PEM file with the server's "
                "certificate, or its authority's"
            ) from error
    return made


def _distrust(address: str, error: ssl.SSLError) -> ServiceError:
    """Why a server over TLS is not spoken to."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message.rstrip(".")
        return ServiceError(
            f"the certificate of {address} is not to be trusted ({said}); use the name that it is for, or set {CA} to "
            "a file with its authority's certificate"
        )
    return ServiceError(
        f"{address} does not speak TLS as it should ({error.reason}); write http:// for a server without it"
    )


def _quoted(job: str | int) -> str:
    return urllib.parse.quote(str(job), safe="")


def _wait_s(refused: urllib.error.HTTPError) -> float | None:
    """After how many seconds the server takes the call, or may; None where it does not say that."""
    said = refused.headers.get("Retry-After", "") if refused.code in (429, 503) else ""
    return max(float(said), 0.05) if said.isdecimal() else None
