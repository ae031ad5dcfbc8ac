"""POST one body again and again: HTTP_LOAD HOST PORT PATH BODY_FILE CONNECTIONS SECONDS, and the token on standard input.

Prints a line of JSON at the end: ``requests`` that were answered with 200, ``failed`` with anything else or not at all,
``retried`` (a connection ended with a request in it, which was sent once more over another one), ``seconds``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import cast


class Connection(asyncio.Protocol):
    """One request after another. ``again``: the first one was lost with another connection."""

    def __init__(self, load: Load, again: bool) -> None:
        self._load, self._again = load, again
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is none by its class
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += data
        head, mark, rest = self._received.partition(b"\r\n\r\n")
        if not mark:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(rest) < length:
            return
        self._received, self._again = b"", False
        self._load.answered(int(head.split(b" ", 2)[1]))
        if self._load.over:
            self._transport.close()
            self._transport = None
            self._load.ended()
        else:
            self._transport.write(self._load.request)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._load.lost(self._again)


class Load:
    """Counts over all connections."""

    def __init__(self, host: str, port: int, request: bytes, connections: int) -> None:
        self.request, self.over = request, False
        self.counts = {"requests": 0, "failed": 0, "retried": 0}
        self._host, self._port, self._open = host, port, connections
        self._connections = connections
        self._done = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> float:
        """Until all requests that were begun within the time are answered; how long that took."""
        began = time.perf_counter()
        for _ in range(self._connections):
            self._connect(again=False)
        await asyncio.sleep(seconds)
        self.over = True
        await asyncio.wait_for(self._done.wait(), 60)
        return time.perf_counter() - began

    def answered(self, status: int) -> None:
        """A request was."""
        self.counts["requests" if status == 200 else "failed"] += 1

    def lost(self, again: bool) -> None:
        """A request was not: it is sent once more, over another connection, and has failed if it is lost then, too."""
        self.counts["failed" if again else "retried"] += 1
        self._connect(again=not again)

    def ended(self) -> None:
        """A connection is not needed any more."""
        self._open -= 1
        if not self._open:
            self._done.set()

    def _connect(self, again: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._connected(again))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, again: bool) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: Connection(self, again), self._host, self._port)
        except OSError:
            self.counts["failed"] += 1
            self.ended()


def main(words: list[str]) -> None:
    """The program."""
    host, port, path, body_file, connections, seconds = words
    token, body = sys.stdin.readline().strip(), Path(body_file).read_bytes()
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    head += f"authorization: Bearer {token}\r\n\r\n" if token else "\r\n"

    async def play() -> None:
        load = Load(host, int(port), head.encode() + body, int(connections))
        taken = await load.run(float(seconds))
        print(json.dumps({**load.counts, "seconds": taken}))

    import uvloop

    uvloop.run(play())


if __name__ == "__main__":
    main(sys.argv[1:])
