"""Job of a service that is not started, with a simulated driver: real rows, a real log, streams of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from sqlalchemy import insert, update

from hopsml.core.states import Lifecycle
from hopsml.engines.local_driver import OUTPUT
from hopsml.service.rest.feeds import LogFeed
from hopsml.service.store.database import changes, jobs, launches
from tests.helpers.service.served import Served

WAIT_S = 20.0


class PlayedJob:
    """Job with a simulated driver: ``prints``, ``cuts`` and ``ends`` are the driver's; ``folder``: of the server."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served, self.id = served, served.submit().json()["id"]
        self.serial, self._folder, self._tries = int(self.id.rpartition("-")[2]), folder, 0
        self.log = Path()

    def starts(self) -> str:
        """Start its next try, and return the id of its application."""
        tag = f"played-{self.serial}-{self._tries}"
        values = {"tag": tag, "job": self.serial, "try": self._tries, "task": "main", "number": 1, "state": "RUNNING"}
        values |= {"application_id": tag, "intended_s": 1.0, "seen_s": 1.0, "cause": ""}
        self.log = self._folder / "applications" / tag / OUTPUT
        self.log.parent.mkdir(parents=True)
        with self.served.jobs.store.write_transaction() as connection:
            connection.execute(update(jobs).where(jobs.c.serial == self.serial).values(tries=self._tries))
            connection.execute(insert(launches).values(values))
        self._tries += 1
        return tag

    def prints(self, data: bytes) -> None:
        """Append text to the log."""
        with open(self.log, "ab") as file:
            file.write(data)

    def cuts(self) -> None:
        """Truncate the log, as a user who needs disk space."""
        os.truncate(self.log, 0)

    def ends(self, state: Lifecycle = Lifecycle.FINISHED) -> None:
        """End the driver."""
        with self.served.jobs.store.write_transaction() as connection:
            connection.execute(update(jobs).where(jobs.c.serial == self.serial).values(state=state.value))
        self.changes(state)

    def changes(self, state: Lifecycle, **more: Any) -> None:
        """Store a change of its state."""
        values = {"job": self.serial, "try": 1, "task": "", "state": state.value, "cause": "", "at_s": time.time()}
        with self.served.jobs.store.write_transaction() as connection:
            connection.execute(insert(changes).values({**values, **more}))

    def listen(self, last: str = "0 ") -> AsyncGenerator[bytes, None]:
        """Open a stream of its log."""
        feed = lambda: LogFeed(self.served.jobs, self.serial, "")  # noqa: E731
        return self.served.streams.stream(("log", self.serial), feed, last)


async def events(stream: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a stream, or of a connection, line by line."""
    found: dict[str, Any] = {}
    async for piece in stream:
        for line in piece.decode().split("\n"):
            name, _, value = line.partition(": ")
            if name in ("id", "event"):
                found[name] = value
            elif name == "data":
                yield {**found, **json.loads(value)}
                found = {}


async def until_end(stream: AsyncIterator[bytes]) -> str:
    """Return the complete text of a log that is followed to its end."""
    text = ""
    async for event in events(stream):
        text = "" if event["event"] == "reset" else text + event.get("text", "")
        if event["event"] == "end":
            return text
    raise AssertionError("the stream broke off")


async def until(is_so: Callable[[], Any], what: str) -> None:
    """Wait for the condition while the event loop runs."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.01)


def within_time(served: Served, of: Callable[[], Awaitable[None]]) -> None:
    """Run a test in an event loop; no stream or task may remain at the end."""

    async def all_of_it() -> None:
        async with asyncio.timeout(WAIT_S):
            await of()
            await until(lambda: len(served.streams) == 0, "the end of what was looked at")
            await until(lambda: len(asyncio.all_tasks()) == 1, "the end of all tasks")

    asyncio.run(all_of_it())


@contextlib.asynccontextmanager
async def listening(served: Served) -> AsyncIterator[int]:
    """Run the service at a port of this machine, in this event loop; it ends as `hopsml server` does."""
    import uvicorn

    from hopsml.service.rest import server

    with server.bind_local("127.0.0.1", 0) as listener:
        config = uvicorn.Config(served.app, log_config=None, log_level="warning", lifespan="off", access_log=False)
        answering = uvicorn.Server(config)
        answering.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
        serving = asyncio.create_task(answering.serve(sockets=[listener]))
        await until(lambda: answering.started, "the server")
        try:
            yield listener.getsockname()[1]
        finally:
            await served.streams.end()
            answering.should_exit = True
            await serving


@contextlib.asynccontextmanager
async def connected(port: int, path: str, token: str, last: str = "") -> AsyncIterator[asyncio.StreamReader]:
    """Yield a connection after the head of its stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    more = f"Last-Event-ID: {last}\r\n" if last else ""
    writer.write(f"GET /api/v1/{path} HTTP/1.0\r\nAuthorization: Bearer {token}\r\n{more}\r\n".encode())
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head and b"text/event-stream" in head, head
    try:
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
