"""The coordinator alone, with 1 024 simulated agents in another process: forming a group, heartbeats."""

from __future__ import annotations

import json
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

import psutil

from benchmarks.figures import Report, measured
from benchmarks.options import Options

AGENTS = 1024
BEATS_S = 0.25  # of each agent: 4 096 heartbeats a second in all
BEATING_S = 8.0


def run(options: Options) -> Report:
    """Some formations, then the share of a core that heartbeats take."""
    formed, shares = [], []
    for _ in range(options.rounds_of(5, 2)):
        seconds, share = one_round()
        formed.append(seconds)
        shares.append(share)
        options.say(f"scale: formed in {seconds:.3f} s; heartbeats take {share:.3f} of a core")
    return Report(
        [measured("scale.form_1024_s", formed, "s"), measured("scale.heartbeat_core_share", shares, "ratio")],
        [f"scale: {AGENTS} simulated agents over TLS on loopback, both sides on this machine's cores"],
    )


def one_round() -> tuple[float, float]:
    """Seconds from the last registration to the last assignment received; the share of a core while only beating."""
    from hopsml.cluster.coordinator import Coordinator
    from hopsml.cluster.formation import RunRequest
    from hopsml.cluster.gang import GangSpec

    backend = _Backend()
    coordinator = Coordinator(backend, lease_s=60.0)
    coordinator.start()
    try:
        spec = GangSpec("scale", size=AGENTS, min_size=AGENTS, start_timeout_s=120)
        coordinator.launch(RunRequest(spec, payload=bytes(1000), run_url="file:///nowhere"))
        times = backend.wait()
        used = _cpu_s()
        time.sleep(BEATING_S)
        return times["assigned"] - times["registered"], (_cpu_s() - used) / BEATING_S
    finally:
        coordinator.cancel("scale", "measured")
        backend.end()
        coordinator.close()


def _cpu_s() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


class _Backend:
    """All agents of an ask in one process of their own, so that they do not take the coordinator's interpreter."""

    name, restarts_agents, grows, gpus_per_agent = "simulated", False, False, 0

    def __init__(self) -> None:
        self._ours, self._theirs = multiprocessing.get_context("spawn").Pipe()
        self._process: Any = None

    def capacity(self) -> Any:
        from hopsml.cluster.backends.base import Capacity

        return Capacity(AGENTS, "simulated", AGENTS)

    def addresses(self) -> tuple[str, tuple[str, ...]]:
        return "127.0.0.1", ("127.0.0.1",)

    def submit(self, bootstrap: Any, count: int, ended: Any) -> None:
        import msgspec

        if self._process is None:
            context = multiprocessing.get_context("spawn")
            args = (msgspec.msgpack.encode(bootstrap), count, self._theirs)
            self._process = context.Process(target=agents, args=args, daemon=True)
            self._process.start()

    def wait(self) -> dict[str, float]:
        if not self._ours.poll(120):
            raise RuntimeError("the simulated group was not formed within 120 s")
        return dict(json.loads(self._ours.recv()))

    def end(self) -> None:
        self._process.kill()
        self._process.join()

    def cancel(self, ask: int) -> None:
        """Nothing is pending."""

    def evict(self, task: int, pid: int) -> None:
        """There is no process."""

    def why_missing(self, ask: int) -> str:
        return "simulated agents are slow"

    def others_wait(self) -> bool:
        return False

    def leaving(self, tasks: frozenset[int]) -> dict[int, str]:
        return {}

    def gone(self) -> str:
        return ""

    def close(self) -> None:
        """Ended by ``end``."""


def agents(data: bytes, count: int, pipe: Connection) -> None:
    """The other process: connect all, tell when the last one had registered and had its assignment, beat."""
    import asyncio

    from hopsml.cluster.agent import decode_bootstrap

    asyncio.run(_agents(decode_bootstrap(data), count, pipe))


async def _agents(bootstrap: Any, count: int, pipe: Connection) -> None:
    import asyncio

    from hopsml.cluster import protocol
    from tools.simulated_agent import client_tls, connected, hello

    tls = client_tls(bootstrap.certificate)
    registered: list[float] = []
    assigned: list[float] = []
    beat = protocol.encode(protocol.Heartbeat())

    async def one(index: int) -> None:
        async with connected(bootstrap.addresses[0], bootstrap.certificate, bootstrap.token, tls) as connection:
            await connection.send(protocol.encode(hello(bootstrap.ask, index)))
            assert isinstance(protocol.decode_for_agent(await connection.recv(decode=False)), protocol.Welcome)
            registered.append(time.monotonic())
            while not isinstance(protocol.decode_for_agent(await connection.recv(decode=False)), protocol.Launch):
                pass
            assigned.append(time.monotonic())
            if len(assigned) == count:
                pipe.send(json.dumps({"registered": max(registered), "assigned": max(assigned)}))
            receiving = asyncio.create_task(_discard(connection))
            while not receiving.done():
                await asyncio.sleep(BEATS_S)
                await connection.send(beat)

    await asyncio.gather(*(one(index) for index in range(count)))


async def _discard(connection: Any) -> None:
    async for _ in connection:
        pass
