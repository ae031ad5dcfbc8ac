"""First steps for each request: its path, its token, its body, and refusals with an HTTP status.

The paths are:

    /v1/models/N[/versions/V|/labels/L][/metadata|:predict]      TensorFlow Serving
    /v2, /v2/health/live, /v2/health/ready                       Open Inference Protocol
    /v2/models/N[/versions/V][/ready|/infer]
    /metrics                                                     Prometheus
"""

from __future__ import annotations

import asyncio
import hmac
import re
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hopsml.cluster.shared.http_connections import KEEP_ALIVE_S
from hopsml.core.newer_python import asyncio_timeout_at

if TYPE_CHECKING:
    from hopsml.serving.definitions import ServingLimits


class RequestRefused(Exception):
    """Error for a request that is answered by an HTTP error.

    Attributes:
        status: HTTP status, 400 to 599.
        text: Text of the answer.
        headers: Additional headers of the answer.
        version: Version that was chosen; None if none was.
    """

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, dict(headers or {})
        self.version: int | None = None


def bad_request(text: str) -> RequestRefused:
    """Return the error for a body that cannot be computed (400)."""
    return RequestRefused(400, text)


def not_found(text: str) -> RequestRefused:
    """Return the error for an unknown path, model, version or label (404)."""
    return RequestRefused(404, text)


Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_MOST_DISCARDED = 1 << 30  # bytes of an oversized body


def check_token(name: str, token: str, headers: Mapping[bytes, bytes]) -> None:
    """Check the token of a request; an empty ``token`` means that none is required.

    Raises:
        RequestRefused: (401) The request has no token or a wrong one.
    """
    if token and not hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {token}".encode()):
        raise RequestRefused(
            401,
            "the request has no valid token; send the header 'Authorization: Bearer TOKEN'; `hopsml serve show "
            f"{name}` shows where the token is stored",
            {"www-authenticate": "Bearer"},
        )


def http_server(application: Any, **further: Any) -> Any:
    """Return a uvicorn server of an ASGI application; ``further`` are further settings of uvicorn."""
    import uvicorn

    config = uvicorn.Config(
        application,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(KEEP_ALIVE_S),
        **further,
    )
    return uvicorn.Server(config)


async def start_server(server: Any) -> asyncio.Task[None]:
    """Start a uvicorn server without sockets, and return its task once it is ready for connections."""
    serving = asyncio.create_task(server.serve(sockets=[]))
    while not server.started and not serving.done():
        await asyncio.sleep(0)
    return serving


async def receive_body(limits: ServingLimits, headers: Mapping[bytes, bytes], receive: Receive, until: float) -> bytes:
    """Return the body of a request, before ``until`` on the clock of the event loop.

    The rest of an oversized body is read and discarded, because most clients read the answer only after sending
    everything. Clients that ask first (Expect: 100-continue) are refused at once.

    Raises:
        RequestRefused: (413) The body is too long; (408) it did not arrive in time; (400) the connection ended.
    """
    try:
        async with asyncio_timeout_at(until):
            return await _whole_body(limits.body_bytes, headers, receive)
    except TimeoutError:
        raise RequestRefused(
            408, f"the body did not arrive within {limits.deadline_s:g} s; send fewer rows in a request"
        ) from None


async def _whole_body(most_bytes: int, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
    """Return the body of a request of at most this size."""
    said = headers.get(b"content-length", b"")
    parts: list[bytes] = []
    length = int(said) if said.isdigit() else 0
    if length > most_bytes:
        if headers.get(b"expect", b"").lower() != b"100-continue" and length <= _MOST_DISCARDED:
            await _discard(receive)
        raise _too_long(most_bytes)
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise bad_request("the connection ended before the body did")
        part = message.get("body", b"")
        length += len(part)
        if length > most_bytes:
            parts.clear()
            await _discard(receive)
            raise _too_long(most_bytes)
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_long(most_bytes: int) -> RequestRefused:
    """Return the error for an oversized body."""
    return RequestRefused(
        413,
        f"the request is larger than {most_bytes} bytes; send fewer rows in a request, or start the serving "
        "with a larger max_body_mb=",
    )


async def _discard(receive: Receive) -> None:
    """Discard the rest of a body, up to a limit."""
    left = _MOST_DISCARDED
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        if not message.get("more_body"):
            return


What = Literal["live", "ready", "server", "metrics", "status", "metadata", "predict", "model", "model_ready", "infer"]
_POSTED = ("predict", "infer")
_FIXED: dict[str, What] = {
    "/v2": "server",
    "/v2/health/live": "live",
    "/v2/health/ready": "ready",
    "/metrics": "metrics",
}
_V1 = re.compile(r"/v1/models/([^/:]+)(?:/versions/([^/:]+)|/labels/([^/:]+))?(/metadata|:\w+)?")
_V2 = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/ready|/infer)?")
_DOES: dict[str, What] = {"": "status", "/metadata": "metadata", ":predict": "predict"}
_DOES_V2: dict[str, What] = {"": "model", "/ready": "model_ready", "/infer": "infer"}


@dataclass(frozen=True)
class RequestTarget:
    """Requested operation, with its model and version or label."""

    what: What
    model: str = ""
    version: int | None = None
    label: str | None = None


def parse_target(method: str, path: str) -> RequestTarget:
    """Return the operation that a request's method and path denote.

    Raises:
        RequestRefused: (404) The path is unknown; (405) the method is wrong.
    """
    path = path.rstrip("/") or "/"
    target = _target(path)
    wanted = ("POST",) if target.what in _POSTED else ("GET", "HEAD")
    if method not in wanted:
        raise RequestRefused(405, f"{path} needs the method {wanted[0]}, not {method}", {"allow": ", ".join(wanted)})
    return target


def _target(path: str) -> RequestTarget:
    """Return the operation of a path."""
    if path in _FIXED:
        return RequestTarget(_FIXED[path])
    if found := _V1.fullmatch(path):
        model, version, label, end = found.groups()
        if (end or "") not in _DOES:
            raise not_found(f"{end} does not exist; requests to models end in :predict")
        return RequestTarget(_DOES[end or ""], _name(model), _number(version), None if label is None else _name(label))
    if found := _V2.fullmatch(path):
        model, version, end = found.groups()
        return RequestTarget(_DOES_V2[end or ""], _name(model), _number(version))
    raise not_found(
        f"{path[:200]} does not exist; the address of a model is /v1/models/NAME:predict or /v2/models/NAME/infer"
    )


def _name(quoted: str) -> str:
    """Decode a quoted name."""
    return urllib.parse.unquote(quoted)


def _number(text: str | None) -> int | None:
    """Return a version number; None if the path has none."""
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise not_found(f"version {text[:80]!r}: a version must be a whole number")
    return int(text)
