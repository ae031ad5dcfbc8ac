"""The coordinator alone, with 1 024 simulated agents in another process: start-up of a group, heartbeats.

The start-up is measured from the first agent's first byte to the last one's assignment: TCP, TLS, the token, the
preflight as in a run by default, and the decisions of pool and group during that time.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks import light_agents
from benchmarks.figures import Report, measured
from benchmarks.options import Options

AGENTS = 1024
BEATING_S = 8.0
SETTLING_S, SETTLED_SHARE, SETTLING_MOST_S = 0.5, 0.5, 60.0  # heartbeats alone take a fifth of a core


def run(options: Options) -> Report:
    """Measure some group start-ups, then the share of a core that heartbeats use."""
    rounds = []
    for _ in range(options.rounds_of(3, 1)):
        rounds.append(one_round())
        options.say(f"scale: {rounds[-1]}")
    return Report(
        [
            measured("scale.form_1024_s", [one.formed_s for one in rounds], "s"),
            measured("scale.heartbeat_core_share", [one.heartbeat_share for one in rounds], "ratio"),
            measured("scale.connect_1024_s", [one.connected_s for one in rounds], "s"),
            measured("scale.assign_1024_s", [one.assigned_s for one in rounds], "s"),
            measured("scale.form_1024_coordinator_s", [one.coordinator_processor_s for one in rounds], "s"),
            measured("scale.form_1024_agents_s", [one.agents_processor_s for one in rounds], "s"),
        ],
        [
            f"scale: {AGENTS} simulated agents over TLS on loopback, all in one process that has a core of this machine "
            "for itself, while the coordinator has the others; form: from the first connection to the last assignment, "
            "with the preflight as by default (warn); connect: to the last registration; assign: from that to the last "
            "assignment; coordinator, agents: the processor's time that each of the two processes takes for it. The "
            "agents' half of the handshakes is the longer one, and on a cluster each makes its own"
        ],
    )


@dataclass(frozen=True)
class Round:
    """Times of one round.

    ``formed_s`` is from the first connection to the last assignment; ``connected_s`` and ``assigned_s`` are its parts
    before and after the last registration. Both sides' processor time follows. ``heartbeat_share`` is the share of a
    core while agents only send heartbeats.
    """

    formed_s: float
    connected_s: float
    assigned_s: float
    coordinator_processor_s: float
    agents_processor_s: float
    heartbeat_share: float


def one_round() -> Round:
    """Measure one group start-up, then some seconds of heartbeats."""
    from hopsml.cluster.driver.active_run import RunRequest
    from hopsml.cluster.driver.coordinator import Coordinator
    from hopsml.cluster.shared.spec import ElasticGroup, RunSpec

    backend = _Backend()
    coordinator = Coordinator(backend, lease_s=60.0)
    coordinator.start()
    try:
        spec = RunSpec(group=ElasticGroup(size=AGENTS, min_size=AGENTS, start_timeout_s=120, heartbeat_timeout_s=10))
        began = _cpu_s()
        coordinator.start_run(RunRequest("scale", spec, payload=bytes(1000), run_url="file:///nowhere"))
        times = backend.wait()
        formed, used = _cpu_s(), _settled_cpu_s()
        time.sleep(BEATING_S)
        return Round(
            formed_s=times["assigned"] - times["connecting"],
            connected_s=times["registered"] - times["connecting"],
            assigned_s=times["assigned"] - times["registered"],
            coordinator_processor_s=formed - began,
            agents_processor_s=times["processor"],
            heartbeat_share=(_cpu_s() - used) / BEATING_S,
        )
    finally:
        coordinator.cancel("scale", "measured")
        backend.end()
        coordinator.close()


def _settled_cpu_s() -> float:
    """Return the processor seconds of this process once the last preflight results are processed."""
    deadline = time.monotonic() + SETTLING_MOST_S
    used = _cpu_s()
    while time.monotonic() < deadline:
        time.sleep(SETTLING_S)
        before, used = used, _cpu_s()
        if used - before < SETTLED_SHARE * SETTLING_S:
            return used
    raise RuntimeError(f"the coordinator is still busy {SETTLING_MOST_S:g} s after the group was formed")


def _cpu_s() -> float:
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)


class _Backend:
    """Backend with all agents of a request in one separate process, apart from the coordinator's interpreter."""

    name, restarts_agents, grows, gpus_per_agent, cores_per_agent = "simulated", False, False, 0, 0

    def __init__(self) -> None:
        self._ours, self._theirs = multiprocessing.get_context("spawn").Pipe()
        self._process: Any = None

    def capacity(self) -> Any:
        from hopsml.cluster.driver.backends.base import Capacity

        return Capacity(AGENTS, "simulated", AGENTS)

    def addresses(self) -> tuple[str, tuple[str, ...]]:
        return "127.0.0.1", ("127.0.0.1",)

    def submit(self, bootstrap: Any, count: int, ended: Any, slot_ended: Any) -> None:
        import msgspec

        if self._process is None:
            context = multiprocessing.get_context("spawn")
            args = (msgspec.msgpack.encode(bootstrap), count, self._theirs)
            self._process = context.Process(target=light_agents.run, args=args, daemon=True)
            self._process.start()
            self._theirs.close()  # if that process ends early, waiting for it ends, too

    def wait(self) -> dict[str, float]:
        if not self._ours.poll(120):
            raise RuntimeError("the simulated group was not formed within 120 s")
        return dict(json.loads(self._ours.recv()))

    def end(self) -> None:
        self._process.kill()
        self._process.join()

    def cancel(self, ask: int) -> None:
        """Do nothing, as no request is pending."""

    def evict(self, task: int, pid: int) -> None:
        """Do nothing, as a simulated task has no process."""

    def why_missing(self, ask: int) -> str:
        return "simulated agents are slow"

    def is_contended(self) -> bool:
        return False

    def other_work(self) -> str:
        return ""

    def leaving_tasks(self, tasks: frozenset[int]) -> dict[int, Any]:
        return {}

    def why_lost(self, task: int, pid: int) -> str:
        return ""

    def why_unavailable(self) -> str:
        return ""

    def close(self) -> None:
        """Do nothing, as ``end`` kills the agents."""
