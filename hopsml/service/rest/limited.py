"""Who calls too often is told to wait: by user, and by address where the token is nobody's.

Somebody whose token is valid is never made to wait for strangers that come from the same address, such as a proxy's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hopsml.service.rest.audited import READING
from hopsml.service.rest.token_bucket import Rate, TokenBucket, taken

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

CHANGES_PER_S, READS_PER_S = 200.0, 1000.0
BURST_S = 10.0  # what somebody has not asked for so long may be asked at once: two thousand submissions
STRANGERS = Rate(1.0, 30.0)
MOST_BODY_BYTES = 4 << 20  # of a call; those of uploads are limited where they are taken
BODY_S = 60.0  # in which such a body is to be sent: a caller has few turns, and waits in none for ever
MOST_UPLOADS = 4  # of one user at once: each is held in memory
UPLOAD_RETRY_S = 2.0
# Calls of one user that are being answered at once; others wait, until an answer begins. Each may need one of the 40 threads
# of the server, and one of the 15 connections to its database.
MOST_AT_ONCE = 8
_UPLOAD = ("POST", "workspaces")
_MOST = 10_000  # buckets that are remembered; who has not called for longest begins anew


class Limits:
    """The buckets of a server; asked by its event loop alone."""

    def __init__(
        self,
        changes_per_s: float = CHANGES_PER_S,
        reads_per_s: float = READS_PER_S,
        strangers: Rate = STRANGERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``strangers``: who comes without a token that is valid."""
        self._rates = {
            "changes": Rate(changes_per_s, max(1.0, BURST_S * changes_per_s)),
            "reads": Rate(reads_per_s, max(1.0, BURST_S * reads_per_s)),
            "strangers": strangers,
        }
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], TokenBucket] = OrderedDict()

    def refuses(self, kind: str, who: str, scope: Scope) -> float:
        """For how long who asks is to wait; 0 where it may go on.

        Only the first refusal of a row of them is worth an entry in the audit log.
        """
        bucket, wait_s = taken(self._buckets.get((kind, who)), self._rates[kind], self._clock())
        self._buckets[kind, who] = bucket
        self._buckets.move_to_end((kind, who))
        if len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)
        if bucket.refused > 1:
            scope.setdefault("state", {})["is_repeated"] = True
        return wait_s

    async def turn_away(self, scope: Scope, send: Send) -> bool:
        """Tell somebody whose token is nobody's to wait, where the address comes too often; whether that was so."""
        if wait_s := self.refuses("strangers", network((scope.get("client") or ("",))[0]), scope):
            await told_to_wait(send, wait_s)
        return wait_s > 0


def network(address: str) -> str:
    """Return what one stranger owns of the address space: an IPv4 address, or the 64 bits of an IPv6 network."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address) or found.is_link_local:
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((int(found), 64), strict=False))


class UserTurns:
    """Semaphores by user, each of which is dropped when nobody holds it or waits for it."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._semaphores: dict[str, asyncio.Semaphore] = {}
        self._counts = Counter[str]()  # of those who hold one or wait

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[Callable[[], None]]:
        """Wait until fewer than ``at_once`` calls of a user are under way.

        Yields:
            A function that ends this call's turn early.
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


class Limited:
    """An application within the one that knows who calls."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._uploads = Counter[str]()  # under way, by user
        self._turns = UserTurns(MOST_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        user, kind = scope["state"]["caller"].user, "reads" if scope["method"] in READING else "changes"
        if wait_s := self._limits.refuses(kind, user, scope):
            await told_to_wait(send, wait_s)
        elif (scope["method"], scope["path"].rpartition("/")[2]) == _UPLOAD:
            await self._uploaded(user, scope, receive, send)
        else:
            await self._in_turn(user, scope, bounded(receive, MOST_BODY_BYTES), send)

    async def _in_turn(self, user: str, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._turns.turn(user) as end_turn:

            async def sending(message: Message) -> None:
                end_turn()  # what is sent from now on, such as a stream or a file, may take as long as the caller likes
                await send(message)

            await self._app(scope, receive, sending)

    async def _uploaded(self, user: str, scope: Scope, receive: Receive, send: Send) -> None:
        if self._uploads[user] >= MOST_UPLOADS:
            scope["state"]["is_repeated"] = True
            await told_to_wait(send, UPLOAD_RETRY_S)
            return
        self._uploads[user] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._uploads[user] -= 1
            if not self._uploads[user]:
                del self._uploads[user]


def bounded(receive: Receive, most_bytes: int, most_s: float = BODY_S) -> Receive:
    """A request's body as it comes.

    Raises HTTPException: 413 where it is longer than ``most_bytes``, 408 where it takes longer than ``most_s`` seconds.
    """
    length, is_whole, until_s = 0, False, time.monotonic() + most_s

    async def receive_some() -> Message:
        nonlocal length, is_whole
        from fastapi import HTTPException

        try:
            async with asyncio.timeout(None if is_whole else max(0.0, until_s - time.monotonic())):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408) from None
        is_whole = not message.get("more_body", False)
        length += len(message.get("body", b""))
        if length > most_bytes:
            raise HTTPException(413)
        return message

    return receive_some


async def told_to_wait(send: Send, wait_s: float) -> None:
    """Answer that it is too much, with the seconds after which another call is taken, and close the connection.

    Requests that were sent ahead on the same connection are dropped with it: thousands of them may be there.
    """
    seconds = math.ceil(wait_s)
    said = {"error": "there are too many calls of yours", "remedy": f"wait {seconds} s, then go on"}
    body = json.dumps(said).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"retry-after", b"%d" % seconds),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": body})
