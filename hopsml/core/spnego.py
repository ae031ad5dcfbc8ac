"""Authentication to Hadoop's web services by Kerberos (SPNEGO), without sending the requests themselves.

``Exchange`` gives the headers of a request, and evaluates those of its answer. A service that has authenticated this process
sets a cookie, which is kept in memory for this service alone (scheme, host and port) until the service refuses it, or the
ticket cache has no ticket any more or one of another principal.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from typing import TypeVar

from hopsml.core import krb5
from hopsml.core.gssapi import GssError, Initiator
from hopsml.core.krb5 import KDC_SILENT

T = TypeVar("T")
_COOKIE = "hadoop.auth"
_MOST_COOKIES = 10_000  # services: a cluster may have some thousand NodeManagers
_CHALLENGE = re.compile(r"(?:^|,)\s*Negotiate(?:\s+([A-Za-z0-9+/]+=*))?\s*(?:,|$)", re.IGNORECASE)
_KINIT = "run `kinit`, or `kinit -kt KEYTAB PRINCIPAL`, with the same KRB5CCNAME"
_NO_CREDENTIALS, _CREDENTIALS_EXPIRED = 7 << 16, 11 << 16  # major status
_CLOCKS = "synchronise the clocks of this machine, of the service and of the KDC (chrony, systemd-timesyncd)"
_REMEDIES = {  # by code of Kerberos
    -1765328352: _KINIT,  # the ticket has expired
    -1765328377: "use the service's full host name, for which the KDC has the principal HTTP/HOST",
    -1765328347: _CLOCKS,
}
_REFUSALS = (  # patterns in the answer of a service that could not verify a ticket
    (r"Clock skew too great", _CLOCKS),
    (
        r"GSSException|GSS initiate failed|Checksum failed",
        "check that the service has the present keytab of its principal HTTP/HOST, and that its log has no other reason",
    ),
)
KDC_REMEDY = "check that the KDC of krb5.conf (KRB5_CONFIG) is running and reachable"

Owner = tuple[str, str]  # ticket cache, and principal of its ticket
_cookies: dict[str, tuple[Owner, str]] = {}  # by origin: for whom it was set, and its value
_lock = threading.Lock()


class SignInError(OSError):
    """Error: this process and a service could not authenticate to each other; the text has the remedy.

    Attributes:
        is_passing: True if a later attempt may succeed without a new ticket or setting.
    """

    def __init__(self, text: str, *, is_passing: bool = False) -> None:
        super().__init__(text)
        self.is_passing = is_passing


class Exchange:
    """One request to a web service: its headers, and what follows from the answer. It belongs to one thread."""

    def __init__(self, url: str, timeout_s: float, *, is_repeatable: bool = True) -> None:
        """Prepare the exchange; nothing is sent.

        Args:
            url: URL of the request.
            timeout_s: longest wait for a KDC.
            is_repeatable: False if the body can be sent only once.
        """
        parts = urllib.parse.urlsplit(url)
        self._host, self._timeout_s, self._is_repeatable = parts.hostname or "", timeout_s, is_repeatable
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
        self._address = f"{parts.scheme}://{self._host}:{port}"
        self._owner: Owner | None = None  # of the ticket or cookie that was sent
        self._initiator: Initiator | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers of the request as it is sent first; none for a service that has not asked for any.

        Raises:
            SignInError: as ``answered``.
        """
        with _lock:
            owner, cookie = _cookies.get(self._address, (None, ""))
        if owner is None:
            return {}
        if not self._is_repeatable:  # the cookie might be refused after the only copy of the body was sent
            return self._token()
        if owner != _present_owner():
            with _lock:
                _cookies.pop(self._address, None)
            return {}
        self._owner = owner
        return {"Cookie": f"{_COOKIE}={cookie}"}

    def answered(self, status: int, challenges: Sequence[str], cookies: Sequence[str]) -> dict[str, str] | None:
        """Return the headers with which the request must be sent again; None if the answer is final.

        Args:
            status: HTTP status.
            challenges: values of WWW-Authenticate.
            cookies: values of Set-Cookie.

        Raises:
            SignInError: there is no valid ticket or no KDC, the service refuses the ticket, or it has not proved its
                identity.
        """
        received = negotiate_token(challenges)
        try:
            if status == 401 and received is not None:
                return self._refused()
            is_proved = self._initiator is None or self._verify(status, received)
        except BaseException:
            self.close()
            raise
        self.close()
        if is_proved:
            self._keep(cookies)
        return None

    def close(self) -> None:
        """Release what Kerberos holds for an answer that does not come."""
        if self._initiator is not None:
            self._initiator.close()
            self._initiator = None

    def _refused(self) -> dict[str, str]:
        """Return a fresh token after a refused cookie or none; raise SignInError after a refused token."""
        with _lock:
            _cookies.pop(self._address, None)
        if self._initiator is not None:
            raise SignInError(
                f"{self._address} refuses the Kerberos ticket; check that the host of the address is that of the "
                "service's principal HTTP/HOST, and that the service has its present keytab"
            )
        return self._token()

    def _token(self) -> dict[str, str]:
        self.close()
        self._initiator, token = within(self._timeout_s, lambda: _begin(self._host), self._address)
        self._owner = _present_owner()  # a client keytab has given its ticket now
        return {"Authorization": f"Negotiate {base64.b64encode(token).decode()}"}

    def _verify(self, status: int, received: bytes | None) -> bool:
        """Return True if the service has proved its identity, and raise SignInError if not; a refusal needs no proof."""
        assert self._initiator is not None
        if not received and status >= 400:
            return False
        reason = "it sent no token"
        try:
            if received:
                self._initiator.step(received)
                reason = "its token is incomplete"
        except GssError as error:
            reason = str(error)
        if not self._initiator.is_complete:
            raise SignInError(
                f"{self._address} did not prove its identity by Kerberos ({reason}); its answer was discarded, as another "
                "server may have sent it: check the address and the service's keytab"
            )
        return True

    def _keep(self, cookies: Sequence[str]) -> None:
        values = [
            each.partition(";")[0].partition("=")[2].strip() for each in cookies if each.startswith(f"{_COOKIE}=")
        ]
        if not values:
            return
        owner = self._owner or _present_owner()
        with _lock:
            _cookies.pop(self._address, None)
            if values[-1].strip('"'):
                while len(_cookies) >= _MOST_COOKIES:
                    _cookies.pop(next(iter(_cookies)))
                _cookies[self._address] = owner, values[-1]


def _present_owner() -> Owner:
    """Return the ticket cache of this process, and the principal of its ticket; "" without a ticket."""
    cache = os.environ.get("KRB5CCNAME", "")
    try:
        return cache, krb5.ticket().principal
    except krb5.KerberosError:
        return cache, ""


def negotiate_token(challenges: Sequence[str]) -> bytes | None:
    """Return the token of a header WWW-Authenticate with the scheme Negotiate. Pure.

    Args:
        challenges: values of the header.

    Returns:
        The token, b"" for the scheme without a token, None without the scheme.
    """
    for value in challenges:
        if found := _CHALLENGE.search(value):
            try:
                return base64.b64decode(found[1] or "", validate=True)
            except binascii.Error:
                return b""
    return None


def refusal_remedy(text: str) -> str:
    """Return the remedy for an answer by which a service refuses a ticket; "" if it is of another kind. Pure."""
    return next((remedy for pattern, remedy in _REFUSALS if re.search(pattern, text)), "")


def sign_in_error(address: str, error: GssError) -> SignInError:
    """Return the error for an authentication to ``address`` that failed here, with its remedy. Pure."""
    if error.minor in KDC_SILENT:
        return SignInError(f"{address} requires Kerberos: {error}; {KDC_REMEDY}", is_passing=True)
    remedy = _REMEDIES.get(error.minor, "")
    if not error.major:
        remedy = "install Kerberos's library (Debian: libgssapi-krb5-2, Red Hat: krb5-libs)"
    elif error.major in (_NO_CREDENTIALS, _CREDENTIALS_EXPIRED):
        remedy = _KINIT
    return SignInError(
        f"{address} requires Kerberos: {error}; {remedy or '`KRB5_TRACE=/dev/stderr` shows what Kerberos tries'}"
    )


def within(timeout_s: float, call: Callable[[], T], address: str) -> T:
    """Return the result of a call that may wait for a KDC, or raise SignInError after ``timeout_s`` seconds."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 raised in the calling thread
            errors.append(error)

    thread = threading.Thread(target=work, name="hopsml-kerberos", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if results:
        return results[0]
    if not errors:
        raise SignInError(
            f"{address} requires Kerberos: no KDC answered within {timeout_s:g} s; {KDC_REMEDY}", is_passing=True
        )
    if isinstance(errors[0], GssError):
        raise sign_in_error(address, errors[0]) from errors[0]
    raise errors[0]


def _begin(host: str) -> tuple[Initiator, bytes]:
    initiator = Initiator(host)
    try:
        return initiator, initiator.step()
    except BaseException:
        initiator.close()
        raise
