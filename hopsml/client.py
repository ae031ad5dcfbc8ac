"""The job service from Python; ``hopsml job`` is made of it.

client = hopsml.client.Client.of_environment()      # $HOPSML_SERVER and $HOPSML_TOKEN, or the server of this machine
job = client.submit("job.yaml")                     # uploads the code beside it
client.wait(job.id).state                           # "FINISHED"
client.why(job.id), client.cancel(job.id)
"""

from __future__ import annotations

import json
import os
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

from hopsml.errors import ArgumentError, JobNotFound, ServiceError
from hopsml.states import Lifecycle

CA = "HOPSML_SERVER_CA"
TIMEOUT_S = 60.0
_TRIES = 4  # of a call that is safe to repeat, while the server is away or starts anew
_PAUSE_S = 0.5
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


class ServiceJobDetail(ServiceJob, frozen=True, kw_only=True):
    """A job with all that is known of it; ``spec``: YAML."""

    spec: str
    profile: str
    applications: list[JobApplication]


class JobChange(msgspec.Struct, frozen=True):
    """A change of state; ``task`` is empty for the job itself."""

    id: int
    task: str
    state: Lifecycle
    cause: str
    try_number: int
    at_s: float


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


class Client:
    """One server. Raises ServiceError for what it refuses, with its words, and where it does not answer."""

    def __init__(self, address: str, token: str, certificate: str | Path = "") -> None:
        """``certificate``: a PEM file with the server's own, or its authority's, to be trusted beside the system's."""
        self._address, self._token = address.rstrip("/"), token
        self._trust = _trust(certificate) if self._address.startswith("https:") else None

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
        except (OSError, ValueError, KeyError):
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
        return msgspec.convert(self._call("POST", "jobs", asked, headers=headers), ServiceJob)

    def put_schedule(self, job_file: str | Path) -> ServiceSchedule:
        """Start the job of a file by itself, as its ``schedule`` says; in the place of one's own schedule of this name."""
        return msgspec.convert(self._call("POST", "schedules", self._uploaded(job_file), repeat=False), ServiceSchedule)

    def _uploaded(self, job_file: str | Path) -> dict[str, str]:
        from hopsml.service import spec, workspaces
        from hopsml.service.render import workspace

        job, path = spec.load(job_file), Path(job_file)
        code = workspaces.pack(workspace.folder(job, path.absolute()))
        digest = self._call("POST", "workspaces", content=code)["workspace"]
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
            page = msgspec.convert(self._call("GET", "jobs", query={**query, **more}), _Page)
            found += page.jobs
            if (before := page.cursor) is None:
                break
        return found

    def job(self, job: str | int) -> ServiceJobDetail:
        """One job, by its id or its number. Raises JobNotFound."""
        return msgspec.convert(self._call("GET", f"jobs/{_quoted(job)}"), ServiceJobDetail)

    def why(self, job: str | int) -> str:
        """Why it does not run; empty where it does, or is over."""
        return str(self._call("GET", f"jobs/{_quoted(job)}/why")["why"])

    def changes(self, job: str | int, after: int = 0) -> list[JobChange]:
        """What has happened to it, the oldest first; ``after``: only with a higher id."""
        return msgspec.convert(
            self._call("GET", f"jobs/{_quoted(job)}/changes", query={"after": after}), list[JobChange]
        )

    def log(self, job: str | int, task: str = "", offset: int = 0) -> tuple[str, int]:
        """Some of what the driver of a task has printed from byte ``offset`` on, and where the next part begins."""
        found = self._call("GET", f"jobs/{_quoted(job)}/log", query={"task": task, "offset": offset})
        part = msgspec.convert(found, _LogPart)
        return part.text, part.end

    def follow(self, job: str | int, task: str = "", poll_s: float = 1.0) -> Iterator[str]:
        """What the driver prints, as it comes, to the end of the job."""
        offset = 0
        while True:
            over = self.job(job).state.is_final  # before the last look
            text, offset = self.log(job, task, offset)
            if text:
                yield text
            elif over:
                return
            else:
                time.sleep(poll_s)

    def wait(self, job: str | int, timeout_s: float | None = None, poll_s: float = 1.0) -> ServiceJobDetail:
        """Wait for its end. Raises TimeoutError after ``timeout_s`` seconds; the job goes on."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (found := self.job(job)).state.is_final:
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

    def cluster(self) -> dict[str, Any]:
        """``capacity``, ``free`` (gpus, cores, memory_mib), ``leads``, ``leader``, ``problem``."""
        found: dict[str, Any] = self._call("GET", "cluster")
        return found

    def create_token(self, user: str, role: str = "viewer", *, label: str = "", lasts_s: float | None = None) -> str:
        """A token for somebody, for administrators; ``role``: viewer, user, operator or admin. Nobody can read it again."""
        asked = {"user": user, "role": role, "label": label, "lasts_s": lasts_s}
        return str(self._call("POST", "tokens", asked, repeat=False)["token"])

    def tokens(self) -> list[TokenRecord]:
        """Those that were created, the oldest first; for administrators."""
        return msgspec.convert(self._call("GET", "tokens"), list[TokenRecord])

    def revoke_token(self, token_id: str) -> None:
        """End one, by its id; for administrators."""
        self._call("DELETE", f"tokens/{_quoted(token_id)}", repeat=False)

    def audit(self, *, user: str = "", action: str = "", limit: int = 100) -> list[AuditRecord]:
        """Who has changed what, and who was refused, the newest first, at most ``limit``; for administrators."""
        found: list[AuditRecord] = []
        before: int | None = None
        while len(found) < limit:
            query = {"user": user, "action": action, "limit": min(1000, limit - len(found))}
            query |= {"before": before} if before is not None else {}
            page = msgspec.convert(self._call("GET", "audit", query=query), _AuditPage)
            found += page.entries
            if (before := page.cursor) is None:
                break
        return found

    def schedules(self) -> list[ServiceSchedule]:
        """Those that there are, the oldest first."""
        return msgspec.convert(self._call("GET", "schedules"), list[ServiceSchedule])

    def schedule(self, schedule: str | int) -> ServiceSchedule:
        """One, by its id or its number. Raises JobNotFound."""
        return msgspec.convert(self._call("GET", f"schedules/{_quoted(schedule)}"), ServiceSchedule)

    def change_schedule(self, schedule: str | int, what: str) -> None:
        """``pause`` or ``resume``; what was due meanwhile is not made up for."""
        self._call("POST", f"schedules/{_quoted(schedule)}/{_quoted(what)}", {})

    def trigger_schedule(self, schedule: str | int) -> ServiceJob:
        """Start its job now, besides its times."""
        found = self._call("POST", f"schedules/{_quoted(schedule)}/trigger", {}, repeat=False)
        return msgspec.convert(found, ServiceJob)

    def remove_schedule(self, schedule: str | int) -> None:
        """Start nothing more; its jobs stay."""
        self._call("DELETE", f"schedules/{_quoted(schedule)}", repeat=False)

    def put_secret(self, name: str, value: str) -> None:
        """Keep a value for one's own jobs, which name it under ``secrets``; nobody can read it again."""
        self._call("PUT", f"secrets/{_quoted(name)}", {"value": value})

    def secrets(self) -> list[SecretRecord]:
        """One's own, by name, without their values."""
        return msgspec.convert(self._call("GET", "secrets"), list[SecretRecord])

    def remove_secret(self, name: str) -> None:
        """Forget one of one's own."""
        self._call("DELETE", f"secrets/{_quoted(name)}", repeat=False)

    def _changed(self, job: str | int, what: str, asked: Mapping[str, Any] | None = None) -> ServiceJob:
        repeat = what != "clone"
        return msgspec.convert(
            self._call("POST", f"jobs/{_quoted(job)}/{what}", asked or {}, repeat=repeat), ServiceJob
        )

    # ------------------------------------------------------------------------------------ HTTP

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
        attempts = iter(range(_TRIES if repeat else 1))
        while (attempt := next(attempts, None)) is not None:
            if attempt:
                time.sleep(_PAUSE_S * 2 ** (attempt - 1))
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._trust) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as refused:
                with refused:
                    wait_s = _wait_s(refused)
                    if wait_s is None or time.monotonic() + wait_s > patient_until:
                        raise _refusal(refused.code, refused.read()) from None
                time.sleep(wait_s)
                attempts = iter(range(_TRIES if repeat else 1))  # nothing was done: it may be repeated, whatever it is
            except (OSError, ValueError) as error:
                reason = getattr(error, "reason", None)
                if isinstance(reason, ssl.SSLError):
                    raise _distrust(self._address, reason) from None
                problem = str(reason or error)
        raise ServiceError(
            f"the job service at {self._address} does not answer ({problem}); see whether `hopsml server` runs"
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
    """After how many seconds the server takes the call; None where it does not say that."""
    said = refused.headers.get("Retry-After", "") if refused.code == 429 else ""
    return max(float(said), 0.05) if said.isdecimal() else None


def _refusal(status: int, body: bytes) -> Exception:
    try:
        said = json.loads(body)
        text = f"{said['error']}; {said['remedy']}" if said.get("remedy") else str(said["error"])
    except (ValueError, LookupError, TypeError, AttributeError):
        text = f"HTTP {status}: {body[:300].decode(errors='replace')}"
    if status == 404:
        return JobNotFound(text)
    return ArgumentError(text) if status in (400, 422) else ServiceError(text)
