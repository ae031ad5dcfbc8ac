"""HTTP connection to the job service: requests with a token, repetition, TLS, and errors with the service's message."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from hopsml.core import file_locks, listeners, log_stream, proxies
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, JobNotFound, ServiceError
from hopsml.storage import backoff

CA = Settings.server_ca.name
TIMEOUT_S = 60.0  # longest silence of a server in a call
TRIES = 4  # attempts of a call that is safe to repeat, while the server is unavailable or restarts
_PAUSE_S = 0.5
_ADDRESS = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:[0-9]{1,5})?(/[^\s?#]*)?")
_PATIENCE_S = 60.0  # longest time to repeat a call that the server has rejected with Retry-After
T = TypeVar("T")


class _StaysHere(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirect, because the token is intended for one server only."""

    def redirect_request(self, *details: Any) -> None:
        """Reject the redirect, by returning None."""


Credentials = tuple[str, str, str]  # address, token and certificate file of a server


class _Server(NamedTuple):
    """Server of a request: a restart replaces all parts at once, also for other threads.

    Attributes:
        credentials: Its address, token and certificate file.
        address: Its address without a slash at the end.
        opener: Opener for requests to it.
    """

    credentials: Credentials
    address: str
    opener: urllib.request.OpenerDirector

    def open(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Send a request with the token, and return the response. Raises OSError."""
        sent = {"Authorization": f"Bearer {self.credentials[1]}", **headers}
        request = urllib.request.Request(f"{self.address}/api/v1/{path}", data, sent, method=method)
        found: http.client.HTTPResponse = self.opener.open(request, timeout=TIMEOUT_S)
        return found


class ServiceConnection:
    """Connection to one job service, without its calls; nothing is sent before the first request."""

    def __init__(
        self, address: str, token: str, certificate: str | Path = "", recorded: Callable[[], Credentials] | None = None
    ) -> None:
        """Create a client; nothing is sent yet.

        Args:
            address: URL of the server.
            token: access token.
            certificate: PEM file with the certificate of the server or its authority, which is trusted in addition to
                the system's.
            recorded: reads these three again from the record of this user's own server, after a restart of the server;
                None if the caller has named them.

        Raises:
            ArgumentError: the address, the token or the certificate file is invalid.
        """
        self._recorded = recorded
        self._use(address, token, certificate)

    def _use(self, address: str, token: str, certificate: str | Path) -> None:
        """Send further requests to this server. Raises ArgumentError for an invalid value."""
        if not _ADDRESS.fullmatch(address):
            raise ArgumentError(
                f"{address.partition('?')[0][:200]!r} is not the address of a job service; use the address that "
                "`hopsml server` has printed, without its token, such as http://127.0.0.1:8080/"
            )
        if not token.isascii() or not token.isprintable():
            raise ArgumentError("the token contains characters that no token has; copy it again into HOPSML_TOKEN")
        handlers: list[urllib.request.BaseHandler] = [_StaysHere()]
        if address.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=_trust(certificate)))
        elif self._recorded is not None:
            handlers.append(listeners.OwnServersHandler("the job service"))
        self._address, self._token = address.rstrip("/"), token
        opener = proxies.opener(self._address, *handlers)
        self._server = _Server((address, token, str(certificate)), self._address, opener)

    def _renew(self, used: _Server) -> bool:
        """Read the record of this user's own server again; return True if address or token differ from those used.

        Another thread may have read it since.
        """
        # no record, since the server has ended or is starting
        with contextlib.suppress(ArgumentError, ServiceError):
            if self._recorded is not None and (found := self._recorded()) != self._server.credentials:
                self._use(*found)
        return self._server != used

    def _open(self, path: str, query: Mapping[str, Any], last: str) -> Any:
        """Open a stream of events. Raises OSError if the server is unavailable, else errors as ``_call`` does."""
        server = self._server
        try:
            headers = {"Last-Event-ID": last} if last else {}
            return server.open("GET", f"{path}?{urllib.parse.urlencode(query)}", None, headers)
        except urllib.error.HTTPError as refused:
            if refused.code == 401 and self._renew(server):
                refused.close()
                raise ConnectionError("it was restarted and has a new token") from None
            if refused.code not in (404, 429, 502, 503, 504):
                raise self._refusal(refused) from None
            refused.close()
            if refused.code == 404:
                raise log_stream.StreamUnavailable from None
            # Too many calls, or the server restarts behind a proxy.
            raise ConnectionError(f"HTTP {refused.code}") from None
        except OSError:
            self._renew(server)
            raise

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
        tries: int = TRIES,
    ) -> Any:
        """Send a request, repeatedly if it is safe, and return the JSON of the response."""
        if query:
            path += "?" + urllib.parse.urlencode(
                {name: value for name, value in query.items() if value != ""}, doseq=True
            )
        kind = "application/json" if asked is not None else "application/zip"
        data = json.dumps(asked).encode() if asked is not None else content or None
        sent = {"Content-Type": kind, **(headers or {})}
        problem, patient_until = "", time.monotonic() + _PATIENCE_S
        refusal, asked_s = None, 0.0
        attempts = iter(range(tries if repeat else 1))
        while (attempt := next(attempts, None)) is not None:
            if attempt:
                time.sleep(max(asked_s, backoff.pause_s(attempt, _PAUSE_S)))
            refusal, asked_s, server = None, 0.0, self._server
            try:
                with server.open(method, path, data, sent) as answer:
                    said = answer.read()
                return self._json(said or b"null")
            except urllib.error.HTTPError as refused:
                if refused.code == 401 and self._renew(server):
                    refused.close()
                    attempts = iter(range(tries if repeat else 1))  # the request was not processed
                    continue
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
                if isinstance(reason, listeners.ForeignListener):
                    refusal = ServiceError(problem)
                if self._renew(server) and isinstance(reason, ConnectionRefusedError):  # nothing was sent
                    attempts = iter(range(tries if repeat else 1))
            except http.client.HTTPException as error:
                raise self._stranger(f"its answer is not HTTP: {type(error).__name__}") from None
        if refusal is not None:
            raise refusal
        if self._recorded is not None and (starting := starting_message(state_folder())):
            raise ServiceError(starting)
        raise ServiceError(
            f"the job service at {self._address} does not answer ({problem}); check that `hopsml server` is "
            f"running{proxies.proxy_hint(self._address)}"
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


STARTING = "starting"  # file in the state folder that a server locks which does not accept requests yet


def starting_message(state: Path) -> str:
    """Return the error message if this user's server is just starting; "" if it is not."""
    file = state / STARTING
    try:
        if not file_locks.is_locked(file):
            return ""
        age_s = time.time() - file.stat().st_mtime
    except OSError:
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


def _wait_s(refused: urllib.error.HTTPError) -> float | None:
    """Return the seconds of the header Retry-After; None without one."""
    said = refused.headers.get("Retry-After", "") if refused.code in (429, 503) else ""
    return max(float(said), 0.05) if said.isdecimal() else None
