"""HTTP requests to Hadoop's daemons, each with a time limit for all of it: proxies, TLS, Kerberos where they ask for it."""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hopsml.core import proxies, trust_store
from hopsml.core.spnego import Exchange, SignInError, refusal_remedy

_CHUNK_BYTES = 1 << 16
_MAX_BYTES = 64 << 20  # of one answer: a ResourceManager with ten thousand applications sends some ten megabytes
_LEAST_S = 0.1  # for the repetition of a request with a ticket
_MOST_PAGE = 16 << 10  # characters of a page that are searched for visible text
_INVISIBLE = re.compile(r"<(style|script|head)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>", re.IGNORECASE | re.DOTALL)


class NoAnswer(OSError):
    """Error for a missing or incomplete answer; the text contains the address and the reason."""


class AccessError(NoAnswer):
    """Error: this process lacks what the service requires, a valid ticket or its certificate; the text has the remedy."""


@dataclass(frozen=True)
class Answer:
    """HTTP answer as received, whatever its status."""

    status: int
    body: bytes
    content_type: str = ""
    challenge: str = ""  # WWW-Authenticate
    date: str = ""  # the server's clock, whole seconds

    @property
    def text(self) -> str:
        """Body of the answer as text; invalid UTF-8 is replaced."""
        return self.body.decode(errors="replace")

    @property
    def message(self) -> str:
        """Beginning of the body for an error message: in one line, without HTML."""
        return visible_text(self.text)


def visible_text(text: str, limit: int = 300) -> str:
    """Return the beginning of what a reader of a page would see, in one line; text that is no HTML is unchanged. Pure."""
    text = text[:_MOST_PAGE]  # finding the end of each of very many open tags would take time without bound
    if re.search(r"<(!doctype|html|head|body|title|h\d|p|pre)\b", text[:4096], re.IGNORECASE):
        text = _INVISIBLE.sub(" ", text)
    return " ".join(text[: 8 * limit].split())[:limit]


def request(url: str, timeout_s: float, *, method: str = "GET", body: bytes | None = None, accept: str = "") -> Answer:
    """Send one request and return the answer; redirects of a GET are followed.

    Raises:
        AccessError: if the server requires Kerberos and there is no valid ticket, or its certificate is not trusted.
        NoAnswer: if nothing, or not all, arrives within ``timeout_s`` seconds.
    """
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if accept:
        headers["Accept"] = accept
    asked = urllib.request.Request(url, data=body, headers=headers, method=method)
    deadline = time.monotonic() + timeout_s
    with _as_no_answer(url):
        try:
            with _open(asked, timeout_s) as answer:
                return _read(answer, deadline)
        except urllib.error.HTTPError as refused:
            with refused:
                return _read(refused, deadline)


def opened(url: str, timeout_s: float) -> http.client.HTTPResponse:
    """Send a request and return the answer as a stream.

    The caller must close it; each read has ``timeout_s`` seconds.

    Raises:
        AccessError: as ``request``, and for an answer with status 401 or 403.
        NoAnswer: if there is no answer, or an error of the server.
    """
    with _as_no_answer(url):
        try:
            return _open(urllib.request.Request(url), timeout_s)
        except urllib.error.HTTPError as refused:
            with refused:
                reason = visible_text(refused.read1(_MOST_PAGE).decode(errors="replace")) or str(refused.reason)
            remedy = refusal_remedy(reason)
            kind = AccessError if refused.code in (401, 403) else NoAnswer
            text = f"{_without_query(url)}: HTTP {refused.code} {reason}"
            raise kind(f"{text}; {remedy}" if remedy else text) from refused


def _open(asked: urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    """Send a request directly or through the environment's proxy, with a ticket if the server asks for one."""
    opener = proxies.opener(asked.full_url, _SignIn(time.monotonic() + timeout_s), _Trusting())
    answer: http.client.HTTPResponse = opener.open(asked, timeout=timeout_s)
    return answer


class _Trusting(urllib.request.HTTPSHandler):
    """Handler that reads the trusted certificates when a request, or a redirect, leads to HTTPS."""

    def https_open(self, asked: urllib.request.Request) -> http.client.HTTPResponse:
        """Send the request."""
        return self.do_open(http.client.HTTPSConnection, asked, context=trust_store.client_context())


class _SignIn(urllib.request.BaseHandler):
    """Handler for one request with its redirects: each server gets a token or a cookie of its own, and no other one's."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._exchange: Exchange | None = None

    def http_request(self, asked: urllib.request.Request) -> urllib.request.Request:
        """Add the headers; ``full_url`` names the server itself where the request goes through a proxy."""
        if not asked.has_header("Authorization"):  # else it is the repetition
            self._exchange = Exchange(asked.full_url, self._left_s())
            for name, value in self._exchange.headers().items():
                asked.add_unredirected_header(name, value)
        return asked

    def http_response(self, asked: urllib.request.Request, answer: Any) -> Any:
        """Return the answer, or that to the same request with a ticket."""
        assert self._exchange is not None
        headers = self._exchange.answered(
            answer.status, answer.headers.get_all("WWW-Authenticate", []), answer.headers.get_all("Set-Cookie", [])
        )
        if headers is None:
            return answer
        answer.close()
        again = urllib.request.Request(asked.full_url, asked.data, asked.headers, method=asked.get_method())
        for name, value in headers.items():
            again.add_unredirected_header(name, value)
        return self.parent.open(again, timeout=self._left_s())

    def _left_s(self) -> float:
        return max(_LEAST_S, self._deadline - time.monotonic())

    https_request, https_response = http_request, http_response


@contextlib.contextmanager
def _as_no_answer(url: str) -> Iterator[None]:
    """Raise NoAnswer in place of errors of the network, of HTTP and of Kerberos."""
    try:
        yield
    except NoAnswer:
        raise
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, SignInError):
            raise (NoAnswer if reason.is_passing else AccessError)(str(reason)) from error
        if isinstance(reason, trust_store.TrustError):
            raise AccessError(str(reason)) from error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise AccessError(f"{_without_query(url)}: {reason.verify_message}; {trust_store.REMEDY}") from error
        raise NoAnswer(
            f"{_without_query(url)}: {str(reason) or type(reason).__name__}{proxies.proxy_hint(url)}"
        ) from error


def _read(answer: Any, deadline: float) -> Answer:
    """Read the whole answer; a server that sends single bytes does not delay the caller beyond the deadline."""
    pieces: list[bytes] = []
    length = 0
    while piece := answer.read1(_CHUNK_BYTES):
        pieces.append(piece)
        length += len(piece)
        if time.monotonic() > deadline:
            raise TimeoutError("the answer did not end in time")
        if length > _MAX_BYTES:
            raise OSError(f"the answer is longer than {_MAX_BYTES >> 20} MiB")
    headers = answer.headers
    missing = answer.length or 0
    if missing:
        raise OSError(f"the connection broke {missing} bytes before the end of the answer")
    challenge = ", ".join(headers.get_all("WWW-Authenticate", []))
    return Answer(answer.status, b"".join(pieces), headers.get("Content-Type", ""), challenge, headers.get("Date", ""))


def _without_query(url: str) -> str:
    return url.partition("?")[0]
