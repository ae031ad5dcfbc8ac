"""Middleware around the routes: counts requests by route template, and limits their rates.

Limits are by user for valid tokens, and by client address otherwise.
A user with a valid token never waits because of unauthenticated clients at the same address, such as that of a proxy.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hopsml.core.metrics import Meter
from hopsml.core.newer_python import asyncio_timeout
from hopsml.service.rest.audited import READING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")
_STREAMS = "hopsml_event_streams"


class MetricsMiddleware:
    """Middleware around all others, so that requests refused by them are counted, too."""

    def __init__(self, app: ASGIApp, meter: Meter, templates: Mapping[Any, str]) -> None:
        """Initialize the middleware.

        Args:
            app: The application inside.
            meter: Metrics of the event loop.
            templates: Route templates, by endpoint.
        """
        self._app, self._meter, self._templates = app, meter, templates
        meter.add(_STREAMS, 0.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, streams = time.perf_counter(), 500, False

        async def sending(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = message["status"]
                streams = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
                self._meter.add(_STREAMS, float(streams))
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            self._answered(scope, status, None if streams else time.perf_counter() - began)

    def _answered(self, scope: Scope, status: int, seconds: float | None) -> None:
        """Count a request; ``seconds`` is None for an event stream that has ended."""
        route = self._templates.get(scope.get("endpoint"), "")  # empty for a request that was refused before routing
        method = scope["method"] if scope["method"] in _METHODS else "other"
        labels = f'route="{route}",method="{method}"'
        self._meter.add(f'hopsml_http_requests_total{{{labels},status="{status}"}}')
        if seconds is None:
            self._meter.add(_STREAMS, -1.0)
        else:
            self._meter.observe("hopsml_http_request_seconds", seconds, BOUNDS_S, labels)


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit of requests per second in the long run, and of requests at once.

    0 per second is no limit.
    """

    per_s: float
    at_once: float


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """State of a token bucket at a time.

    Attributes:
        left: Requests that the bucket allows.
        at_s: The time of this state, in seconds.
        refused: Number of consecutive requests that were refused.
    """

    left: float
    at_s: float
    refused: int = 0


def take_token(bucket: TokenBucket | None, rate: Rate, now: float) -> tuple[TokenBucket, float]:
    """Take one token for a request; return the new bucket, and for how many seconds the client must wait.

    The client does not wait (0 s) if the bucket has a token. A clock that goes backwards adds none.

    Args:
        bucket: The bucket; None for a client's first request.
        rate: The limit.
        now: The time, in seconds.
    """
    if bucket is None:
        bucket = TokenBucket(rate.at_once, now)
    passed = max(0.0, now - bucket.at_s)
    filled = replace(bucket, left=min(rate.at_once, bucket.left + passed * rate.per_s), at_s=max(now, bucket.at_s))
    if rate.per_s <= 0 or filled.left >= 1:
        return replace(filled, left=max(0.0, filled.left - 1), refused=0), 0.0
    return replace(filled, refused=filled.refused + 1), (1 - filled.left) / rate.per_s


CHANGES_PER_S, READS_PER_S = 200.0, 1000.0
BURST_S = 10.0  # seconds of unused rate that may be used at once: two thousand submissions
STRANGERS = Rate(1.0, 30.0)
MOST_BODY_BYTES = 4 << 20  # most bytes of a request's body; uploads have their own limit
BODY_S = 60.0  # seconds within which such a body must be sent: a user has few concurrent requests, and each must end
MOST_UPLOADS = 4  # concurrent uploads of one user: each is held in memory
UPLOAD_RETRY_S = 2.0
# Concurrent requests of one user; others wait until a response begins. Each may need one of the server's 40 threads,
# and one of the 15 connections to its database.
MOST_AT_ONCE = 8
_UPLOAD = ("POST", "workspaces")
_MOST = 10_000  # most buckets in memory; the least recently used one is dropped, and starts full again


class Limits:
    """Rate limits of a server; only its event loop may use them."""

    def __init__(
        self,
        changes_per_s: float = CHANGES_PER_S,
        reads_per_s: float = READS_PER_S,
        strangers: Rate = STRANGERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Initialize the limits, with no requests so far.

        Args:
            changes_per_s: Limit of requests that change something, per user and second.
            reads_per_s: Limit of requests that read, per user and second.
            strangers: Limit for clients without a valid token, per address.
            clock: Monotonic time, in seconds.
        """
        self._rates = {
            "changes": Rate(changes_per_s, max(1.0, BURST_S * changes_per_s)),
            "reads": Rate(reads_per_s, max(1.0, BURST_S * reads_per_s)),
            "strangers": strangers,
        }
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], TokenBucket] = OrderedDict()

    def refuses(self, kind: str, who: str, scope: Scope) -> float:
        """Count a request, and return for how many seconds its client must wait; 0 if it is accepted.

        Of several refusals in a row only the first one is recorded in the audit log.

        Args:
            kind: Kind of the limit: "changes", "reads" or "strangers".
            who: User or address of the client.
            scope: ASGI scope of the request.
        """
        bucket, wait_s = take_token(self._buckets.get((kind, who)), self._rates[kind], self._clock())
        self._buckets[kind, who] = bucket
        self._buckets.move_to_end((kind, who))
        if len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)
        if bucket.refused > 1:
            scope.setdefault("state", {})["is_repeated"] = True
        return wait_s

    async def refuse_if_frequent(self, scope: Scope, send: Send) -> bool:
        """Refuse a request without a valid token if its address sends too many; return True if it was refused."""
        if wait_s := self.refuses("strangers", network((scope.get("client") or ("",))[0]), scope):
            await send_too_many_requests(send, wait_s)
        return wait_s > 0


def network(address: str) -> str:
    """Return the address range that one client owns: an IPv4 address, or the 64-bit prefix of an IPv6 network."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address) or found.is_link_local:
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((int(found), 64), strict=False))


class UserTurns:
    """Semaphores by user, each of which is dropped when no request holds it or waits for it."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._semaphores: dict[str, asyncio.Semaphore] = {}
        self._counts = Counter[str]()  # requests that hold a semaphore or wait for it, by user

    @asynccontextmanager
    async def wait_for_turn(self, user: str) -> AsyncIterator[Callable[[], None]]:
        """Wait until fewer than ``at_once`` requests of a user are in progress.

        Args:
            user: The user.

        Yields:
            A function that releases the semaphore before the end of the context.
        """
        semaphore = self._semaphores.setdefault(user, asyncio.Semaphore(self._at_once))
        self._counts[user] += 1
        is_held = False

        def end() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                semaphore.release()

        try:
            await semaphore.acquire()
            is_held = True
            yield end
        finally:
            end()
            self._counts[user] -= 1
            if not self._counts[user]:
                del self._counts[user], self._semaphores[user]


class RateLimitMiddleware:
    """Middleware that limits requests, inside the authentication middleware."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._uploads = Counter[str]()  # uploads in progress, by user
        self._turns = UserTurns(MOST_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        user, kind = scope["state"]["caller"].user, "reads" if scope["method"] in READING else "changes"
        if wait_s := self._limits.refuses(kind, user, scope):
            await send_too_many_requests(send, wait_s)
        elif (scope["method"], scope["path"].rpartition("/")[2]) == _UPLOAD:
            await self._uploaded(user, scope, receive, send)
        else:
            await self._in_turn(user, scope, limit_body(receive, MOST_BODY_BYTES), send)

    async def _in_turn(self, user: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request when the user's number of concurrent requests allows it."""
        async with self._turns.wait_for_turn(user) as end_turn:

            async def sending(message: Message) -> None:
                end_turn()  # a response in progress, such as a stream or a file, may take as long as the client likes
                await send(message)

            await self._app(scope, receive, sending)

    async def _uploaded(self, user: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an upload, or refuse it if the user has too many in progress."""
        if self._uploads[user] >= MOST_UPLOADS:
            scope["state"]["is_repeated"] = True
            await send_too_many_requests(send, UPLOAD_RETRY_S)
            return
        self._uploads[user] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._uploads[user] -= 1
            if not self._uploads[user]:
                del self._uploads[user]


def limit_body(receive: Receive, most_bytes: int, most_s: float = BODY_S) -> Receive:
    """Return a function that receives a request's body within limits of size and time.

    Args:
        receive: Receives the body without limits.
        most_bytes: Most bytes of the body.
        most_s: Most seconds until the body is complete.

    Raises:
        HTTPException: By the returned function; 413 if the body is too long, 408 if it takes too long.
    """
    length, is_whole, until_s = 0, False, time.monotonic() + most_s

    async def receive_some() -> Message:
        nonlocal length, is_whole
        from fastapi import HTTPException

        try:
            async with asyncio_timeout(None if is_whole else max(0.0, until_s - time.monotonic())):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408) from None
        is_whole = not message.get("more_body", False)
        length += len(message.get("body", b""))
        if length > most_bytes:
            raise HTTPException(413)
        return message

    return receive_some


async def send_too_many_requests(send: Send, wait_s: float) -> None:
    """Refuse a request with status 429 and the seconds to wait, and close the connection.

    Further requests that were already sent on the same connection, which may be thousands, are dropped with it.
    """
    seconds = math.ceil(wait_s)
    said = {"error": "you have sent too many requests", "remedy": f"wait {seconds} s, then send the next request"}
    body = json.dumps(said).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"%d" % seconds),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": body})
