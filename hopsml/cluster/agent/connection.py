"""Connection of an agent to the coordinator: what it needs to know before, how it connects, and what it still has to send.

A heartbeat overtakes all queued messages. Messages in transit are bounded as well as queued ones: on a busy machine, a
coordinator with megabytes of reports to handle would renew no lease until it has read them, and all agents would exit.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from hopsml.cluster.shared import agent_client
from hopsml.cluster.shared.protocol import MAX_TO_AGENT, Heartbeat, Message, encode

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

AGAIN_PAUSE_S = 1.0  # of a replacement agent, between two tries
ROOM = 256 << 10  # bytes that may be queued or in transit before the reader of a worker's pipe is paused


class Bootstrap(msgspec.Struct, frozen=True):
    """Settings that an agent needs before it can connect; sent to it in the Spark task's closure."""

    ask: int
    addresses: tuple[tuple[str, int], ...]  # of the coordinator, tried in this order
    token: str
    certificate: str  # PEM; the only one that the agent trusts
    preload: tuple[str, ...]
    lease_s: float
    sys_path: tuple[str, ...]  # of the driver, if it shares the agents' disk
    port_range: tuple[int, int] | None = None
    gpus: int = 0  # number to lock if Spark assigns none
    bare: bool = False  # the slot needs no GPU, and the agent uses none
    cores: int = 0  # cores per slot in the cluster's settings
    host: str = ""  # address to bind and to announce; "": the local address of the connection
    zygote: str = ""  # name of the driver's zygote, if the agent runs on the driver's machine
    zygote_modules: tuple[str, ...] = ()  # modules that the zygote imports

    def zygote_for(self, modules: tuple[str, ...]) -> str:
        """Return the zygote's name if it imports exactly these modules, else "".

        A further import could hang or fail, and would concern a function that does not need it.
        """
        return self.zygote if set(modules) == set(self.zygote_modules) else ""


_bootstrap = msgspec.msgpack.Decoder(Bootstrap)


def decode_bootstrap(data: bytes) -> Bootstrap:
    """Decode a bootstrap that ``msgspec.msgpack.encode`` has encoded."""
    return _bootstrap.decode(data)


async def connect(bootstrap: Bootstrap, patience_s: float, on_data: Callable[[], None]) -> ClientConnection:
    """Connect to the coordinator.

    Args:
        bootstrap: addresses and credentials.
        patience_s: seconds for which a failed attempt is repeated.
        on_data: called whenever bytes have been received.

    Raises:
        ConnectionError: no address answers.
    """
    from websockets.asyncio.client import ClientConnection

    class LeaseConnection(ClientConnection):
        def data_received(self, data: bytes) -> None:
            on_data()
            super().data_received(data)

    coordinator = bootstrap.addresses, bootstrap.token, bootstrap.certificate
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return await agent_client.connect(*coordinator, MAX_TO_AGENT, LeaseConnection)
        except ConnectionError:
            if time.monotonic() + AGAIN_PAUSE_S >= deadline:
                raise
            await asyncio.sleep(AGAIN_PAUSE_S)


class Outbox:
    """Queue of encoded messages to the coordinator; used on one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._bytes = 0  # that the coordinator has not acknowledged
        self._beat = False
        self._filled = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def put(self, message: Message) -> None:
        """Append a message to the queue, without blocking.

        Callers that must bound the queue wait for ``room`` before.
        """
        if isinstance(message, Heartbeat):
            self._beat = True
        else:
            data = encode(message)
            self._waiting.append(data)
            self._bytes += len(data)
            if self._bytes > ROOM:
                self._has_room.clear()
        self._filled.set()

    async def take(self) -> bytes:
        """Wait for the next message to send, and return its bytes; a heartbeat comes before all others."""
        await self._filled.wait()
        if self._beat:
            self._beat, data = False, _BEAT
        else:
            data = self._waiting.popleft()
        if not self._waiting and not self._beat:
            self._filled.clear()
        return data

    def taken(self, size: int) -> None:
        """Record that the coordinator has handled ``size`` more bytes."""
        self._bytes -= size
        if self._bytes <= ROOM:
            self._has_room.set()

    async def room(self) -> None:
        """Wait until the messages that the coordinator has not handled take at most ``ROOM`` bytes."""
        await self._has_room.wait()


_BEAT = encode(Heartbeat())
