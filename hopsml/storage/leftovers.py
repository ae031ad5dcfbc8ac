"""Temporary files that could not be deleted at once, because the store did not respond; they are deleted later."""

from __future__ import annotations

import threading

from hopsml.errors import StorageError
from hopsml.storage.filesystem import for_url

_lock = threading.Lock()
_left: set[str] = set()


def discard(url: str, timeout_s: float | None = None, try_now: bool = True) -> None:
    """Delete a temporary file or directory, or remember it for ``sweep``; raises nothing.

    ``try_now`` False: only remember it.
    """
    if try_now:
        try:
            for_url(url, timeout_s).delete(url, recursive=True)
            return
        except StorageError:
            pass
    with _lock:
        _left.add(url)


def sweep(timeout_s: float | None = None) -> int:
    """Delete what is remembered, as far as the stores respond; returns the number of remaining entries."""
    with _lock:
        pending = sorted(_left)
    for url in pending:
        try:
            for_url(url, timeout_s).delete(url, recursive=True)
        except StorageError:
            break  # the other calls would take a timeout each
        with _lock:
            _left.discard(url)
    with _lock:
        return len(_left)
