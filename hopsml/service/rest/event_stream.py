"""Server-sent events: each source is polled once for all its listeners, and a broken stream continues where it ended.

A source is polled only while it has listeners. Nothing is queued for a slow listener: it requests the next events of its
feed when its connection has room, so that it costs no memory. If these were dropped by then, it receives a "reset".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Hashable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from starlette.responses import StreamingResponse
from starlette.routing import Route

from hopsml.core.newer_python import asyncio_timeout
from hopsml.errors import HopsmlError, StoreError
from hopsml.service.rest.threads import FOLLOWING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

log = logging.getLogger("hopsml.service")

LOOK_S = 1.0  # seconds between two polls of the same source
HEARTBEAT_S = 15.0  # proxies close connections without traffic after a minute
KNOWN_S = 15.0  # seconds after which a listener's token is checked again
RETRY_MS = 2000  # milliseconds after which a browser reconnects
At = TypeVar("At")


class EventFeed(Protocol[At]):
    """Interface of an event source; a thread calls ``poll``, the event loop calls all other methods."""

    @property
    def version(self) -> Any:
        """Return a value that changes as soon as there are new events."""

    def poll(self) -> None:
        """Poll the source for new events. Raises StorageError, StoreError."""

    async def start_listener(self, last: str) -> tuple[At, bytes]:
        """Return a listener's start position, and the event that greets it.

        Args:
            last: Id of the last event that the listener has received; "" for a new listener.
        """

    async def since(self, at: At) -> tuple[list[bytes], At | None]:
        """Return some events after a position, and the position after them, which is None at the end of the stream."""


def encode_event(id_: str, kind: str, data: Any) -> bytes:
    """Encode a server-sent event; its data is one line, as JSON contains no raw line breaks."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (id_.encode(), kind.encode(), msgspec.json.encode(data))


class Broadcaster:
    """Stream of one feed's events to all its listeners, with one polling task."""

    def __init__(self, feed: EventFeed[Any], look_s: float = LOOK_S, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._feed, self._look_s, self._heartbeat_s = feed, look_s, heartbeat_s
        self.listeners = 0
        self._looking: asyncio.Task[None] | None = None
        self._news, self._told = asyncio.Event(), feed.version
        self._ended = False

    async def stream(self, last: str) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of one listener's stream.

        ``last`` is the id of the last event it has received, "" for none.
        """
        self.listeners += 1
        try:
            at, hello = await self._feed.start_listener(last)
            yield b"retry: %d\n%s" % (RETRY_MS, hello)
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
            while not self._ended and at is not None:
                version = self._feed.version
                events, at = await self._feed.since(at)
                for event in events:
                    yield event
                if not events and at is not None and not await self._waited(version):
                    yield b": still here\n\n"
        except HopsmlError as error:  # the listener connects again
            log.warning("a stream of events ends: %s", error)
        finally:
            self.listeners -= 1
            if not self.listeners and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def end(self) -> None:
        """End the streams of all listeners in an orderly way."""
        self._ended = True
        self._news.set()
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking

    async def _waited(self, version: Any) -> bool:
        """Return True if the feed has changed, or the streams end, before the next heartbeat is due."""
        news = self._news
        if self._ended or self._feed.version != version:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio_timeout(self._heartbeat_s):
                await news.wait()
                return True
        return False

    async def _look(self) -> None:
        """Poll the feed until the streams end, and wake the listeners when it has changed."""
        while not self._ended:
            try:
                await FOLLOWING.run(self._feed.poll)
            except HopsmlError as error:  # the next poll may succeed
                log.warning("what is followed cannot be looked at: %s", error)
            if (version := self._feed.version) != self._told:
                self._told = version
                self._news.set()
                self._news = asyncio.Event()
            await asyncio.sleep(self._look_s)


class Streams:
    """All event streams of a server: the project's, and named ones that exist while they have listeners."""

    def __init__(self, project: Broadcaster, look_s: float = LOOK_S, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.project, self._look_s, self._heartbeat_s = project, look_s, heartbeat_s
        self._open: dict[Hashable, Broadcaster] = {}
        self._ended = False

    def __len__(self) -> int:
        """Return the number of open sources, without the project."""
        return len(self._open)

    async def stream(
        self, name: Hashable, feed: Callable[[], EventFeed[Any]], last: str
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of one listener's stream of a named source.

        Args:
            name: Name of the source.
            feed: Creates the feed if the source has no listeners yet.
            last: Id of the last event that the listener has received; "" for none.
        """
        if self._ended:
            return
        if (told := self._open.get(name)) is None:
            told = self._open[name] = Broadcaster(feed(), self._look_s, self._heartbeat_s)
        try:
            async with contextlib.aclosing(told.stream(last)) as stream:
                async for piece in stream:
                    yield piece
        finally:
            if not told.listeners:
                self._open.pop(name, None)

    async def end(self) -> None:
        """End all streams of the server in an orderly way."""
        self._ended = True
        for told in (self.project, *self._open.values()):
            await told.end()


class EventAnswer(StreamingResponse):
    """HTTP response that streams events while the token of its request is valid.

    The stream is closed together with the connection, not when the garbage collector finds it.
    """

    def __init__(self, request: Request, stream: AsyncGenerator[bytes, None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(_while_known(request, stream), headers=headers, media_type="text/event-stream")
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response to one ASGI request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stream.aclose()


async def _while_known(request: Request, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the items of a stream until the token of its request is not valid any more."""
    looked_s = time.monotonic()
    async for piece in stream:
        if time.monotonic() - looked_s >= KNOWN_S:
            if not await _is_still_known(request):
                return
            looked_s = time.monotonic()
        yield piece


async def _is_still_known(request: Request) -> bool:
    """Return True if the request's token is still valid; False if the store fails, as the listener connects again."""
    try:
        return bool(await request.state.is_still_known())
    except StoreError as error:
        log.warning("a stream of events ends: %s", error)
        return False


def last_event_id(request: Request, name: str = "last") -> str:
    """Return the id of the last event of an earlier stream, from ``Last-Event-ID`` or the query; "?" if it is invalid.

    Args:
        request: The request.
        name: Name of the query parameter.
    """
    last = request.headers.get("last-event-id") or request.query_params.get(name, "")
    return last if last.isascii() and last.isprintable() and len(last) < 64 else "?"


async def events(request: Request) -> Response:
    """Stream the changes of the project: ``api/events``, one stream for each browser tab."""
    broadcaster: Broadcaster = request.app.state.broadcaster
    return EventAnswer(request, broadcaster.stream(last_event_id(request)))


def events_route() -> Route:
    """Return the route of the project's event stream."""
    return Route("/api/events", events)
