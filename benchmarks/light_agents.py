"""Simulated agents with little overhead, a thousand in one process, so that the coordinator is measured.

They send the same messages as an agent: TLS with the pinned certificate, the token in the upgrade, typed messages in
masked frames. They lack only what costs an agent its own machine's time: a task and a state machine per connection, and
an unpredictable mask.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from hopsml.cluster.agent.network import Bootstrap, decode_bootstrap
from hopsml.cluster.shared import protocol
from tools.simulated_agent import client_tls, hello

BEATS_S = 0.25  # heartbeat interval of each agent
_UPGRADE = """GET / HTTP/1.1\r
Host: coordinator\r
Upgrade: websocket\r
Connection: Upgrade\r
Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r
Sec-WebSocket-Version: 13\r
Authorization: Bearer {token}\r
\r
"""


def run(data: bytes, count: int, pipe: Connection) -> None:
    """Connect all agents of a request, then send heartbeats until killed.

    Body of the second process, on a separate core if there are two.

    ``pipe`` receives the monotonic times at which the first agent began to connect, the last one had registered and the
    last one had its assignment, and the processor seconds that this took here.
    """
    import uvloop

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Crowd(decode_bootstrap(data), count, pipe).live())


class _Crowd:
    """All agents of a request, with the times at which they reached each phase."""

    def __init__(self, bootstrap: Bootstrap, count: int, pipe: Connection) -> None:
        self._bootstrap, self._count, self._pipe = bootstrap, count, pipe
        self._registered = self._assigned = 0
        self._times: dict[str, float] = {}

    async def live(self) -> None:
        """Connect all agents and run until the process is killed, or the coordinator refuses one of them."""
        host, port = self._bootstrap.addresses[0]
        tls, loop = client_tls(self._bootstrap.certificate), asyncio.get_running_loop()
        self._refused: asyncio.Future[None] = loop.create_future()
        upgrade = _UPGRADE.format(token=self._bootstrap.token).encode()
        agents = [LightAgent(self, hello(self._bootstrap.request_id, index), upgrade) for index in range(self._count)]
        self._times["connecting"], self._used_s = time.monotonic(), time.process_time()
        await asyncio.gather(*(loop.create_connection(agent.itself, host, port, ssl=tls) for agent in agents))
        await self._refused

    def refused(self, why: str) -> None:
        """Record that the coordinator refused an agent, which ends the process."""
        if not self._refused.done():
            self._refused.set_exception(RuntimeError(f"the coordinator refused an agent: {why}"))

    def registered(self) -> None:
        """Count one more registered agent."""
        self._registered += 1
        if self._registered == self._count:
            self._times["registered"] = time.monotonic()

    def assigned(self) -> None:
        """Count one more agent that has its assignment."""
        self._assigned += 1
        if self._assigned == self._count:
            used_s = time.process_time() - self._used_s
            self._pipe.send(json.dumps({**self._times, "assigned": time.monotonic(), "processor": used_s}))


class LightAgent(asyncio.Protocol):
    """One agent: registers, sends its preflight facts, receives its assignment, and sends heartbeats from then on."""

    def __init__(self, crowd: _Crowd, greeting: protocol.Hello, upgrade: bytes) -> None:
        self._crowd, self._hello, self._upgrade = crowd, greeting, upgrade
        self._read = bytearray()
        self._take: Callable[[], bool] = self._take_answer

    def itself(self) -> LightAgent:
        """Return this object, as the event loop calls a factory for the protocol of a connection."""
        return self

    def connection_made(self, transport: Any) -> None:
        """Send the upgrade request once the connection is open."""
        self._transport = transport
        transport.write(self._upgrade)

    def data_received(self, data: bytes) -> None:
        """Process all complete messages received so far."""
        self._read += data
        while self._read and self._take():
            pass

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection as a refusal."""
        self._crowd.refused(f"its connection ended: {exc}")

    def _take_answer(self) -> bool:
        head, found, rest = self._read.partition(b"\r\n\r\n")
        if not found:
            return False
        if not head.startswith(b"HTTP/1.1 101 "):
            self._crowd.refused(head.decode())
        self._read, self._take = rest, self._take_message
        self._send(self._hello)
        return True

    def _take_message(self) -> bool:
        content = unframed(self._read)
        if content is None:
            return False
        match protocol.decode_for_agent(content):
            case protocol.Welcome():
                self._crowd.registered()
                self._send(_figures(self._hello))
            case protocol.ProbePeer() as asked:
                self._send(protocol.PeerProbed(asked.agent_id, mb_s=900.0))
            case protocol.Launch():
                self._crowd.assigned()
                self._beat(asyncio.get_running_loop().time())
        return True

    def _beat(self, due: float) -> None:
        """Send a heartbeat at ``due``, in the loop's time; late ones are made up for, so that the rate is exact."""
        self._transport.write(_BEAT)
        asyncio.get_running_loop().call_at(due + BEATS_S, self._beat, due + BEATS_S)

    def _send(self, message: protocol.Message) -> None:
        self._transport.write(framed(protocol.encode(message)))


def framed(content: bytes) -> bytes:
    """Return a message of less than 64 KiB as one final binary frame of a client, with a mask of zeros."""
    length = len(content)
    size = bytes((0x80 | length,)) if length < 126 else b"\xfe" + length.to_bytes(2, "big")
    return b"\x82" + size + bytes(4) + content


def unframed(read: bytearray) -> bytes | None:
    """Remove and return the content of a server's frame; None if the frame is incomplete."""
    more = {126: 2, 127: 8}.get(read[1], 0) if len(read) > 1 else 0  # bytes of the length, if it is not short
    begin = 2 + more
    if len(read) < begin:
        return None
    end = begin + (int.from_bytes(read[2:begin], "big") if more else read[1])
    if len(read) < end:
        return None
    content = bytes(read[begin:end])
    del read[:end]
    return content


_BEAT = framed(protocol.encode(protocol.Heartbeat()))


def _figures(greeting: protocol.Hello) -> protocol.PreflightFacts:
    """Return the preflight facts of a healthy agent."""
    return protocol.PreflightFacts(
        clock=time.time(),
        host=greeting.host,
        door=4000,
        folder="/scratch",
        open_files=65536,
        stack_mb=8.0,
        shared_memory_mb=8192.0,
        disk_mb=50_000.0,
        write_mb_s=200.0,
        disk_problem="",
        versions={"python": "3.11", "hopsml": "1", "tensorflow": "2.21.0", "keras": "3", "numpy": "2"},
        core_mb_s=1500.0,
    )
