"""Simulated agents that cost little: a thousand of them in one process, so that it is the coordinator that is measured.

What they send and receive is what an agent does: TLS with the pinned certificate, the token in the upgrade, typed messages
in masked frames. What is spared is theirs alone: a task and a state machine for each connection, and a mask that nobody
could guess.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from hopsml.cluster import protocol
from hopsml.cluster.agent import Bootstrap, decode_bootstrap
from tools.simulated_agent import client_tls, hello

BEATS_S = 0.25  # of each agent
_KEY = "AAAAAAAAAAAAAAAAAAAAAA=="  # of the upgrade; any 16 bytes do


def run(data: bytes, count: int, pipe: Connection) -> None:
    """The other process: connect all, tell when that began, when the last had registered and had its assignment; beat."""
    import uvloop

    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Crowd(decode_bootstrap(data), count, pipe).live())


class _Crowd:
    """All agents of an ask, and what there is to be told of them together."""

    def __init__(self, bootstrap: Bootstrap, count: int, pipe: Connection) -> None:
        self.bootstrap, self._count, self._pipe = bootstrap, count, pipe
        self._times: dict[str, list[float]] = {"registered": [], "assigned": []}

    async def live(self) -> None:
        """Until the process is ended."""
        host, port = self.bootstrap.addresses[0]
        tls, loop = client_tls(self.bootstrap.certificate), asyncio.get_running_loop()
        agents = [_LightAgent(self, index, loop) for index in range(self._count)]
        self._connecting = time.monotonic()
        await asyncio.gather(*(loop.create_connection(agent.itself, host, port, ssl=tls) for agent in agents))
        await asyncio.Event().wait()

    def reached(self, what: str) -> None:
        """One more agent is there."""
        self._times[what].append(time.monotonic())
        if len(self._times["assigned"]) == self._count:
            times = {name: max(each) for name, each in self._times.items()}
            self._pipe.send(json.dumps({"connecting": self._connecting, **times}))


class _LightAgent(asyncio.Protocol):
    def __init__(self, crowd: _Crowd, index: int, loop: asyncio.AbstractEventLoop) -> None:
        self._crowd, self._loop, self._hello = crowd, loop, hello(crowd.bootstrap.ask, index)
        self._take: Callable[[], bool] = self._take_answer
        self._read = bytearray()

    def itself(self) -> _LightAgent:
        """As asyncio asks for a protocol."""
        return self

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(
            f"GET / HTTP/1.1\r\nHost: coordinator\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {_KEY}\r\nSec-WebSocket-Version: 13\r\n"
            f"Authorization: Bearer {self._crowd.bootstrap.token}\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._read += data
        while self._read and self._take():
            pass

    def _take_answer(self) -> bool:
        head, found, rest = self._read.partition(b"\r\n\r\n")
        if not found:
            return False
        if not head.startswith(b"HTTP/1.1 101 "):
            raise RuntimeError(f"the coordinator refused an agent: {head.decode()}")
        self._read, self._take = rest, self._take_frame
        self._send(self._hello)
        return True

    def _take_frame(self) -> bool:
        content = _unframed(self._read)
        if content is None:
            return False
        self._obey(protocol.decode_for_agent(content))
        return True

    def _obey(self, message: protocol.ToAgent) -> None:
        match message:
            case protocol.Welcome():
                self._crowd.reached("registered")
                self._send(_figures(self._hello))
            case protocol.ProbePeer():
                self._send(protocol.PeerProbed(message.agent_id, mb_s=900.0))
            case protocol.Launch():
                self._crowd.reached("assigned")
                self._beat()

    def _beat(self) -> None:
        self._transport.write(_BEAT)
        self._loop.call_later(BEATS_S, self._beat)

    def _send(self, message: protocol.Message) -> None:
        self._transport.write(_framed(protocol.encode(message)))


def _framed(content: bytes) -> bytes:
    """A message as one binary frame of a client: with a mask, which is zero, so that it changes nothing."""
    length = len(content)
    size = bytes((0x80 | length,)) if length < 126 else b"\xfe" + length.to_bytes(2, "big")
    return b"\x82" + size + bytes(4) + content


def _unframed(read: bytearray) -> bytes | None:
    """The content of the first frame of a server, which is taken out; None where it has not come as a whole."""
    if len(read) < 2:
        return None
    more = {126: 2, 127: 8}.get(read[1], 0)
    begin = 2 + more
    end = begin + (int.from_bytes(read[2:begin], "big") if more else read[1])
    if len(read) < end:
        return None
    content = bytes(read[begin:end])
    del read[:end]
    return content


_BEAT = _framed(protocol.encode(protocol.Heartbeat()))


def _figures(greeting: protocol.Hello) -> protocol.PreflightFacts:
    """What an agent in good health has measured of itself."""
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
