"""A sign of life of its driver in the directory of a run that is under way, and whether a run has such a driver.

``driver.json`` is written anew every ``BEAT_S`` seconds. Whoever wants to take a run up watches it for ``WATCH_S``: clocks
of different machines need not agree. Who takes it up writes ``continued.json`` exclusively; a driver that finds one there
has been taken for dead, and ends its run.
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
_under_way: set[str] = set()  # of this process


class SignOfLife:
    """Of one run; its thread ends with the run. ``on_taken`` is called with the URL of the run that goes on with it."""

    def __init__(self, directory: RunDir, state: RunState, on_taken: Callable[[str], None]) -> None:
        self._directory, self._state, self._on_taken = directory, state, on_taken
        self._beats, self._tidied = 0, 0  # the latter: the generation at which logs were last looked through

    def start(self) -> None:
        """Returns at once; the first sign is ``run.json`` itself."""
        _under_way.add(self._directory.url)
        name = f"hopsml-driver-of-{self._directory.run_id}"
        threading.Thread(target=self._live, name=name, daemon=True).start()

    def _live(self) -> None:
        try:
            while not self._state.wait(BEAT_S):
                try:
                    self._give()
                except StorageError as error:  # a store that is away: nobody can take the run up meanwhile
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
    """Whether the run is under way; may take ``WATCH_S`` seconds where its driver is not on this machine. StorageError.

    ``driver``: its process, as ``machine.who`` tells it; that of the record by default.
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
    """Whose sign was the last one, and which."""
    try:
        sign = directory.read_json(directory.driver_json)
    except PathNotFound:
        return None
    return sign.get("process"), sign.get("beat")
