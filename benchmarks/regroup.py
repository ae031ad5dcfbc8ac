"""Time from the loss of a worker to the next step of all others, which continue in place; and torchrun's.

Over hopsml's collective, with a state of 100 MB. The killed worker is any but the chief. Its replacement joins soon,
which ends no process: the pause of the others at that moment is measured, too.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import recovery, steps_read
from benchmarks.figures import Report, measured, ratio_of
from benchmarks.launched import temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.session import Session
from benchmarks.spread import spread_of
from benchmarks.steps_read import Log

STATE_MB = 100
KILLS = 5  # per session; the median counts
PEER = "torchrun"


def run(options: Options) -> Report:
    """Measure groups that continue in place, with two workers and with four."""
    pauses: dict[int, list[float]] = {2: [], 4: []}
    candidates: dict[str, Callable[[], float]] = {
        "2 workers": partial(_ours, 2, pauses[2]),
        "4 workers": partial(_ours, 4, pauses[4]),
    }
    if options.wants(PEER):
        candidates[PEER] = recovery.once_only(partial(recovery._of_peer, PEER, options))
    times = alternate(options.rounds_of(3, 1), candidates, options.say)
    two, four = times["2 workers"], times["4 workers"]
    slower = _slower(two, four)
    report = Report(
        [
            measured("collective.reform_s", slower, "s"),
            measured("collective.reform_n2_s", two, "s"),
            measured("collective.reform_n4_s", four, "s"),
            measured("collective.grow_pause_s", _slower(*pauses.values()), "s"),
            measured("collective.grow_pause_n2_s", pauses[2], "s"),
            measured("collective.grow_pause_n4_s", pauses[4], "s"),
        ],
        [
            f"regroup: kill -9 of a worker that is not the chief to the next step of all others in their processes, a state "
            f"of {STATE_MB} MB; grow_pause: its successor comes to them, from the last step of one without it to its first "
            "with it, of the one that waits longest; without a number of workers, the slower of two and four"
        ],
    )
    if PEER in times:
        report.figures.append(ratio_of("collective.recovery_ratio", two, times[PEER], PEER))
    return report


def _slower(*of_workers: list[float]) -> list[float]:
    return max(of_workers, key=lambda values: spread_of(values).median)


def _ours(workers: int, pauses: list[float]) -> float:
    """Return the median over some kills in one session; append the median pause of the growths after them."""
    with temporary_folder() as name, Session(Path(name), workers) as session:
        folder = session.folder / "elastic"
        folder.mkdir()
        session.ask("elastic", folder=str(folder), least=1, most=workers, implementation="hopsml", ballast_mb=STATE_MB)
        seconds, growths = [], []
        for number in range(KILLS + 1):
            recovery._wait(session, lambda: recovery._at_work(folder, workers), f"{workers} workers at work")
            recovery._settle(session, folder, workers)
            if number:
                growths.append(_growth(folder))
            if number < KILLS:
                seconds.append(_kill_and_wait(session, folder, workers))
        pauses.append(spread_of(growths).median)
        return spread_of(seconds).median


def _growth(folder: Path) -> float:
    """Return the seconds for which the members paused when the last replacement joined."""
    logs = steps_read.read(folder)
    *_, before, after = sorted({log.generation for log in logs})
    return steps_read.stood_still(logs, before, after)


def _kill_and_wait(session: Session, folder: Path, workers: int) -> float:
    """Return seconds from the kill to the first step that all other workers have made without the killed one."""
    *_, victim = recovery._newest(folder)
    killed = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)

    def found() -> list[Log]:
        return [log for log in steps_read.read(folder) if log.generation == victim.generation + 1]

    recovery._wait(session, lambda: len(found()) >= workers - 1, f"a step of {workers - 1} workers after a kill")
    went_on = found()
    before = {log.pid for log in steps_read.read(folder) if log.generation == victim.generation}
    if not {log.pid for log in went_on} <= before:
        raise RuntimeError("the others did not go on in their processes")
    return max(min(log.steps.values()) for log in went_on) - killed
