"""``api/events``: what has changed, as server-sent events, one stream a tab; a stream that broke goes on where it ended.

Only while somebody listens is the project looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.routing import Route

from hopsml.errors import StorageError
from hopsml.service.browse.changes import Changes, ProjectChange

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger("hopsml.service")

LOOK_S = 1.0  # between two looks at the project
HEARTBEAT_S = 15.0  # proxies end connections on which nothing comes for a minute
RETRY_MS = 2000  # after which a browser asks again


class Broadcaster:
    """Looks at a project for all that listen."""

    def __init__(self, changes: Changes, look_s: float = LOOK_S, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._changes, self._look_s, self._heartbeat_s = changes, look_s, heartbeat_s
        self._listeners = 0
        self._looking: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        self._ended = False

    async def stream(self, last: str) -> AsyncIterator[bytes]:
        """Bytes for one listener; ``last``: the id of the newest event that it has seen, "" for none."""
        at = last or self._changes.newest
        yield b"retry: %d\nid: %s\nevent: hello\ndata: {}\n\n" % (RETRY_MS, at.encode() if not last else last.encode())
        self._listeners += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            while not self._ended:
                events = self._changes.since(at)
                for event in events:
                    at = event.id
                    yield _encoded(event)
                if not events and not await self._waited(at):
                    yield b": still here\n\n"
        finally:
            self._listeners -= 1

    async def end(self) -> None:
        """End all streams, in order."""
        self._ended = True
        async with self._news:
            self._news.notify_all()
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking

    async def _waited(self, at: str) -> bool:
        """Whether something came before the next heartbeat is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._heartbeat_s), self._news:
                await self._news.wait_for(lambda: self._ended or self._changes.newest != at)
                return True
        return False

    async def _look(self) -> None:
        while self._listeners and not self._ended:
            before = self._changes.newest
            try:
                await run_in_threadpool(self._changes.look)
            except StorageError as error:  # it may be there again at the next look
                log.warning("the project cannot be looked at: %s", error)
            if self._changes.newest != before:
                async with self._news:
                    self._news.notify_all()
            await asyncio.sleep(self._look_s)


async def events(request: Request) -> Response:
    """One stream. ``Last-Event-ID``, or ``last`` in the query, says where an earlier one ended."""
    last = request.headers.get("last-event-id") or request.query_params.get("last", "")
    broadcaster: Broadcaster = request.app.state.broadcaster
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    known = last if last.isascii() and last.isprintable() and len(last) < 64 else "?"
    return StreamingResponse(broadcaster.stream(known), headers=headers, media_type="text/event-stream")


def events_route() -> Route:
    """Its address."""
    return Route("/api/events", events)


def _encoded(event: ProjectChange) -> bytes:
    data = msgspec.json.encode({"run": event.run})
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (event.id.encode(), event.kind.encode(), data)
