"""Server-sent events: what can be followed, looked at once for all that listen; a stream that broke goes on where it ended.

Only while somebody listens is anything looked at. What a listener has not taken yet is not kept for it: it asks its feed
for what comes next when its connection has room, so that a slow one costs no memory, and may find that it is too late.
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

from hopsml.errors import HopsmlError, StoreError
from hopsml.service.rest.threads import FOLLOWING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

log = logging.getLogger("hopsml.service")

LOOK_S = 1.0  # between two looks at the same thing
HEARTBEAT_S = 15.0  # proxies end connections on which nothing comes for a minute
KNOWN_S = 15.0  # after which it is looked again whether who listens still may
RETRY_MS = 2000  # after which a browser asks again
At = TypeVar("At")


class EventFeed(Protocol[At]):
    """What can be followed. A thread calls ``look``, the event loop all else."""

    @property
    def version(self) -> Any:
        """Another one as soon as there is something new."""

    def look(self) -> None:
        """Find what is new. Raises StorageError, StoreError."""

    async def begin(self, last: str) -> tuple[At, bytes]:
        """Where a listener begins that was at ``last``, "" for nowhere, and the event that says hello."""

    async def since(self, at: At) -> tuple[list[bytes], At | None]:
        """Some of the events after a place, and the place after them: None where nothing comes any more."""


def encoded(id_: str, kind: str, data: Any) -> bytes:
    """An event as it travels; JSON has no line ends of its own, and needs one line."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (id_.encode(), kind.encode(), msgspec.json.encode(data))


class Broadcaster:
    """Looks at one feed for all that listen."""

    def __init__(self, feed: EventFeed[Any], look_s: float = LOOK_S, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._feed, self._look_s, self._heartbeat_s = feed, look_s, heartbeat_s
        self.listeners = 0
        self._looking: asyncio.Task[None] | None = None
        self._news, self._told = asyncio.Event(), feed.version
        self._ended = False

    async def stream(self, last: str) -> AsyncGenerator[bytes, None]:
        """Bytes for one listener; ``last``: the id of the newest event that it has seen, "" for none."""
        self.listeners += 1
        try:
            at, hello = await self._feed.begin(last)
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
        except HopsmlError as error:  # whoever listens asks again
            log.warning("a stream of events ends: %s", error)
        finally:
            self.listeners -= 1
            if not self.listeners and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def end(self) -> None:
        """End all streams, in order."""
        self._ended = True
        self._news.set()
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking

    async def _waited(self, version: Any) -> bool:
        """Whether something came before the next heartbeat is due."""
        news = self._news
        if self._ended or self._feed.version != version:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._heartbeat_s):
                await news.wait()
                return True
        return False

    async def _look(self) -> None:
        while not self._ended:
            try:
                await FOLLOWING.run(self._feed.look)
            except HopsmlError as error:  # it may be there again at the next look
                log.warning("what is followed cannot be looked at: %s", error)
            if (version := self._feed.version) != self._told:
                self._told = version
                self._news.set()
                self._news = asyncio.Event()
            await asyncio.sleep(self._look_s)


class Streams:
    """All that can be followed of a server: its project, and what is opened by name while somebody listens to it."""

    def __init__(self, project: Broadcaster, look_s: float = LOOK_S, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.project, self._look_s, self._heartbeat_s = project, look_s, heartbeat_s
        self._open: dict[Hashable, Broadcaster] = {}
        self._ended = False

    def __len__(self) -> int:
        """How many things are looked at, the project not counted."""
        return len(self._open)

    async def stream(
        self, name: Hashable, feed: Callable[[], EventFeed[Any]], last: str
    ) -> AsyncGenerator[bytes, None]:
        """Bytes for one listener to what has this name; ``feed`` makes it where nobody listens yet."""
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
        """End all of them, in order."""
        self._ended = True
        for told in (self.project, *self._open.values()):
            await told.end()


class EventAnswer(StreamingResponse):
    """A stream as an answer; it ends with the token that asked for it.

    It is closed with its connection, and not when its memory happens to be taken back.
    """

    def __init__(self, request: Request, stream: AsyncGenerator[bytes, None]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(_while_known(request, stream), headers=headers, media_type="text/event-stream")
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stream.aclose()


async def _while_known(request: Request, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    looked_s = time.monotonic()
    async for piece in stream:
        if time.monotonic() - looked_s >= KNOWN_S:
            if not await _is_still_known(request):
                return
            looked_s = time.monotonic()
        yield piece


async def _is_still_known(request: Request) -> bool:
    """Not where nobody can say it: whoever listens asks again, and goes on where it was."""
    try:
        return bool(await request.state.is_still_known())
    except StoreError as error:
        log.warning("a stream of events ends: %s", error)
        return False


def last_seen(request: Request, name: str = "last") -> str:
    """Where an earlier stream ended: ``Last-Event-ID``, or a parameter of the query; "?" for what is no id."""
    last = request.headers.get("last-event-id") or request.query_params.get(name, "")
    return last if last.isascii() and last.isprintable() and len(last) < 64 else "?"


async def events(request: Request) -> Response:
    """``api/events``: what has changed in the project, one stream a tab."""
    broadcaster: Broadcaster = request.app.state.broadcaster
    return EventAnswer(request, broadcaster.stream(last_seen(request)))


def events_route() -> Route:
    """Its address."""
    return Route("/api/events", events)
