"""Worker's end of the pipe for the driver's messages; the other end is the agent's ``WorkerPipe``."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque

from hopsml.cluster.shared.framing import Frames

_READ_BYTES = 1 << 20


class Inbox:
    """Queue of the driver's messages in the order in which they were sent; may be used by any thread."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor, self._frames = descriptor, Frames()
        self._waiting: deque[bytes] = deque()
        self._lock = threading.Lock()
        self.ended = False  # no further message can arrive: the agent has closed the pipe or ended

    def fileno(self) -> int:
        """Return the pipe's descriptor, for ``poll``: readable when messages may have arrived, or at the pipe's end."""
        return self._descriptor

    def take(self) -> list[bytes]:
        """Return all messages that have arrived, without waiting."""
        with self._lock:
            self._read()
            taken = list(self._waiting)
            self._waiting.clear()
            return taken

    def get(self, timeout_s: float = 0.0) -> bytes | None:
        """Return the next message; None if none arrives within ``timeout_s`` seconds, or the pipe has ended."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                if not self._waiting:
                    self._read()
                if self._waiting:
                    return self._waiting.popleft()
                if self.ended:
                    return None
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            poll = select.poll()  # select() refuses descriptors above 1023, which a training may have reached
            poll.register(self._descriptor, select.POLLIN | select.POLLHUP)
            poll.poll(max(1, int(left * 1000)))

    def _read(self) -> None:
        """Read what has arrived, without waiting."""
        while not self.ended:
            try:
                piece = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            self._waiting.extend(self._frames.feed(piece))
            self.ended = not piece
