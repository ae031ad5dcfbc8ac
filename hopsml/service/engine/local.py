"""Engine that runs applications as processes of this machine.

An application is a driver under a supervisor (``local_driver``); both outlive the service. The state of an application is
stored in a folder named after its tag, so that a restarted service, or another one, finds it; a tag is run once. Folders
of ended applications are moved, so that the cost of a poll does not depend on their number.

    <folder>/<tag>          an application that runs, or whose end is not stored yet
    <folder>/.ended/<tag>   an application that has ended
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hopsml.core import tracebacks
from hopsml.core.states import Lifecycle
from hopsml.engines import local_driver
from hopsml.engines.local_driver import OUTPUT, DriverOrder, DriverStatus
from hopsml.service.driver import SCRIPT
from hopsml.service.engine.base import (
    INTERRUPTED,
    EngineState,
    LogPiece,
    NodeSeen,
    SlotChannel,
    Submissions,
    SubmitOrder,
)
from hopsml.service.lifecycle.record import EngineSnapshot, SeenApplication
from hopsml.service.scheduler.resources import Resources
from hopsml.submission import environment
from hopsml.submission.spark_submit import Waiter

log = logging.getLogger("hopsml.service")

NODE = "this-machine"
DRIVER_MIB = 512
LAST_BYTES = 1 << 16  # of a log, from its end: a traceback may be long
ASIDE = ".ended"
TRACEBACK = "Traceback (most recent call last):"
RUN_DIRECTORY = "Run directory: "  # in the error text of a run, below its cause


class LocalEngine:
    """Engine that runs drivers on this machine."""

    def __init__(self, folder: Path, capacity: Resources, project_url: str = "") -> None:
        """Initialize the engine and create its folders.

        Args:
            folder: Folder for the state of applications.
            capacity: Resources of this machine that jobs may use.
            project_url: Storage through which drivers receive their numbers of slots; "" if they are fixed, as for
                Spark's own workers.
        """
        self.resizes = bool(project_url)
        self._talk = SlotChannel(project_url)
        self._folder, self._capacity = folder, capacity
        self._submissions = Submissions()
        self._over: dict[str, tuple[SeenApplication, ...]] = {}  # ended, but not stored yet; not read again until then
        self._asked: set[str] = set()  # a second SIGINT would abort the ending that the first one started
        for each in (folder, folder / ASIDE):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)

    def poll(self) -> EngineState:
        """Read the folders of all applications whose end is not stored yet."""
        submitting, refused = self._submissions.state()
        found = dict(self._over)
        with os.scandir(self._folder) as entries:
            for name in (entry.name for entry in entries if entry.name != ASIDE and entry.name not in self._over):
                if (seen := _seen(self._folder / name)) is not None:
                    if seen.state.is_final:
                        self._talk.forget(name)
                        self._over[name] = (seen,)
                    else:
                        seen = replace(seen, answer=self._talk.newest_answer(name))
                    found[name] = (seen,)
        return EngineState(EngineSnapshot(found, submitting, refused), (NodeSeen(NODE, self._capacity, Resources()),))

    def submit(self, order: SubmitOrder) -> None:
        """Start the driver of a task, on a thread."""
        self._submissions.begin(order.tag, lambda waiter: self._start(order, waiter))

    def _start(self, order: SubmitOrder, waiter: Waiter) -> None:
        """Start the driver of a launch under its supervisor."""
        planned = order.plan()
        folder = self._folder / order.tag
        if waiter.wait(0.0) is not None:
            return
        if (self._folder / ASIDE / order.tag).exists():
            raise FileExistsError(f"{order.tag} has run before")
        folder.mkdir(mode=0o700)
        variables = {**environment(planned.profile), **order.variables}
        local_driver.start(folder, DriverOrder(planned.command, variables, masks_interrupt=_is_driver(planned.command)))

    def withdraw(self, tag: str) -> None:
        """Abort a submission that has not started its driver yet."""
        self._submissions.withdraw(tag)

    def request_end(self, application_id: str) -> None:
        """Request an application to end in order, by one SIGINT: its runs are cancelled, and store their results."""
        if application_id not in self._asked:
            self._asked.add(application_id)
            local_driver.signal_driver(self._folder / application_id, signal.SIGINT)

    def grant_slots(self, application_id: str, slots: int) -> None:
        """Grant an application this number of slots, by a file that its driver polls."""
        if self.resizes:
            self._talk.write_slots(application_id, slots)

    def kill(self, application_id: str) -> None:
        """Kill an application by SIGKILL to its driver's process group; agents and workers end with it."""
        local_driver.signal_driver(self._folder / application_id, signal.SIGKILL)

    def forget_granted_slots(self) -> None:
        """Drop the cached slot numbers; the next ones are written even if they are unchanged."""
        self._talk.forget_all()

    def forget(self, tag: str) -> None:
        """Move the launch's folder to the folder of ended ones."""
        self._submissions.forget(tag)
        if self._over.pop(tag, None) is not None:
            self._asked.discard(tag)
            try:
                (self._folder / tag).rename(self._folder / ASIDE / tag)
            except OSError as error:  # the next poll reads it again
                log.warning("the folder of %s cannot be moved aside: %s", tag, error)

    def remove(self, before_s: float, may: Callable[[str], bool]) -> int:
        """Delete the folders of ended launches, with the logs of their drivers."""
        removed = 0
        with os.scandir(self._folder / ASIDE) as entries:
            old = [entry.name for entry in entries if entry.stat(follow_symlinks=False).st_mtime < before_s]
        for name in filter(may, old):
            shutil.rmtree(self._folder / ASIDE / name, ignore_errors=True)
            removed += 1
        return removed

    def worker(self, each: Resources) -> Resources:
        """Return the requested size, which a local worker occupies unchanged."""
        return each

    def driver(self) -> Resources:
        """Return the resources of a driver: memory and no core, because it is idle most of the time."""
        return Resources(memory_mib=DRIVER_MIB)

    def log(self, application_id: str, offset: int, limit: int) -> LogPiece | None:
        """Read a part of what the driver has printed."""
        for folder in (self._folder, self._folder / ASIDE, self._folder):  # the folder may be moved in between
            if (found := read_log_piece(folder / application_id / OUTPUT, offset, limit)) is not None:
                return found
        return None

    def close(self) -> None:
        """End this engine's threads; drivers and their supervisors continue to run."""
        self._submissions.abort_all()
        self._talk.close()


def read_log_piece(path: Path, offset: int, limit: int) -> LogPiece | None:
    """Read a part of a log file as ``local_driver.read_part``; None if it cannot be read."""
    found = local_driver.read_part(path, offset, limit)
    return None if found is None else LogPiece(*found)


def _seen(folder: Path) -> SeenApplication | None:
    """Return the application of a folder; None if its driver has not been started yet."""
    status = local_driver.status_of(folder)
    if status is None or status.state is Lifecycle.STARTING:
        return None
    if status.state is Lifecycle.LOST:
        why = "the machine was started anew, or somebody killed all of it"
        return SeenApplication(folder.name, Lifecycle.STOPPED, why)
    told = _told(folder, status) if status.exit_status else ""
    was_interrupted = status.exit_status in (INTERRUPTED, -signal.SIGINT)
    return SeenApplication(folder.name, status.state, told, was_interrupted=was_interrupted)


def _told(folder: Path, ended: DriverStatus) -> str:
    """Return the cause of an application's end, from its driver's last output."""
    if ended.problem:
        return ended.problem
    found = local_driver.read_part(folder / OUTPUT, -LAST_BYTES, LAST_BYTES)  # None: it may have been deleted
    said = end_reason_line(found[0].decode(errors="replace")) if found is not None else ""
    return f"exit status {ended.exit_status}" + (f": {said[:500]}" if said else "")


def end_reason_line(printed: str) -> str:
    """Return the line of a log that states why its driver ended: the last line that is neither a remedy nor a hint.

    If the log ends with a traceback and the hint that frames are hidden, this is the first line of the traceback's error.
    If it ends with the error of a run, this is the line with its cause, which a traceback, the worker's last lines and
    the run directory follow.
    """
    lines = [line for line in printed.splitlines() if line.strip()]
    if lines and lines[-1].startswith(tracebacks.HINTS):
        lines = _without_rest_of_error(lines)
    told = [line.strip() for line in lines if not line.strip().startswith(("Remedy:", *tracebacks.HINTS))]
    if told and told[-1].startswith(RUN_DIRECTORY):
        told = [line for line in told if line.startswith("hopsml: ")] or told
    return told[-1].removeprefix("hopsml: ") if told else ""


def _without_rest_of_error(lines: list[str]) -> list[str]:
    """Return the lines up to the first line of the error that ends the last traceback; all if there is none."""
    begins = [number for number, line in enumerate(lines) if line.startswith(TRACEBACK)]
    of_errors = (
        number for number in range(begins[-1] + 1 if begins else len(lines), len(lines)) if lines[number][0] != " "
    )
    return lines[: next(of_errors, len(lines)) + 1]


def _is_driver(command: Sequence[str]) -> bool:
    """Return True if the command runs a task's driver directly in Python, without a JVM before it."""
    return command[0] == "/usr/bin/env" and str(SCRIPT) in command


def machine_resources(gpus: int) -> Resources:
    """Return the resources of this machine: all cores, all memory and the given number of GPUs."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Resources(gpus, len(os.sched_getaffinity(0)), memory >> 20)
