"""Sign of life of a run's driver in the run directory, and the check for one before another driver continues the run.

``driver.json`` is written every ``BEAT_S`` seconds. A process that wants to continue a run watches it for ``WATCH_S``,
so that clocks of different machines need not agree. A process that continues it writes ``continued.json`` exclusively;
a driver that finds this file was assumed to have failed, and ends its run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from hopsml.cluster.driver.run_state import RunState
from hopsml.errors import PathNotFound, StorageError
from hopsml.storage import run_logs, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir
from hopsml.tracking import catalog, machine

log = logging.getLogger(__name__)

BEAT_S = 10.0
WATCH_S = 25.0
LOOK_S = 0.5
TIDY_GENERATIONS = 10  # generations between two deletions of logs that are not retained
OLD_S = 600.0  # a run in which nothing has changed for that long has no driver
_under_way: set[str] = set()  # URLs of this process's runs


class SignOfLife:
    """Writer of one run's signs of life; calls ``on_taken`` with the URL of a run that continues this one."""

    def __init__(self, directory: RunDir, state: RunState, on_taken: Callable[[str], None]) -> None:
        self._directory, self._state, self._on_taken = directory, state, on_taken
        self._beats, self._tidied = 0, 0  # the latter: the generation at which logs were last checked

    def start(self) -> None:
        """Start the thread, which ends with the run, and return at once; the first sign is ``run.json``."""
        _under_way.add(self._directory.url)
        name = f"hopsml-driver-of-{self._directory.run_id}"
        threading.Thread(target=self._live, name=name, daemon=True).start()

    def _live(self) -> None:
        try:
            while not self._state.wait(BEAT_S):
                try:
                    self._give()
                except StorageError as error:  # without storage no other process can continue the run
                    log.debug("no sign of life in %s: %s", self._directory.url, error)
        finally:
            _under_way.discard(self._directory.url)

    def _give(self) -> None:
        if successor := self._directory.successor():
            self._on_taken(successor)
            return
        self._beats += 1
        self._directory.write_json(
            self._directory.driver_json, {"process": machine.who(), "beat": self._beats, "time": time.time()}
        )
        if (generation := self._state.generation) - self._tidied >= TIDY_GENERATIONS:
            run_logs.delete_surplus(self._directory, self._state.begun)
            self._tidied = generation


def driver_lives(directory: RunDir, driver: Mapping[str, Any] | None = None) -> bool:
    """Return True if the run is under way; may take ``WATCH_S`` seconds if its driver is on another machine.

    Args:
        directory: run directory.
        driver: the driver's process, as from ``machine.who``; by default that of the run record.

    Raises:
        StorageError: The run directory cannot be read.
    """
    who = driver or directory.read_run().get("driver_process") or {}
    if who == machine.who():
        return directory.url in _under_way
    if catalog.driver_lives(who) is False or _silent_s(directory) > OLD_S:
        return False
    before, deadline = _last(directory), time.monotonic() + WATCH_S
    log.warning("waiting for %g s whether the driver of %s gives a sign of life", WATCH_S, directory.url)
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        if _last(directory) != before:
            return True
    return False


def _silent_s(directory: RunDir) -> float:
    """Return the seconds since something changed in a run's directory, by its store's clock alone; 0 if that is unknown.

    This machine's clock may be a day ahead: a run under way would be taken for a dead one.
    """
    changed_s = catalog.last_change_s(directory)
    probe = urls.temporary_sibling(directory.driver_json)
    system = for_url(probe)
    try:
        system.write_bytes(probe, b"")
        now_s = system.status(probe).modified_s
        system.delete(probe)
    except StorageError:  # it is not ours to write to
        return 0.0
    return now_s - changed_s


def _last(directory: RunDir) -> object:
    """Return process and number of the last sign; None if there is none."""
    try:
        sign = directory.read_json(directory.driver_json)
    except PathNotFound:
        return None
    return sign.get("process"), sign.get("beat")
