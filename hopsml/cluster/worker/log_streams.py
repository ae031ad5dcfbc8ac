"""Replacement of the worker's ``sys.stdout`` and ``sys.stderr``: a full disk loses log lines, not the training."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LossNote:
    """Note that log lines are lost, sent once, from the process that created it and from a separate thread.

    The thread that prints may be in a signal handler that has interrupted another report.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._process = tell, os.getpid()
        self._thread: threading.Thread | None = None

    def report_loss(self, error: OSError) -> None:
        """Send the note that a write has failed with ``error``; does not wait, and raises nothing."""
        if self._thread is not None or os.getpid() != self._process:
            return
        text = f"lines of its log are lost, its disk takes no more: {error.strerror}"
        self._thread = threading.Thread(target=self._say, args=(text,), name="hopsml-log-note", daemon=True)
        with contextlib.suppress(RuntimeError):  # no further thread can be started
            self._thread.start()

    def _say(self, text: str) -> None:
        """Send the note."""
        with contextlib.suppress(OSError):  # the agent has ended
            self._tell(text)

    def settle(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds until the note has been sent."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout_s)


class _Log(io.FileIO):
    """File that counts a write as done when the disk is full."""

    def __init__(self, descriptor: int, note: LossNote) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._note = note

    def write(self, data: ReadableBuffer, /) -> int:
        """Write data to the file; if the disk is full it is dropped, and counts as written."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._note.report_loss(error)
            return memoryview(data).nbytes


def install(tell: Callable[[str], None]) -> LossNote:
    """Replace ``sys.stdout`` and ``sys.stderr``; ``tell`` is called once, on a separate thread, when lines are lost."""
    note = LossNote(tell)
    sys.stdout = sys.__stdout__ = _over(sys.stdout, 1, note)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _over(sys.stderr, 2, note)  # type: ignore[misc]
    return note


def _over(stream: TextIO | None, descriptor: int, note: LossNote) -> io.TextIOWrapper:
    """Return a text stream over the file with the interpreter's settings, but line-buffered."""
    if stream is not None:
        stream.flush()
    log, unbuffered = _Log(descriptor, note), getattr(stream, "write_through", False)  # the latter: python -u
    return io.TextIOWrapper(
        cast(BinaryIO, log) if unbuffered else io.BufferedWriter(log),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors=getattr(stream, "errors", "backslashreplace"),
        line_buffering=True,  # users may follow the log: a file would get 8 KB at a time
        write_through=unbuffered,
    )
