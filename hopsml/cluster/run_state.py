"""What the driver can know about a run while it goes on: written by the coordinator's thread, read by any other."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hopsml.cluster.gang import Phase
from hopsml.cluster.layout import Layout

LOG_LINES_KEPT = 2000


@dataclass
class MemberView:
    """One rank, for people: where it is, what it does."""

    rank: int
    host: str
    executor_id: str
    gpu_indices: tuple[int, ...]
    state: str = "launched"
    step: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    log: str = ""
    mirror_problem: str = ""


@dataclass(frozen=True)
class Change:
    """One thing that happened; ``kind`` is phase, member, report, said, system, log, note, joined,
    left, end or closed.

    ``said``: ``data`` is from the worker for whoever knows it. ``joined`` and ``left``: members that are independent of each
    other, with the host, or with the reason.

    ``end``: the group is gone. ``closed``, the last one: the run directory is complete; with ``metrics`` the function's
    outputs, or with the ``error`` that the caller gets.
    """

    kind: str
    rank: int = -1
    text: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    step: int | None = None
    time: float = 0.0
    error: BaseException | None = None
    data: bytes = b""


Observer = Callable[[Change], None]


class RunState:
    """The state of one run; every public method may be called from any thread."""

    def __init__(self, run_id: str, size: int) -> None:
        self.run_id, self.size = run_id, size
        self.phase = Phase.WAITING
        self.generation = 0
        self.members: dict[int, MemberView] = {}
        self.layout: Layout | None = None
        self.began = time.time()
        self.result: bytes = b""
        self.error: BaseException | None = None
        self.behind: dict[int, tuple[str, ...]] = {}
        self.notes: list[str] = []
        self._first_step: tuple[int, float] | None = None
        self._last_step: tuple[int, float] | None = None
        self._logs: dict[int, deque[str]] = {}
        self._observers: list[Observer] = []
        self._joined: dict[int, str] = {}  # independent members that are there
        self._closed: Change | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()

    # -------------------------------------------------------------------------------- the coordinator writes

    def begin_generation(self, generation: int, size: int) -> None:
        """Other members from now on."""
        self.generation, self.size = generation, size
        self.members = {}

    def announce(self, kind: str, rank: int, text: str) -> None:
        """An independent member has ``joined`` or ``left``."""
        if kind == "left" and rank in self.members:
            self.members[rank].state = f"left: {text}"
        self.publish(Change(kind, rank, text))

    def publish(self, change: Change) -> None:
        """Record a change and tell the observers; an observer that fails is dropped, never the run."""
        with self._lock:
            if change.kind == "log":
                self._logs.setdefault(change.rank, deque(maxlen=LOG_LINES_KEPT)).append(change.text)
            elif change.kind == "report" and change.rank == 0 and change.step is not None:
                self._last_step = (change.step, change.time)
                self._first_step = self._first_step or self._last_step
            elif change.kind == "note":
                self.notes.append(change.text)
            elif change.kind == "joined":
                self._joined[change.rank] = change.text
            elif change.kind == "left":
                self._joined.pop(change.rank, None)
            elif change.kind == "closed":
                self._closed = change
            observers = list(self._observers)
        for observer in observers:
            try:
                observer(change)
            except Exception:  # noqa: BLE001 a display must not harm a training
                self.unobserve(observer)

    def conclude(self, error: BaseException | None, result: bytes) -> None:
        """The run is over."""
        self.error, self.result = error, result
        self._over.set()
        self.publish(Change("end"))

    # -------------------------------------------------------------------------------- anybody reads

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the run is over within the time."""
        return self._over.wait(timeout_s)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, one way or another."""
        return self._over.is_set()

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` for every change from now on, on the coordinator's thread: it must be quick.

        The last change, ``closed``, comes from the run's own thread; at once, from this one, where the run is closed. So do
        the independent members that have joined already.
        """
        with self._lock:
            self._observers.append(observer)
            closed = self._closed
            for rank, host in self._joined.items():  # within the lock: their end must not be told before
                observer(Change("joined", rank, host))
        if closed is not None:
            observer(closed)

    def unobserve(self, observer: Observer) -> None:
        """The opposite of ``observe``."""
        with self._lock:
            if observer in self._observers:
                self._observers.remove(observer)

    def steps_per_second(self) -> float:
        """Between the chief's first and its last report; 0 when there were not two."""
        with self._lock:
            first, last = self._first_step, self._last_step
        if first is None or last is None or last[1] <= first[1]:
            return 0.0
        return (last[0] - first[0]) / (last[1] - first[1])

    def log(self, rank: int) -> str:
        """What this rank printed and the driver has received."""
        with self._lock:
            return "".join(self._logs.get(rank, ()))
