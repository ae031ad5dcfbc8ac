"""This machine as an engine: an application is a driver in a process group of its own, watched by a process beside it.

Both outlive the service. What is known of an application lies in a folder by its tag, so that a service that comes back,
or another one, finds it; a tag is run once. Folders of those that have ended are moved aside, so that a look at the others
costs the same however many there have been.

    <folder>/<tag>          an application that runs, or whose end the store does not know yet
    <folder>/.ended/<tag>   one that is over
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopsml.service.engine.base import LogPiece, Look, NodeSeen, SubmitOrder
from hopsml.service.engine.local_application import ENDED, OUTPUT, RUNNING, start_ticks
from hopsml.service.engine.slots_talk import SlotsTalk
from hopsml.service.engine.submissions import Submissions
from hopsml.service.lifecycle.sight import SeenApplication, Sight
from hopsml.service.scheduler.resources import Resources
from hopsml.states import Lifecycle
from hopsml.submission import environment
from hopsml.submission.interrupts import Waiter

log = logging.getLogger("hopsml.service")

NODE = "this-machine"
DRIVER_MIB = 512
LAST_BYTES = 1 << 16  # of a log: a traceback may be long
ASIDE = ".ended"
RUN_DIRECTORY = "Run directory: "  # in the error of a run, below its cause


class LocalEngine:
    """``folder``: for applications; ``capacity``: what jobs may use of this machine.

    ``project_url``: where drivers are told how many slots they have; "" where those of Spark's own workers are fixed.
    """

    def __init__(self, folder: Path, capacity: Resources, project_url: str = "") -> None:
        self.resizes = bool(project_url)
        self._talk = SlotsTalk(project_url)
        self._folder, self._capacity = folder, capacity
        self._submissions = Submissions()
        self._watchers: list[subprocess.Popen[bytes]] = []
        self._over: dict[str, tuple[SeenApplication, ...]] = {}  # ended, but not stored yet; not read again until then
        self._asked: set[str] = set()  # a second Ctrl-C would break off what the first one began
        for each in (folder, folder / ASIDE):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)

    def look(self) -> Look:
        """Read the folders of all applications whose end is not stored yet."""
        self._watchers = [watcher for watcher in self._watchers if watcher.poll() is None]
        submitting, refused = self._submissions.state()
        found = dict(self._over)
        with os.scandir(self._folder) as entries:
            for name in (entry.name for entry in entries if entry.name != ASIDE and entry.name not in self._over):
                if (seen := _seen(self._folder / name)) is not None:
                    if seen.state.is_final:
                        self._talk.forget(name)
                        self._over[name] = (seen,)
                    else:
                        seen = replace(seen, answer=self._talk.heard(name))
                    found[name] = (seen,)
        return Look(Sight(found, submitting, refused), (NodeSeen(NODE, self._capacity, Resources()),))

    def submit(self, order: SubmitOrder) -> None:
        """Start the driver."""
        self._submissions.begin(order.tag, lambda waiter: self._start(order, waiter))

    def _start(self, order: SubmitOrder, waiter: Waiter) -> None:
        planned = order.plan()
        folder = self._folder / order.tag
        if waiter.wait(0.0) is not None:
            return
        if (self._folder / ASIDE / order.tag).exists():
            raise FileExistsError(f"{order.tag} has run before")
        folder.mkdir(mode=0o700)
        module = "hopsml.service.engine.local_application"
        self._watchers.append(
            subprocess.Popen(
                [sys.executable, "-m", module, str(folder), "--", *planned.command],
                env={**environment(planned.profile), **order.variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def withdraw(self, tag: str) -> None:
        """It is started in no time; what was started is seen."""
        self._submissions.withdraw(tag)

    def ask(self, application_id: str) -> None:
        """Ctrl-C for the driver: its runs are cancelled, and write what they have."""
        if application_id not in self._asked:
            self._asked.add(application_id)
            self._signal(application_id, signal.SIGINT)

    def tell(self, application_id: str, slots: int) -> None:
        """By a file that its driver looks for."""
        if self.resizes:
            self._talk.tell(application_id, slots)

    def kill(self, application_id: str) -> None:
        """SIGKILL for the driver and what it has started; agents and workers end with it."""
        self._signal(application_id, signal.SIGKILL)

    def forget_orders(self) -> None:
        """Drop the cached orders; the next slots are written even if they are unchanged."""
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
        """As much as was asked for."""
        return each

    def driver(self) -> Resources:
        """A driver waits most of the time: it takes memory, and no core."""
        return Resources(memory_mib=DRIVER_MIB)

    def _signal(self, application_id: str, number: int) -> None:
        facts = _read(self._folder / application_id / RUNNING, "driver", "driver_ticks")  # none if it was moved aside
        if facts and start_ticks(facts["driver"]) == facts["driver_ticks"]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(facts["driver"], number)

    def log(self, application_id: str, offset: int, limit: int) -> LogPiece | None:
        """Of what the driver has printed."""
        for folder in (self._folder, self._folder / ASIDE, self._folder):  # it may be moved meanwhile
            if (found := piece_of(folder / application_id / OUTPUT, offset, limit)) is not None:
                return found
        return None

    def close(self) -> None:
        """End threads; drivers and their watchers stay."""
        self._submissions.close()
        self._talk.close()


def piece_of(path: Path, offset: int, limit: int) -> LogPiece | None:
    """Of a file that is a log."""
    try:
        with open(path, "rb") as file:
            length = os.fstat(file.fileno()).st_size
            begin = max(0, length + offset) if offset < 0 else min(offset, length)
            file.seek(begin)
            return LogPiece(file.read(min(limit, length - begin)), begin, length)
    except OSError:
        return None


def _seen(folder: Path) -> SeenApplication | None:
    """What a folder says; None where its driver has not been started yet."""
    if ended := _read(folder / ENDED, "status", "problem"):
        return SeenApplication(folder.name, _state(ended["status"]), _told(folder, ended))
    running = _read(folder / RUNNING, "pid", "ticks", "driver", "driver_ticks")
    if running is None:
        return None
    if start_ticks(running["driver"]) == running["driver_ticks"] or start_ticks(running["pid"]) == running["ticks"]:
        return SeenApplication(folder.name, Lifecycle.RUNNING)
    if ended := _read(folder / ENDED, "status", "problem"):  # meanwhile
        return SeenApplication(folder.name, _state(ended["status"]), _told(folder, ended))
    return SeenApplication(folder.name, Lifecycle.STOPPED, "the machine was started anew, or somebody killed all of it")


def _state(status: int) -> Lifecycle:
    if status == 0:
        return Lifecycle.FINISHED
    return Lifecycle.STOPPED if status == -signal.SIGKILL else Lifecycle.FAILED


def _told(folder: Path, ended: dict[str, Any]) -> str:
    """Why it ended: what its driver has said last."""
    if not ended["status"]:
        return ""
    if ended["problem"]:
        return str(ended["problem"])
    printed = b""
    with contextlib.suppress(OSError), open(folder / OUTPUT, "rb") as file:  # somebody may have made room on the disk
        file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
        printed = file.read()
    said = said_last(printed.decode(errors="replace"))
    return f"exit status {ended['status']}" + (f": {said[:500]}" if said else "")


def said_last(printed: str) -> str:
    """The line of a log that says why its driver ended: the last one, but for what is to be done about it.

    The error of a run goes on, below the line with its cause, with a traceback, the worker's last lines and where to look.
    """
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("Remedy:")]
    if told and told[-1].startswith(RUN_DIRECTORY):
        told = [line for line in told if line.startswith("hopsml: ")] or told
    return told[-1].removeprefix("hopsml: ") if told else ""


def _read(path: Path, *names: str) -> dict[str, Any] | None:
    """A file of JSON with these names; None where it is not there, or not whole yet, or another's."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and all(name in found for name in names) else None


def this_machine(gpus: int) -> Resources:
    """All cores and all memory, and so many GPUs."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Resources(gpus, len(os.sched_getaffinity(0)), memory >> 20)
