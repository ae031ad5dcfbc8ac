"""What the driver can know about a run while it goes on: written by the coordinator's thread, read by any other."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from hopsml import delivery, redact
from hopsml.cluster.driver.gang_log import GangLog
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.shared.layout import Layout
from hopsml.delivery import Observers
from hopsml.states import Lifecycle

LOG_KEPT = 4 << 20  # characters of a rank's output, the newest


@dataclass
class MemberView:
    """One rank, for people: where it is, what it does."""

    rank: int
    host: str
    executor_id: str
    gpu_indices: tuple[int, ...]
    state: str = Lifecycle.STARTING
    step: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    left: str = ""  # why an independent member is gone
    seen: dict[str, int | str] = field(default_factory=dict)  # what it did together with others; in_force.py


@dataclass(frozen=True)
class Change:
    """One thing that happened; ``kind`` is phase, member, report, progress, said, system, log, note,
    profile, skipped, joined, left, slots, end or closed.

    ``progress``: ``step`` of ``total``, in units of ``text``. ``said``: ``data`` is from the worker for whoever knows it.
    ``profile``: the wish whose id is ``data`` is fulfilled, or not for the reason in ``text``.
    ``joined`` and ``left``: members that are independent of each other, with the host, or with the reason. ``skipped``: so
    much was left out, because the observer was too slow. ``slots``: independent members have to do with ``total`` of them.

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
    total: int = 0  # of a progress


Observer = Callable[[Change], None]


class _Changes:
    """Rule of what waits for an observer: output and reports may be skipped, of reports the newest is kept."""

    def worth(self, item: Change) -> delivery.Worth:
        if item.kind in ("log", "report", "progress", "system"):
            return "update"
        return "news" if item.kind in ("note", "said", "member", "profile", "skipped") else "end"

    def size(self, item: Change) -> int:
        return len(item.text) + 64 * len(item.metrics) + 64

    def same_as(self, item: Change) -> Hashable | None:
        return (item.kind, item.rank) if item.kind in ("report", "progress", "system") else None

    def count(self, item: Change, skipped: Counter[str]) -> None:
        if item.kind == "log":
            skipped["lines"] += item.text.count("\n")
            skipped["bytes"] += len(item.text)
        else:
            skipped["notes" if item.kind == "note" else "updates"] += 1

    def told(self, skipped: Counter[str]) -> Change:
        parts = [f"{skipped['lines']} lines of output ({skipped['bytes'] / 1e6:.1f} MB)"] * bool(skipped["bytes"])
        parts += [f"{skipped[name]} {name}" for name in ("updates", "notes") if skipped[name]]
        return Change("skipped", text=f"{', '.join(parts)} were skipped here: they were not read in time")


class RunState:
    """The state of one run; every public method may be called from any thread."""

    def __init__(self, run_id: str, size: int) -> None:
        self.run_id, self.size = run_id, size
        self.phase = Phase.WAITING
        self.generation = 0
        self.begun = 0  # the generation in which the present processes began, by which their logs are called
        self.members: dict[int, MemberView] = {}
        self.layout: Layout | None = None
        self.gang_log: GangLog | None = None  # once the run has begun
        self.began = time.time()
        self.result: bytes = b""
        self.error: BaseException | None = None
        self.behind: dict[int, tuple[str, ...]] = {}
        self.notes: list[str] = []
        self.committed = False  # whether a worker has committed its training state, ever
        self._first_step: tuple[int, float] | None = None
        self._last_step: tuple[int, float] | None = None
        self._logs: dict[int, _Output] = {}
        self._observers = Observers(f"hopsml-observer-{run_id}", _Changes())
        self._joined: dict[int, str] = {}  # independent members that are there
        self._slots: Change | None = None  # with how many they have to do
        self._closed: Change | None = None
        self._over = threading.Event()

    # -------------------------------------------------------------------------------- the coordinator writes

    def begin_generation(self, generation: int, size: int) -> None:
        """Forget the members of the last generation; ``size``: of the new one."""
        self.generation = self.begun = generation
        self.size = size
        self.members = {}

    def mend_generation(self, generation: int, members: dict[int, MemberView]) -> None:
        """Go on as a further generation with these members, by rank, whose processes were there before."""
        self.generation, self.size, self.members = generation, len(members), members

    def announce(self, kind: str, rank: int, text: str) -> None:
        """Publish that an independent member has ``joined`` or ``left``; ``text``: its host, or why."""
        if kind == "left" and rank in self.members:
            self.members[rank].state, self.members[rank].left = Lifecycle.LOST, text
        self.publish(Change(kind, rank, text))

    def publish(self, change: Change) -> None:
        """Record a change and let the observers have it, without waiting for one; one that fails is dropped.

        Secrets are masked in all but what the function printed, which is its own.
        """
        if change.kind != "log" and change.text:
            change = replace(change, text=redact.text(change.text))
        self._observers.tell(change, lambda: self._record(change))

    def _record(self, change: Change) -> None:
        if change.kind == "log":
            self._logs.setdefault(change.rank, _Output()).add(change.text)
        elif change.kind == "report" and change.rank == 0 and change.step is not None:
            self._last_step = (change.step, change.time)
            self._first_step = self._first_step or self._last_step
        elif change.kind == "note":
            self.notes.append(change.text)
        elif change.kind == "joined":
            self._joined[change.rank] = change.text
        elif change.kind == "left":
            self._joined.pop(change.rank, None)
        elif change.kind == "slots":
            self._slots = change
        elif change.kind == "closed":
            self._closed = change

    def conclude(self, error: BaseException | None, result: bytes) -> None:
        """Say that the run is over, with its error, or with the pickled value of its function."""
        self.error, self.result = error, result
        self._over.set()
        self.publish(Change("end"))

    # -------------------------------------------------------------------------------- anybody reads

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait at most ``timeout_s`` seconds for the end (None: for ever); returns whether the run is over."""
        return self._over.wait(timeout_s)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, one way or another."""
        return self._over.is_set()

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` for every change from now on, in order, on a thread of its own: it harms nobody by being slow.

        One that is too slow misses output and reports, and is told how many by a change ``skipped``. What is marked as
        ``delivery.immediate`` is called by whoever publishes. A run that is closed tells just that, at once, and the
        independent members that have joined already, and with how many slots they have to do.
        """
        with self._observers.lock:  # the end of a member must not be told before that it has joined
            tell = self._observers.add(observer)
            closed = self._closed
            for rank, host in self._joined.items():
                tell(Change("joined", rank, host))
            if self._slots is not None:
                tell(self._slots)
        if closed is not None:
            tell(closed)

    def settle(self, timeout_s: float = delivery.SETTLE_S) -> bool:
        """Wait until the observers have been told everything, at most ``timeout_s`` seconds; whether they have."""
        return self._observers.settle(timeout_s)

    def steps_per_second(self) -> float:
        """Steps a second between the chief's first and its last report; 0.0 when there were not two."""
        with self._observers.lock:
            first, last = self._first_step, self._last_step
        if first is None or last is None or last[1] <= first[1]:
            return 0.0
        return (last[0] - first[0]) / (last[1] - first[1])

    def log(self, rank: int) -> str:
        """What this rank printed and the driver has received, the newest ``LOG_KEPT`` characters of it."""
        with self._observers.lock:
            output = self._logs.get(rank)
            return output.text() if output is not None else ""


class _Output:
    """The newest characters that a rank has printed."""

    def __init__(self) -> None:
        self._pieces: deque[str] = deque()
        self._length = 0

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)
        while self._length - len(self._pieces[0]) >= LOG_KEPT:
            self._length -= len(self._pieces.popleft())

    def text(self) -> str:
        return "".join(self._pieces)
