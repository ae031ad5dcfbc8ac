"""What workers send to the driver: kept in order, handed to the user's function on a thread of its own."""

from __future__ import annotations

import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from hopsml.cluster.run_state import Change
from hopsml.training.messages import Resize

log = logging.getLogger("hopsml.messages")

MOST_KEPT = 10_000  # values that wait for somebody who wants them; further ones are dropped


class Messages:
    """One run's values on the driver; ``on_change`` is an observer of the run, everything else is for any thread.

    ``on_resize`` gets the rank that asked and the size that it asked for. A thread is there while there is something to do.
    """

    def __init__(self, run_id: str, on_resize: Callable[[int, object], None]) -> None:
        self._run_id, self._on_resize = run_id, on_resize
        self._came: deque[tuple[int, bytes] | Callable[[int, Any], None]] = deque()
        self._functions: list[Callable[[int, Any], None]] = []
        self._kept: list[tuple[int, Any]] = []
        self._lock = threading.Lock()
        self._delivering = False

    def on_change(self, change: Change) -> None:
        """On the coordinator's thread."""
        if change.kind == "said":
            self._put((change.rank, change.data))

    def subscribe(self, function: Callable[[int, Any], None]) -> None:
        """Call it with every value, first with those that have come already."""
        self._put(function)

    def _put(self, item: tuple[int, bytes] | Callable[[int, Any], None]) -> None:
        with self._lock:
            self._came.append(item)
            if not self._delivering:
                self._delivering = True
                threading.Thread(target=self._deliver, name=f"hopsml-messages-{self._run_id}", daemon=True).start()

    def _deliver(self) -> None:
        while True:
            with self._lock:
                if not self._came:
                    self._delivering = False
                    return
                item = self._came.popleft()
            if isinstance(item, tuple):
                self._receive(*item)
            else:
                self._functions.append(item)
                for rank, value in self._kept:
                    self._call(item, rank, value)
                self._kept = []

    def _receive(self, rank: int, data: bytes) -> None:
        try:
            value = pickle.loads(data)
        except Exception:
            log.exception("run %s: what rank %d sent cannot be read here", self._run_id, rank)
            return
        if isinstance(value, Resize):
            self._on_resize(rank, value.size)
            return
        for function in self._functions:
            self._call(function, rank, value)
        if not self._functions and len(self._kept) < MOST_KEPT:
            self._kept.append((rank, value))

    def _call(self, function: Callable[[int, Any], None], rank: int, value: Any) -> None:
        try:
            function(rank, value)
        except Exception:
            log.exception("run %s: on_message's function failed with what rank %d sent", self._run_id, rank)
