"""HTTP requests to Hadoop's daemons, with a time limit for the whole of each request."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from hopsml.core import proxies

_CHUNK_BYTES = 1 << 16
_MAX_BYTES = 64 << 20  # of one answer: a ResourceManager with ten thousand applications sends some ten megabytes


class NoAnswer(OSError):
    """Error for a missing or incomplete answer; the text contains the address and the reason."""


@dataclass(frozen=True)
class Answer:
    """HTTP answer as received, whatever its status."""

    status: int
    body: bytes
    content_type: str = ""
    challenge: str = ""  # WWW-Authenticate

    @property
    def text(self) -> str:
        """Body of the answer as text; invalid UTF-8 is replaced."""
        return self.body.decode(errors="replace")


def request(url: str, timeout_s: float, *, method: str = "GET", body: bytes | None = None, accept: str = "") -> Answer:
    """Send one request and return the answer; redirects of a GET are followed.

    Raises:
        NoAnswer: if nothing, or not all, arrives within ``timeout_s`` seconds.
    """
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if accept:
        headers["Accept"] = accept
    asked = urllib.request.Request(url, data=body, headers=headers, method=method)
    deadline = time.monotonic() + timeout_s
    try:
        try:
            with proxies.opener(url).open(asked, timeout=timeout_s) as answer:
                return _read(answer, deadline)
        except urllib.error.HTTPError as refused:
            with refused:
                return _read(refused, deadline)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise NoAnswer(
            f"{_without_query(url)}: {str(reason) or type(reason).__name__}{proxies.explain(url)}"
        ) from error


def opened(url: str, timeout_s: float) -> http.client.HTTPResponse:
    """Send a request and return the answer as a stream.

    The caller must close it; each read has ``timeout_s`` seconds.

    Raises:
        NoAnswer: if there is no answer, or one that refuses.
    """
    try:
        answer: http.client.HTTPResponse = proxies.opener(url).open(url, timeout=timeout_s)
    except urllib.error.HTTPError as refused:
        refused.close()
        raise NoAnswer(f"{_without_query(url)}: HTTP {refused.code} {refused.reason}") from refused
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise NoAnswer(
            f"{_without_query(url)}: {str(reason) or type(reason).__name__}{proxies.explain(url)}"
        ) from error
    return answer


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
        raise OSError(f"the answer broke off {missing} bytes before its end")
    return Answer(answer.status, b"".join(pieces), headers.get("Content-Type", ""), headers.get("WWW-Authenticate", ""))


def _without_query(url: str) -> str:
    return url.partition("?")[0]
