"""What hopsml adds in memory beside the worker and Spark, in pages that no other process shares.

One session a round. The agent runs inside Spark's Python worker, so its cost is that very process with an agent in it
less the same process with an idle Python task; the fork server is measured while idle, before any worker shares its pages;
the coordinator is the driver after its first run less the driver before ``import hopsml``.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil

from benchmarks import environments, first_step, unique_memory
from benchmarks.figures import Report, measured
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.peers.base import SCRIPTS
from benchmarks.session import Session
from benchmarks.unique_memory import Unique

WORKERS = 2
SETTLE_S = 30.0
AGENT, SERVER, COORDINATOR = "memory.agent_mb", "memory.fork_server_private_mb", "memory.coordinator_mb"
ALONE = "memory.fork_server_alone_mb"
WHOLE_AGENT, WHOLE_SERVER, WHOLE_DRIVER = "memory.agent_uss_mb", "memory.fork_server_rss_mb", "memory.driver_uss_mb"


def run(options: Options) -> Report:
    """The three figures, and whole processes for comparison; the peers keep nothing that would stand beside them."""
    names = (AGENT, SERVER, COORDINATOR, ALONE, WHOLE_AGENT, WHOLE_SERVER, WHOLE_DRIVER)
    values: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.rounds_of(3, 1)):
        one = {**one_session(), ALONE: tensorflow_alone(options)}
        options.say(f"round {number + 1}: {one}")
        for name, found in one.items():
            values[name] += found
    beside = {AGENT: "Spark's Python worker with an idle task", COORDINATOR: "the driver before import hopsml"}
    return Report(
        [measured(name, found, "MB", beside.get(name, "")) for name, found in values.items()],
        [
            "memory: MB are MiB; agent: the larger of idle and while its worker trains; agent and coordinator: dirty pages "
            "more than before, and clean ones of files mapped since (benchmarks/unique_memory.py says why)",
            "memory.fork_server: TensorFlow imports Keras, which imports pandas, pyarrow, scikit-learn, scipy, Pillow and "
            "IPython where they are installed, as in the project's own environment; alone: where only TensorFlow is",
        ],
    )


def one_session() -> dict[str, list[float]]:
    """The figures of one driver with two executors."""
    with temporary_folder() as name, Session(Path(name), WORKERS) as session:
        idle = _idle_python_workers(session)
        before = unique_memory.of_process(session.driver)
        session.ask("import")
        session.ask("call", folder=_folder(session, "first"), workers=WORKERS)
        after = unique_memory.of_process(session.driver)
        servers = _fork_servers(session)
        agents = [server.ppid() for server in servers]
        if unknown := set(agents) - set(idle):
            raise RuntimeError(
                f"Spark did not use its Python workers again for the agents {unknown}: nothing to compare"
            )
        lone = [unique_memory.of_process(server.pid).total_mb for server in servers]
        resting = {pid: unique_memory.of_process(pid) for pid in agents}
        training = _while_training(session, agents)
        return {
            AGENT: [max(resting[pid].added_mb(idle[pid]), training[pid].added_mb(idle[pid])) for pid in agents],
            SERVER: lone,
            COORDINATOR: [after.added_mb(before)],
            WHOLE_AGENT: [training[pid].total_mb for pid in agents],
            WHOLE_SERVER: [server.memory_info().rss / unique_memory.MIB for server in servers],
            WHOLE_DRIVER: [after.total_mb],
        }


def tensorflow_alone(options: Options) -> list[float]:
    """Two fork servers in an environment that holds nothing but TensorFlow and what they need themselves."""
    python = environments.ensure("tensorflow-alone", options.say)
    with temporary_folder() as name:
        folder = Path(name)
        report = folder / "pids.json"
        with Launched([Command([str(python), str(SCRIPTS / "fork_servers.py"), str(report)])], folder) as launched:
            launched.wait_until(lambda: report.exists() and bool(report.read_text()), SETTLE_S, "two fork servers")
            return [unique_memory.of_process(pid).total_mb for pid in json.loads(report.read_text())]


def _idle_python_workers(session: Session) -> dict[int, Unique]:
    """Spark's Python workers, each with a plain task that waits, by pid."""
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
    """The process once it no longer grows by a whole MiB between two looks."""
    deadline = time.monotonic() + SETTLE_S
    found = unique_memory.of_process(pid)
    while time.monotonic() < deadline:
        time.sleep(0.2)
        last, found = found, unique_memory.of_process(pid)
        if abs(found.total_mb - last.total_mb) < 1:
            break
    return found


def _fork_servers(session: Session) -> list[psutil.Process]:
    found = [psutil.Process(pid) for pid in session.alive()]
    return [process for process in found if "hopsml.cluster.fork_server" in process.cmdline()]


def _folder(session: Session, name: str) -> str:
    folder = session.folder / name
    folder.mkdir()
    return str(folder)
