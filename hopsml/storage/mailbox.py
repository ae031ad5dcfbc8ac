"""Mailboxes: small files on shared storage, by which processes send requests to a driver that they cannot connect to.

The receiver polls. While the storage does not respond, its pauses grow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hopsml.errors import PathNotFound, StorageError
from hopsml.storage import backoff, urls
from hopsml.storage.filesystem import for_url

log = logging.getLogger("hopsml.storage")

LOCAL_S, REMOTE_S = 1.0, 5.0  # pauses between two reads, on this machine's disk and elsewhere: one call each
SLOWEST_S = 60.0  # longest pause while the storage does not respond
TIMEOUT_S = 5.0  # of one read
MOST_BYTES = 1 << 16  # of one message

Read = TypeVar("Read")


def send(url: str, message: bytes) -> None:
    """Write a message atomically; it replaces the one before. Raises StorageError."""
    for_url(url).write_bytes(url, message)


def receive(url: str, most: int = MOST_BYTES) -> bytes | None:
    """Return the first ``most`` bytes of the message; None if there is none. Raises StorageError."""
    try:
        return for_url(url, TIMEOUT_S).read_range(url, 0, most)
    except PathNotFound:
        return None


def discard(url: str) -> None:
    """Delete the message, if there is one. Raises StorageError."""
    for_url(url).delete(url)


@dataclass
class Polling:
    """Schedule of reads of a mailbox, with growing pauses while the storage does not respond."""

    usual_s: float
    failures: int = 0  # reads in a row that failed

    @classmethod
    def of(cls, url: str) -> Polling:
        """Return the schedule for a URL: a remote store is read less often than a local disk."""
        return cls(LOCAL_S if urls.is_local(url) else REMOTE_S)

    @property
    def pause_s(self) -> float:
        """Seconds until the next read."""
        return backoff.pause_s(self.failures + 1, self.usual_s, max(self.usual_s, SLOWEST_S))

    @property
    def is_usual(self) -> bool:
        """True if the storage responded the last time."""
        return not self.failures

    def poll(self, read: Callable[[], Read], *errors: type[Exception]) -> Read | None:
        """Return what ``read`` returns; None after a StorageError or one of ``errors``, which makes the pauses longer."""
        expected: tuple[type[Exception], ...] = (StorageError, *errors)
        try:
            found = read()
        except expected as error:
            self.failures += 1
            log.debug("a mailbox could not be read: %s", error)
            return None
        self.failures = 0
        return found


def poll_in_background(
    name: str, usual_s: float, read: Callable[[], bool], *errors: type[Exception]
) -> threading.Thread:
    """Start a daemon thread that calls ``read`` until it returns True.

    Args:
        name: Name of the thread.
        usual_s: Seconds between two calls while the storage responds.
        read: Reads the mailbox and carries out its message; may raise StorageError or one of ``errors``.
        errors: Further exceptions after which polling continues.
    """

    def run() -> None:
        polling = Polling(usual_s)
        while not polling.poll(read, *errors):
            time.sleep(polling.pause_s)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
