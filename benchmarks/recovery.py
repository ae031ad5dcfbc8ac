"""Time from the loss of a worker to the next step that all members finish, for hopsml and for peers that recover.

hopsml uses a running Spark session. In all of them the same process is killed: one that trains. The launch of bare
TensorFlow in the same round shows what a new start would have cost.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from benchmarks import launch, peers, steps_read
from benchmarks.figures import Report, measured, ratio_of, worst_of
from benchmarks.launched import Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.scripts.elastic_job import COMMIT_EVERY
from benchmarks.session import Session
from benchmarks.spread import spread_of
from benchmarks.steps_read import Log

TIMEOUT_S = 90.0
KILLS = 3  # per session; the median counts
WORKERS = 2


def run(options: Options) -> Report:
    """Measure all figures of the recovery table."""
    extra: dict[str, list[float]] = {"executor": [], "grow": [], "lost": []}
    recovering = [name for name in peers.RECOVERING if options.wants(name.removesuffix("-elastic"))]
    for name in recovering:
        peers.find(name).python(options.say)  # created in advance, so that no turn waits for packages
    candidates: dict[str, Callable[[], float]] = {
        "bare": partial(launch.from_nothing, "bare", options),
        "hopsml": partial(_ours, WORKERS, extra),
        **{name: once_only(partial(_of_peer, name, options)) for name in recovering},
    }
    times = alternate(options.rounds_of(3, 1), candidates, options.say)
    four = alternate(options.rounds_of(3, 1), {"hopsml, 4 workers": partial(_ours, 4, None)}, options.say)
    beside = "TensorFlow by hand, its launch"
    report = Report(
        [
            ratio_of("recovery.worker_ratio", times["hopsml"], times["bare"], beside),
            ratio_of("recovery.executor_ratio", extra["executor"], times["bare"], beside),
            measured("recovery.grow_s", extra["grow"], "s"),
            worst_of("recovery.steps_lost_over_commit", [lost / COMMIT_EVERY for lost in extra["lost"]], "ratio"),
            measured("recovery.worker_s", times["hopsml"], "s", beside, times["bare"]),
            measured("recovery.worker_of_4_s", next(iter(four.values())), "s"),
            measured("recovery.executor_s", extra["executor"], "s", beside, times["bare"]),
        ],
        [
            f"recovery: kill -9 to the next step of all members; a commit each {COMMIT_EVERY} steps; grow: the pause in "
            "the training when an executor's successor joins; executor: kill -9 of its JVM, the other member steps on; "
            "steps lost: at the worst of all kills of a worker"
        ],
    )
    for name in [name for name in recovering if math.isinf(max(times[name]))]:
        recovering.remove(name)
        report.notes.append(f"recovery: {peers.find(name).title} made no step within {TIMEOUT_S:g} s after a kill")
    if recovering:
        fastest = min(recovering, key=lambda name: spread_of(times[name]).median)
        title = peers.find(fastest).title
        report.figures.insert(1, ratio_of("recovery.peer_ratio", times["hopsml"], times[fastest], title))
        for name in recovering:
            figure = f"recovery.{name.removesuffix('-elastic').replace('-', '_')}_s"
            report.figures.append(measured(figure, times[name], "s", "hopsml", times["hopsml"]))
    return report


def _ours(workers: int, extra: dict[str, list[float]] | None) -> float:
    """Return the median recovery over some kills of a worker in one session; with ``extra``, kill an executor, too."""
    with temporary_folder() as name, Session(Path(name), workers) as session:
        folder = session.folder / "elastic"
        folder.mkdir()
        least = 1 if extra is not None else workers
        session.ask("elastic", folder=str(folder), least=least, most=workers)
        _wait(session, lambda: _at_work(folder, workers), f"{workers} workers at work")
        seconds = []
        for number in range(KILLS):
            _settle(session, folder, workers)
            victim = _newest(folder)[-1 - number % 2]
            seconds.append(_kill_and_wait(session, folder, victim.pid, workers))
            if extra is not None:
                logs = steps_read.read(folder)
                extra["lost"].append(float(steps_read.repeated(logs, victim.generation, victim.generation + 1)))
        if extra is not None:
            _settle(session, folder, workers)
            extra["executor"].append(_kill_executor(session, folder))
            extra["grow"].append(_growth(session, folder, workers))
        return spread_of(seconds).median


def _of_peer(name: str, options: Options) -> float:
    """Return the median recovery of a peer after the same kills."""
    peer = peers.find(name)
    with temporary_folder() as place:
        folder = Path(place)
        with Launched(peer.job(folder, WORKERS, 0, options.say), folder) as launched:
            _wait(launched, lambda: _at_work(folder, WORKERS), f"{WORKERS} workers of {name} at work")
            seconds = []
            for number in range(KILLS):
                _settle(launched, folder, WORKERS)
                try:
                    seconds.append(_kill_and_wait(launched, folder, _newest(folder)[-1 - number % 2].pid, WORKERS))
                except RuntimeError as error:
                    options.say(f"{name}: {str(error).splitlines()[0]}")
                    return math.inf
            return spread_of(seconds).median


def once_only(measure: Callable[[], float]) -> Callable[[], float]:
    """Return a measurement that is not repeated once it was infinite: the peer did not recover."""
    found: list[float] = []

    def measured_or_lost() -> float:
        if not any(map(math.isinf, found)):
            found.append(measure())
        return found[-1]

    return measured_or_lost


# ------------------------------------------------------------------------------------------ what is done


def _kill_and_wait(launched: Launched, folder: Path, pid: int, workers: int) -> float:
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return _after(launched, folder, killed, workers) - killed


def _after(launched: Launched, folder: Path, since: float, workers: int) -> float:
    """Return the time at which all of ``workers`` processes had made their first step after ``since``."""
    _wait(
        launched,
        lambda: steps_read.next_common_step(steps_read.read(folder), since, workers) is not None,
        f"a step of {workers} workers after a kill",
    )
    found = steps_read.next_common_step(steps_read.read(folder), since, workers)
    assert found is not None
    return found


def _kill_executor(session: Session, folder: Path) -> float:
    agent = psutil.Process(max(session.ask("agents")["pids"]))  # an agent of either member
    executor = next(parent for parent in agent.parents() if "java" in parent.name())
    killed = time.monotonic()
    executor.kill()
    return _after(session, folder, killed, 1) - killed


def _growth(session: Session, folder: Path, workers: int) -> float:
    """Return for how many seconds the training paused when the group became complete again."""
    _wait(session, lambda: len(_newest(folder)) == workers, "the group to be whole again")
    last = max(log.generation for log in steps_read.read(folder))
    return steps_read.pause(steps_read.read(folder), last - 1, last)


def _newest(folder: Path) -> list[Log]:
    """Return the logs of the newest generation, by rank: of living processes with the highest generation."""
    logs = [log for log in steps_read.read(folder) if psutil.pid_exists(log.pid)]
    last = max((log.generation for log in logs), default=0)
    return sorted((log for log in logs if log.generation == last), key=lambda log: log.rank)


def _at_work(folder: Path, workers: int) -> bool:
    return len(_newest(folder)) >= workers


def _settle(launched: Launched, folder: Path, workers: int) -> None:
    """Wait until all workers have made some steps and are between two commits."""
    enough = 2 * COMMIT_EVERY + COMMIT_EVERY // 2

    def stepping() -> bool:
        newest = _newest(folder)
        return len(newest) >= workers and all(len(log.steps) >= enough for log in newest)

    _wait(launched, stepping, f"{enough} steps of {workers} workers")


def _wait(launched: Launched, met: Callable[[], bool], what: str) -> None:
    launched.wait_until(met, TIMEOUT_S, what)
