"""Processes that remain ten seconds after kill -9 of the driver while all workers train: hopsml's and each peer's.

The driver is the Python process that runs the user's script. Every process is counted that carries the mark of the
launch in its environment, whatever its parent is by then.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from benchmarks import first_step, peers
from benchmarks.figures import Report, measured, worst_of
from benchmarks.launched import POLL_S, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate, forgiving

WORKERS = 2
AFTER_S = 10.0
PEERS = ("hopsml", "spark-tensorflow-distributor", "torch-distributor", "tensorflowonspark", "ray-train")


def run(options: Options) -> Report:
    """Count the processes that hopsml leaves, and for comparison the peers'."""
    names = [name for name in PEERS if name == "hopsml" or options.wants(name)]
    for name in names:
        peers.find(name).python(options.say)
    report = Report()
    candidates: dict[str, Callable[[], tuple[int, float] | None]] = {}
    for name in names:
        turn = partial(orphans, name, options)
        candidates[name] = turn if name == "hopsml" else forgiving(turn, report.note_of(peers.find(name).title))
    for name, results in alternate(options.rounds_of(3, 1), candidates, options.say).items():
        suffix = "" if name == "hopsml" else f"_{name.replace('-', '_')}"
        if found := [result for result in results if result is not None]:
            report.figures += [
                worst_of(f"teardown.orphans{suffix}", [float(count) for count, _ in found], "processes"),
                measured(f"teardown.last_gone{suffix}_s", [gone for _, gone in found], "s"),
            ]
    report.notes.append(
        f"teardown: last gone is {AFTER_S:g} s where something was left then; orphans: of the worst round"
    )
    return report


def orphans(name: str, options: Options) -> tuple[int, float]:
    """Return the number of processes ``AFTER_S`` after the kill, and seconds until the last had ended.

    The seconds are at most ``AFTER_S``.
    """
    peer = peers.find(name)
    with temporary_folder() as temporary:
        folder = Path(temporary)
        with Launched(peer.job(folder, WORKERS, 0, options.say), folder) as launched:
            first_step.wait(launched, folder, WORKERS)
            os.kill(driver_of(launched, peer.script), signal.SIGKILL)
            killed = time.monotonic()
            gone = AFTER_S
            while time.monotonic() < killed + AFTER_S:
                if not launched.alive():
                    gone = time.monotonic() - killed
                    break
                time.sleep(POLL_S)
            return len(launched.alive()), round(gone, 2)


def driver_of(launched: Launched, script: str) -> int:
    """Return the pid of the Python process that runs the user's script.

    The JVM of spark-submit has the script among its arguments, too, and is not meant.
    """
    found = [
        process
        for process in map(psutil.Process, launched.alive())
        if "python" in Path(process.cmdline()[0]).name and any(word.endswith(script) for word in process.cmdline()[1:3])
    ]
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} processes run {script}; one was expected:\n{launched.tail()}")
    return found[0].pid
