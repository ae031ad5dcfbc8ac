"""Number of slots of a driver, which may change while it runs, as two files on the project's storage.

    <project>/Jobs/<tag>.slots   granted slots: a number, written by the service
    <project>/Jobs/<tag>.held    the driver's answer: the number that it received, and the maximum that it holds

The driver polls every second. Once it has received a number, its runs request no more slots than that; they release the
excess at their next commit, and the answer reports when that is done.
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
MOST_BYTES = 100  # maximum size of either file
FIRST = "HOPSML_JOB_SLOTS"  # variable with the initial number of slots


def put(project_url: str, tag: str, slots: int) -> None:
    """Write the number of slots that a driver may hold.

    Raises:
        StorageError: The file cannot be written.
    """
    _write(_url(project_url, f"{tag}.slots"), str(slots))


def wanted(project_url: str, tag: str) -> int | None:
    """Return the number of slots that a driver may hold; None if none was written since its start.

    Raises:
        StorageError: The storage cannot be read.
    """
    return _number(_read(_url(project_url, f"{tag}.slots")))


def answer(project_url: str, tag: str, told: int, held: int) -> None:
    """Write the driver's answer: the number that it received, and the slots that it holds.

    Raises:
        StorageError: The file cannot be written.
    """
    _write(_url(project_url, f"{tag}.held"), json.dumps([told, held]))


def answered(project_url: str, tag: str) -> tuple[int, int] | None:
    """Return a driver's newest answer as (slots that it received, slots that it holds); None if there is none.

    Raises:
        StorageError: The storage cannot be read.
    """
    try:
        told, held = json.loads(_read(_url(project_url, f"{tag}.held")) or "null")
        return int(told), int(held)
    except (ValueError, TypeError, OverflowError, RecursionError):  # being written, or overwritten by a job's code
        return None


class SlotsWatch:
    """Poller that applies the granted slots to a driver and answers with the slots it holds."""

    def __init__(self, tag: str, first: int, allow: Callable[[int], None], held: Callable[[int], int]) -> None:
        """Initialize the poller and apply the first number.

        Args:
            tag: Tag of the driver's launch.
            first: Initial number of slots.
            allow: Function that limits the driver's runs to a number of slots.
            held: Function that returns the slots held, given the granted number.
        """
        self._tag, self._allow, self._held = tag, allow, held
        self._slots, self._said = first, (0, 0)
        allow(first)

    def poll(self, project_url: str) -> None:
        """Poll once: apply a new number, and write a new answer; after an error the next poll repeats it.

        Args:
            project_url: URL of the project's storage.

        Raises:
            StorageError: The storage cannot be read or written.
            CoordinatorLost: The slots that are held cannot be determined.
        """
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
    """Start to poll, in a driver of an elastic task that a service started."""
    tag, first = environment.get(TAG), _number(environment.get(FIRST, ""))
    if not tag or not first:
        return
    from hopsml.experiment import applications

    kept = SlotsWatch(tag, first, applications.allow, applications.held)
    threading.Thread(target=_look, args=(settings.project_url(), kept), name="hopsml-job-slots", daemon=True).start()


def _look(project_url: str, kept: SlotsWatch) -> None:
    """Poll until the process ends."""
    while True:
        try:
            kept.poll(project_url)
        except (StorageError, CoordinatorLost) as error:
            log.debug("how many slots there are could not be asked, or said: %s", error)
        time.sleep(LOOK_S)


def _number(text: str) -> int | None:
    """Return a decimal number; None if the text is not one, or is incomplete."""
    return int(text) if text.isdecimal() else None


def _read(url: str) -> str:
    """Return the text of a file; "" if it does not exist."""
    try:
        return for_url(url).read_range(url, 0, MOST_BYTES).decode()
    except PathNotFound:
        return ""


def _write(url: str, text: str) -> None:
    """Write the text of a file."""
    for_url(url).write_bytes(url, text.encode())


def _url(project_url: str, name: str) -> str:
    """Return the URL of a file in the project's folder for jobs."""
    return urls.join(project_url, FOLDER, name)
