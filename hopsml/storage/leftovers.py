"""Temporary names that could not be removed at once, because the store did not answer: removed later."""

from __future__ import annotations

import threading

from hopsml.errors import StorageError
from hopsml.storage.filesystem import for_url

_lock = threading.Lock()
_left: set[str] = set()


def discard(url: str, timeout_s: float | None = None, try_now: bool = True) -> None:
    """Delete a temporary file or directory, or remember it for ``sweep``; raises nothing."""
    if try_now:
        try:
            for_url(url, timeout_s).delete(url, recursive=True)
            return
        except StorageError:
            pass
    with _lock:
        _left.add(url)


def sweep(timeout_s: float | None = None) -> int:
    """Delete what is remembered, as far as the stores answer; returns how many are left."""
    with _lock:
        pending = sorted(_left)
    for url in pending:
        try:
            for_url(url, timeout_s).delete(url, recursive=True)
        except StorageError:
            break  # the others would wait as long
        with _lock:
            _left.discard(url)
    with _lock:
        return len(_left)
