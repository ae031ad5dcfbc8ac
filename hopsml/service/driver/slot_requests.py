"""How many slots a driver has, which may change while it runs: two files on the project's store, by the tag of its launch.

    <project>/Jobs/<tag>.slots   what it may have: a number, written by the service
    <project>/Jobs/<tag>.held    its answer: the number that it has heard, and the most that it holds

The driver looks every second. From the moment it has heard of a number its runs ask for no more than that; what they hold
beyond it they give back at their next commit, and the answer says when that has happened.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping

from hopsml import settings
from hopsml.errors import CoordinatorLost, PathNotFound, StorageError
from hopsml.service.driver.end_requests import FOLDER, TAG
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url

log = logging.getLogger("hopsml.service")

LOOK_S = 1.0
MOST_BYTES = 100  # of either file
FIRST = "HOPSML_JOB_SLOTS"  # with how many it begins


def put(project_url: str, tag: str, slots: int) -> None:
    """Tell a driver how many it may have. Raises StorageError."""
    _write(_url(project_url, f"{tag}.slots"), str(slots))


def wanted(project_url: str, tag: str) -> int | None:
    """How many a driver may have; None where it was told nothing since its start. Raises StorageError."""
    return _number(_read(_url(project_url, f"{tag}.slots")))


def answer(project_url: str, tag: str, told: int, held: int) -> None:
    """The driver's answer. Raises StorageError."""
    _write(_url(project_url, f"{tag}.held"), json.dumps([told, held]))


def answered(project_url: str, tag: str) -> tuple[int, int] | None:
    """What a driver has answered last: what it was told, and what it holds; None for nothing. Raises StorageError."""
    try:
        told, held = json.loads(_read(_url(project_url, f"{tag}.held")) or "null")
        return int(told), int(held)
    except (ValueError, TypeError, OverflowError, RecursionError):  # being written, or a job's code has written it
        return None


class SlotsWatch:
    """Keeps a driver to what it was told. ``allow`` is told a number; ``held``, given that, says how many there are."""

    def __init__(self, tag: str, first: int, allow: Callable[[int], None], held: Callable[[int], int]) -> None:
        self._tag, self._allow, self._held = tag, allow, held
        self._slots, self._said = first, (0, 0)
        allow(first)

    def look(self, project_url: str) -> None:
        """Once. Raises StorageError, and CoordinatorLost where what there is cannot be asked: the next look sees to it."""
        slots = wanted(project_url, self._tag)
        if slots is not None and slots != self._slots:
            log.info("this driver may have %d slots from now on, after %d", slots, self._slots)
            self._allow(slots)
            self._slots = slots
        said = self._slots, self._held(self._slots)
        if said != self._said:
            answer(project_url, self._tag, *said)
            self._said = said


def watch(environment: Mapping[str, str]) -> None:
    """Begin to look, in a driver whose slots may change: one that a service has started, of an elastic task."""
    tag, first = environment.get(TAG), _number(environment.get(FIRST, ""))
    if not tag or not first:
        return
    from hopsml.experiment import applications

    kept = SlotsWatch(tag, first, applications.allow, applications.held)
    threading.Thread(target=_look, args=(settings.project_url(), kept), name="hopsml-job-slots", daemon=True).start()


def _look(project_url: str, kept: SlotsWatch) -> None:
    while True:
        try:
            kept.look(project_url)
        except (StorageError, CoordinatorLost) as error:
            log.debug("how many slots there are could not be asked, or said: %s", error)
        time.sleep(LOOK_S)


def _number(text: str) -> int | None:
    """None where it is none, or not whole yet."""
    return int(text) if text.isdecimal() else None


def _read(url: str) -> str:
    try:
        return for_url(url).read_range(url, 0, MOST_BYTES).decode()
    except PathNotFound:
        return ""


def _write(url: str, text: str) -> None:
    for_url(url).write_bytes(url, text.encode())


def _url(project_url: str, name: str) -> str:
    return urls.join(project_url, FOLDER, name)
