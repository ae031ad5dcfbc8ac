"""Load of repeated POST requests: HTTP_LOAD HOST PORT PATH BODY_FILE CONNECTIONS SECONDS, token on standard input.

Prints a line of JSON at the end: ``requests`` that were answered with 200, ``failed`` with another status or no answer,
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
    """One connection with one request after another; ``again``: the first repeats a lost request."""

    def __init__(self, load: Load, again: bool) -> None:
        self._load, self._again = load, again
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request once the connection is open."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own transport is not a subclass
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        """Count a complete response and send the next request, or close the connection at the end."""
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
        """Report a request that was lost with the connection."""
        if self._transport is not None:
            self._load.lost(self._again)


class Load:
    """Load over all connections, with the counts of its requests."""

    def __init__(self, host: str, port: int, request: bytes, connections: int) -> None:
        self.request, self.over = request, False
        self.counts = {"requests": 0, "failed": 0, "retried": 0}
        self._host, self._port, self._open = host, port, connections
        self._connections = connections
        self._done = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> float:
        """Send requests for ``seconds``, wait for the answers to all of them, and return how long that took."""
        began = time.perf_counter()
        for _ in range(self._connections):
            self._connect(again=False)
        await asyncio.sleep(seconds)
        self.over = True
        await asyncio.wait_for(self._done.wait(), 60)
        return time.perf_counter() - began

    def answered(self, status: int) -> None:
        """Count a request that was answered with this status."""
        self.counts["requests" if status == 200 else "failed"] += 1

    def lost(self, again: bool) -> None:
        """Repeat a lost request over another connection; count it as failed if it was lost again."""
        self.counts["failed" if again else "retried"] += 1
        self._connect(again=not again)

    def ended(self) -> None:
        """Count a connection that has ended; the last one ends the load."""
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
    """Run the load and print its counts."""
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
