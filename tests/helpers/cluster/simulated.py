"""Simulated agents: WebSocket clients in one thread that implement the protocol and start no process."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.backends.base import AskEnded, Capacity, EndWarning, SlotEnded
from hopsml.cluster.shared import protocol, worker_events
from tests.helpers.clock import END_S
from tools.simulated_agent import client_tls, connected, hello

__all__ = ["SimulatedBackend", "client_tls", "connected", "hello", "live"]


async def live(bootstrap: Bootstrap, index: int, tls: ssl.SSLContext) -> None:
    """Join, run each launch as a worker that starts and returns at once, until dismissed."""
    async with connected(bootstrap.addresses[0], bootstrap.certificate, bootstrap.token, tls) as connection:
        await connection.send(protocol.encode(hello(bootstrap.request_id, index)))
        await _obey(connection)


async def _obey(connection: ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):  # cut off by the coordinator
        async for frame in connection:
            assert isinstance(frame, bytes)
            message = protocol.decode_for_agent(frame)
            if isinstance(message, protocol.Launch):
                key = (message.run_id, message.generation)
                result = f"rank {message.rank}".encode()
                for answer in (
                    worker_events.WorkerStarted(),
                    worker_events.WorkerReports((worker_events.ReportedStep(message.rank, {}, 0.0),)),
                    worker_events.WorkerFinished(result),
                    worker_events.WorkerClosed(),
                ):
                    await connection.send(protocol.encode(protocol.WorkerUpdate(*key, answer)))
            elif isinstance(message, protocol.Dismiss):
                return


class SimulatedBackend:
    """Backend with any number of slots whose agents are tasks of one event loop."""

    name = "simulated"
    restarts_agents = False
    grows = False
    gpus_per_agent = 0
    cores_per_agent = 0

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._threads: list[threading.Thread] = []

    def capacity(self) -> Capacity:
        return Capacity(self.slots, f"slots={self.slots}", self.slots)

    def addresses(self) -> tuple[str, tuple[str, ...]]:
        return "127.0.0.1", ("127.0.0.1",)

    def submit(self, bootstrap: Bootstrap, count: int, ended: AskEnded, slot_ended: SlotEnded) -> None:
        async def all_agents() -> None:
            tls = client_tls(bootstrap.certificate)
            await asyncio.gather(*(live(bootstrap, index, tls) for index in range(count)))

        def body() -> None:
            try:
                asyncio.run(all_agents())
            except Exception as error:  # noqa: BLE001 told to the coordinator, as a backend does
                ended(bootstrap.request_id, repr(error))
            else:
                ended(bootstrap.request_id, "")

        thread = threading.Thread(target=body, name="simulated-agents")
        self._threads.append(thread)
        thread.start()

    def cancel(self, request_id: int) -> None:
        """Do nothing: all agents of a request connect at once, so none can be cancelled."""

    def evict(self, task: int, pid: int) -> None:
        """Do nothing: there is no process."""

    def why_missing(self, request_id: int) -> str:
        return "simulated agents are slow"

    def is_contended(self) -> bool:
        return False

    def other_work(self) -> str:
        return ""

    def leaving_tasks(self, tasks: frozenset[int]) -> dict[int, EndWarning]:
        return {}

    def why_lost(self, task: int, pid: int) -> str:
        return ""

    def why_unavailable(self) -> str:
        return ""

    def close(self) -> None:
        for thread in self._threads:
            thread.join(END_S)
