"""Memory that hopsml adds to the worker and Spark, in pages that no other process shares.

One session per round. The agent runs inside Spark's Python worker, so its cost is the size of that process with an
agent less its size with an idle Python task. The fork server is one that imports by itself, as on any machine but the
driver's, while idle, before a worker shares its pages. The coordinator's cost is the driver after its first run less
the driver before ``import hopsml``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil

from benchmarks import first_step, unique_memory
from benchmarks.figures import Report, measured
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.peers.base import SCRIPTS
from benchmarks.peers.hopsml import PEER
from benchmarks.session import Session
from benchmarks.unique_memory import Unique

WORKERS = 2
SETTLE_S = 30.0
AGENT, SERVER, COORDINATOR = "memory.agent_mb", "memory.fork_server_private_mb", "memory.coordinator_mb"
FULL, SHARED = "memory.fork_server_full_mb", "memory.zygote_and_servers_mb"
WHOLE_AGENT, WHOLE_DRIVER = "memory.agent_uss_mb", "memory.driver_uss_mb"


def run(options: Options) -> Report:
    """Measure agent, fork server and coordinator, and whole processes; the peers have no such processes to compare."""
    names = (AGENT, SERVER, COORDINATOR, FULL, SHARED, WHOLE_AGENT, WHOLE_DRIVER)
    values: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.rounds_of(3, 1)):
        lean, full = fork_servers(PEER.python(options.say)), fork_servers(Path(sys.executable))
        one = {**one_session(), SERVER: lean, FULL: full}
        options.say(f"round {number + 1}: {one}")
        for name, found in one.items():
            values[name] += found
    beside = {AGENT: "Spark's Python worker with an idle task", COORDINATOR: "the driver before import hopsml"}
    return Report(
        [measured(name, found, "MB", beside.get(name, "")) for name, found in values.items()],
        [
            "memory: MB are MiB; agent: the larger of idle and while its worker trains; agent and coordinator: dirty pages "
            "more than before, and clean ones of files mapped since (benchmarks/unique_memory.py says why)",
            "memory.fork_server: with what hopsml[spark,tensorflow-cpu] brings; full: in the project's own environment, "
            "where Keras, which TensorFlow imports, finds pandas, scikit-learn, scipy, Pillow and IPython and imports them",
            f"memory.zygote_and_servers: on the driver's own machine, one import and the {WORKERS} fork servers that "
            "share it: what they have written, each page counted once",
        ],
    )


def one_session() -> dict[str, list[float]]:
    """Return the figures of one driver with two executors."""
    with temporary_folder() as name, Session(Path(name), WORKERS) as session:
        idle = _idle_python_workers(session)
        before = unique_memory.of_process(session.driver)
        session.ask("import")
        session.ask("call", folder=_folder(session, "first"), workers=WORKERS)
        after = unique_memory.of_process(session.driver)
        found = session.ask("agents")
        agents = found["pids"]
        if unknown := set(agents) - set(idle):
            raise RuntimeError(
                f"Spark did not use its Python workers again for the agents {unknown}: nothing to compare"
            )
        shared = unique_memory.of_family([found["zygote"], *_children(found["zygote"])])
        resting = {pid: unique_memory.of_process(pid) for pid in agents}
        training = _while_training(session, agents)
        return {
            AGENT: [max(resting[pid].added_mb(idle[pid]), training[pid].added_mb(idle[pid])) for pid in agents],
            COORDINATOR: [after.added_mb(before)],
            SHARED: [shared / unique_memory.MIB],
            WHOLE_AGENT: [training[pid].total_mb for pid in agents],
            WHOLE_DRIVER: [after.total_mb],
        }


def fork_servers(python: Path) -> list[float]:
    """Return the sizes in MiB of two separate fork servers in the environment of this interpreter."""
    with temporary_folder() as name:
        folder = Path(name)
        report = folder / "pids.json"
        with Launched([Command([str(python), str(SCRIPTS / "fork_servers.py"), str(report)])], folder) as launched:
            launched.wait_until(lambda: report.exists() and bool(report.read_text()), SETTLE_S, "two fork servers")
            return [unique_memory.of_process(pid).total_mb for pid in json.loads(report.read_text())]


def _children(pid: int) -> list[int]:
    children = [child.pid for child in psutil.Process(pid).children()]
    if len(children) != WORKERS:
        raise RuntimeError(f"the zygote has {len(children)} fork servers instead of {WORKERS}: nothing to measure")
    return children


def _idle_python_workers(session: Session) -> dict[int, Unique]:
    """Return the memory of Spark's Python workers, each with a plain task that waits, by pid."""
    release = session.folder / "release"
    session.tell("idle", workers=WORKERS, release=str(release))
    session.wait_until(lambda: len(list(session.folder.glob("release.*"))) == WORKERS, SETTLE_S, "two idle tasks")
    sizes = {int(path.suffix[1:]): _steady(int(path.suffix[1:])) for path in session.folder.glob("release.*")}
    release.touch()
    session.answer()
    return sizes


def _while_training(session: Session, agents: list[int]) -> dict[int, Unique]:
    folder = Path(_folder(session, "second"))
    held = folder / "go on"
    session.tell("call", folder=str(folder), workers=WORKERS, steps=20, held=str(held))
    session.wait_until(lambda: len(first_step.times(folder)) == WORKERS, SETTLE_S, "the first step")
    sizes = {pid: _steady(pid) for pid in agents}
    held.touch()
    session.answer()
    return sizes


def _steady(pid: int) -> Unique:
    """Return the memory of a process once it no longer grows by a whole MiB between two checks."""
    deadline = time.monotonic() + SETTLE_S
    found = unique_memory.of_process(pid)
    while time.monotonic() < deadline:
        time.sleep(0.2)
        last, found = found, unique_memory.of_process(pid)
        if abs(found.total_mb - last.total_mb) < 1:
            break
    return found


def _folder(session: Session, name: str) -> str:
    folder = session.folder / name
    folder.mkdir()
    return str(folder)
