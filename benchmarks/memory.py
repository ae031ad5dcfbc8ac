"""What hopsml adds in memory beside the worker and Spark: unique set size, the pages that no other process shares.

One session a round. The agent runs inside Spark's Python worker, so its cost is that very process with an agent in it
less the same process with an idle Python task; the fork server is measured while idle, before any worker shares its pages;
the coordinator is the driver after its first run less the driver before ``import hopsml``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks import first_step
from benchmarks.figures import Report, measured
from benchmarks.launched import temporary_folder
from benchmarks.options import Options
from benchmarks.session import Session

WORKERS = 2
MIB = 2**20
SETTLE_S = 30.0
FIGURES = ("memory.agent_mb", "memory.fork_server_private_mb", "memory.coordinator_mb")


def run(options: Options) -> Report:
    """The three figures; the peers have neither agents nor a coordinator that stay, so nothing stands beside them."""
    values: dict[str, list[float]] = {name: [] for name in (*FIGURES, "memory.fork_server_rss_mb")}
    for number in range(options.rounds_of(3, 1)):
        one = one_session()
        options.say(f"round {number + 1}: {one}")
        for name, found in one.items():
            values[name] += found
    beside = "Spark's Python worker with an idle task"
    return Report(
        [measured(name, found, "MB", beside if name == FIGURES[0] else "") for name, found in values.items()],
        ["memory: MB are MiB; agent: the larger of idle and while its worker trains"],
    )


def one_session() -> dict[str, list[float]]:
    """The figures of one driver with two executors."""
    with temporary_folder() as name, Session(Path(name), WORKERS) as session:
        idle = _idle_python_workers(session)
        before = unique_mb(session.driver)
        session.ask("import")
        session.ask("call", folder=_folder(session, "first"), workers=WORKERS)
        after = unique_mb(session.driver)
        servers = _fork_servers(session)
        agents = {server.ppid() for server in servers}
        lone = [unique_mb(server.pid) for server in servers]
        resting = {pid: unique_mb(pid) for pid in agents}
        training = _while_training(session, agents)
        return {
            FIGURES[0]: [max(resting[pid], training[pid]) - idle.get(pid, min(idle.values())) for pid in agents],
            FIGURES[1]: lone,
            FIGURES[2]: [after - before],
            "memory.fork_server_rss_mb": [server.memory_info().rss / MIB for server in servers],
        }


def unique_mb(pid: int) -> float:
    """Unique set size in MiB."""
    return float(psutil.Process(pid).memory_full_info().uss) / MIB


def _idle_python_workers(session: Session) -> dict[int, float]:
    """Unique set size of Spark's Python workers, each with a plain task that waits."""
    release = session.folder / "release"
    session.tell("idle", workers=WORKERS, release=str(release))
    session.wait_until(lambda: len(list(session.folder.glob("release.*"))) == WORKERS, SETTLE_S, "two idle tasks")
    pids = [int(path.suffix[1:]) for path in session.folder.glob("release.*")]
    sizes = {pid: unique_mb(pid) for pid in pids}
    release.touch()
    session.answer()
    return sizes


def _while_training(session: Session, agents: set[int]) -> dict[int, float]:
    folder = Path(_folder(session, "second"))
    held = folder / "go on"
    session.tell("call", folder=str(folder), workers=WORKERS, steps=20, held=str(held))
    session.wait_until(lambda: len(first_step.times(folder)) == WORKERS, SETTLE_S, "the first step")
    sizes = {pid: _steady(lambda pid=pid: unique_mb(pid)) for pid in agents}  # type: ignore[misc]
    held.touch()
    session.answer()
    return sizes


def _steady(look: Callable[[], float]) -> float:
    """The value once it no longer grows by a whole MiB between two looks."""
    deadline = time.monotonic() + SETTLE_S
    value = look()
    while time.monotonic() < deadline:
        time.sleep(0.2)
        last, value = value, look()
        if abs(value - last) < 1:
            break
    return value


def _fork_servers(session: Session) -> list[psutil.Process]:
    found = [psutil.Process(pid) for pid in session.alive()]
    return [process for process in found if "hopsml.cluster.fork_server" in process.cmdline()]


def _folder(session: Session, name: str) -> str:
    folder = session.folder / name
    folder.mkdir()
    return str(folder)
