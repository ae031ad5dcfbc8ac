"""State of a run for its observers, written by the coordinator's thread, and the log of its group's newest events.

``gang.jsonl`` of a failed run, for ``tools.replay_gang``: the first line names the state machine and has its state before
the events that follow; older events may have been dropped. Each further line has an event (``null`` for the run's
beginning), its time, the actions that followed, and the phase after it. The state machines are pure, so the events give
the same decisions again. Secrets are masked in all of it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from hopsml.cluster.gang.events import RELEASED, RETURNED, Action, Event, Note, Phase
from hopsml.cluster.gang.machine import GroupMachine
from hopsml.cluster.shared.layout import Layout
from hopsml.core import callbacks, redact
from hopsml.core.callbacks import Observers
from hopsml.core.states import Lifecycle

VERSION = 2
PART = 2048  # events; the newest PART to twice as many are retained


@dataclass
class _Part:
    """Consecutive events, and the state of the state machine before them."""

    state: dict[str, Any]
    entries: list[tuple[float, Event | None, list[Action], str]] = field(default_factory=list)


class GangLog:
    """Log of a group's events of bounded size; used on the same thread as the group."""

    def __init__(self, gang: GroupMachine) -> None:
        """Begin a log of ``gang``, which must not have begun."""
        self._gang = gang
        self._parts = [_Part(msgspec.to_builtins(gang))]
        self.dropped = 0

    def add(self, now: float, event: Event | None, actions: list[Action]) -> None:
        """Append a decision of the group.

        Args:
            now: Monotonic time in seconds.
            event: The event; None for the beginning of the run.
            actions: The actions that followed.
        """
        newest = self._parts[-1].entries
        newest.append((now, event, actions, self._gang.phase.value))
        if len(newest) == PART:
            self.dropped += sum(len(part.entries) for part in self._parts[:-1])
            self._parts = [self._parts[-1], _Part(msgspec.to_builtins(self._gang))]

    def to_jsonl(self) -> bytes:
        """Return the file's content.

        ``clock`` of the first line plus the time of an event is its time in seconds since the epoch.
        """
        first = {
            "version": VERSION,
            "hopsml": str(sys.modules["hopsml"].__version__),
            "machine": type(self._gang).__name__,
            "dropped": self.dropped,
            "clock": time.time() - time.monotonic(),
            "state": self._parts[0].state,
        }
        lines = [first] + [
            {"at": now, "event": event_record(event), "actions": [event_record(one) for one in actions], "phase": phase}
            for part in self._parts
            for now, event, actions, phase in part.entries
        ]
        return "".join(json.dumps(redact.record(line), ensure_ascii=False) + "\n" for line in lines).encode()


def event_record(value: Event | Action | None) -> dict[str, Any] | None:
    """Return an event or action as plain values, with the name of its class as ``kind``; None for None."""
    if value is None:
        return None
    if isinstance(value, Note):
        return {"kind": "Note", "text": value.text}
    return {"kind": type(value).__name__, **msgspec.to_builtins(value)}


MOST_LOSSES = 100  # lost workers that are recorded, the newest
LOG_KEPT = 4 << 20  # characters of a rank's output that are retained, the newest


@dataclass
class MemberView:
    """View of one rank for displays: its host, devices, state and progress."""

    rank: int
    host: str
    executor_id: str
    gpu_indices: tuple[int, ...]
    state: str = Lifecycle.STARTING
    step: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    left: str = ""  # why an independent member has left
    # effective settings and collective statistics of the worker; ``worker/collective_stats.py``
    seen: dict[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class UnstoredFiles:
    """Files of one worker, or of the whole run, that are not on its store.

    Attributes:
        texts: Path and reason of each, in one text; at most some of ``count``.
        count: Number of these files.
        left: Host and path of the local copies; "" if there are none.
    """

    texts: tuple[str, ...]
    count: int
    left: str = ""


@dataclass(frozen=True)
class Change:
    """Change of a run's state, as published to observers.

    The meaning of the fields depends on the kind. ``progress``: ``step`` of ``total``, in units of ``text``. ``said``:
    ``data`` is a worker's message, for code that knows its encoding, such as a search. ``profile``: the request whose
    id is ``data`` has been carried out, or not for the reason in ``text``. ``joined`` and ``left``: an independent
    member, with its host, or with the reason. ``skipped``: ``text`` has what was omitted because the observer was too
    slow. ``slots``: independent members may use ``total`` slots. ``end``: the group has ended. ``closed``, the last
    one: the run directory is complete; with ``metrics`` the function's outputs, or with the ``error`` that the caller
    gets.

    Attributes:
        kind: phase, member, report, progress, said, system, log, note, profile, skipped, joined, left, slots, end or
            closed.
        rank: Rank that it concerns; -1: the whole run.
        text: Text for users.
        metrics: Values by name.
        step: Steps done.
        time: Seconds since the epoch, for values that a worker has reported.
        error: The run's error.
        data: Message or id as bytes.
        total: Largest value of ``step``, or a number of slots.
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
    """Backlog rule of an observer: output and reports may be skipped, but the newest report is retained."""

    def worth(self, item: Change) -> callbacks.Worth:
        """Return the importance of a change."""
        if item.kind in ("log", "report", "progress", "system"):
            return "update"
        return "news" if item.kind in ("note", "said", "member", "profile", "skipped") else "end"

    def size(self, item: Change) -> int:
        """Return the approximate memory of a change, in bytes."""
        return len(item.text) + 64 * len(item.metrics) + 64

    def same_as(self, item: Change) -> Hashable | None:
        """Return the key by which the newest of skipped changes is retained; None if it is not."""
        return (item.kind, item.rank) if item.kind in ("report", "progress", "system") else None

    def count(self, item: Change, skipped: Counter[str]) -> None:
        """Count a skipped change."""
        if item.kind == "log":
            skipped["lines"] += item.text.count("\n")
            skipped["bytes"] += len(item.text)
        else:
            skipped["notes" if item.kind == "note" else "updates"] += 1

    def skipped_item(self, skipped: Counter[str]) -> Change:
        """Return the change that reports what was skipped."""
        parts = [f"{skipped['lines']} lines of output ({skipped['bytes'] / 1e6:.1f} MB)"] * bool(skipped["bytes"])
        parts += [f"{skipped[name]} {name}" for name in ("updates", "notes") if skipped[name]]
        return Change("skipped", text=f"{', '.join(parts)} were skipped here, since they were not read in time")


class Losses:
    """Record of the workers that a run has lost while it continued; written on the coordinator's thread."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []  # the newest ``MOST_LOSSES``
        self._workers = self._lost_by_restart = 0  # workers of this generation, and those lost at its end

    def record_lost(self, lost: Iterable[tuple[int, str]], step: int, restarts: bool = False) -> None:
        """Record lost workers by rank and cause.

        Args:
            lost: Rank and cause of each.
            step: Step at which the others went on, or the furthest one reached; -1: unknown.
            restarts: True if all workers start again because of them.
        """
        new = [
            {"rank": rank, "step": _known(step), "cause": redact.text(cause), "replaced": False, "replaced_at": None}
            for rank, cause in lost
        ]
        self.entries = [*self.entries, *new][-MOST_LOSSES:]
        self._lost_by_restart += len(new) if restarts else 0
        self._workers -= 0 if restarts else len(new)

    def record_joined(self, count: int, step: int) -> None:
        """Record that workers joined at a step (-1: unknown): they replace the first lost ones without replacement."""
        self._workers += count
        for entry in [one for one in self.entries if not one["replaced"]][:count]:
            entry |= {"replaced": True, "replaced_at": _known(step)}

    def record_restart(self, size: int, step: int) -> None:
        """Record that ``size`` workers start from a step (-1: unknown), after the losses of the last generation."""
        remaining = self._workers - self._lost_by_restart
        self.record_joined(max(0, size - remaining), step)
        self._workers, self._lost_by_restart = size, 0


def _known(step: int) -> int | None:
    return step if step >= 0 else None


class RunState:
    """Observable state of one run; every public method may be called from any thread."""

    def __init__(self, run_id: str, size: int) -> None:
        self.run_id, self.size = run_id, size
        self.phase = Phase.WAITING
        self.generation = 0
        self.begun = 0  # generation in which the present processes began, which names their logs
        self.members: dict[int, MemberView] = {}
        self.layout: Layout | None = None
        self.gang_log: GangLog | None = None  # set once the run has begun
        self.began = time.time()
        self.result: bytes = b""
        self.error: BaseException | None = None
        self.behind: dict[int, UnstoredFiles] = {}  # by rank; -1: of the whole run
        self.notes: list[str] = []
        self.losses = Losses()
        self.progress: tuple[int, int, str] | None = (
            None  # units done, all units, and what a unit is, as the chief reported
        )
        self.committed = False  # True once a worker has committed its training state
        self._first_step: tuple[int, float] | None = None
        self._last_step: tuple[int, float] | None = None
        self._logs: dict[int, _Output] = {}
        self._observers = Observers(f"hopsml-observer-{run_id}", _Changes())
        self._joined: dict[int, str] = {}  # independent members that have joined and not left
        self._slots: Change | None = None  # the number of slots that they may use
        self._closed: Change | None = None
        self._over = threading.Event()

    # -------------------------------------------------------------------------------- written by the coordinator

    def begin_generation(self, generation: int, size: int) -> None:
        """Remove the members of the last generation; ``size``: number of members of the new one."""
        self.generation = self.begun = generation
        self.size = size
        self.members = {}

    def continue_generation(self, generation: int, members: dict[int, MemberView]) -> None:
        """Continue as another generation with these members, by rank, whose processes existed before."""
        self.generation, self.size, self.members = generation, len(members), members

    def publish_member_change(self, kind: str, rank: int, text: str) -> None:
        """Publish that an independent member has ``joined`` or ``left``; ``text``: its host, or why it left."""
        if kind == "left" and rank in self.members:
            in_order = text in (RELEASED, RETURNED)
            self.members[rank].state = Lifecycle.STOPPED if in_order else Lifecycle.LOST
            self.members[rank].left = text
        self.publish(Change(kind, rank, text))

    def closed(self, rank: int, texts: tuple[str, ...], count: int, left: str) -> None:
        """Record which files of a worker that has ended are not stored; those of its earlier generation are by now."""
        self.behind.pop(rank, None)
        if count:
            self.behind[rank] = UnstoredFiles(tuple(redact.text(text) for text in texts), count, left)

    def add_unstored(self, rank: int, text: str) -> None:
        """Record a further file that is not stored."""
        known = self.behind.get(rank, UnstoredFiles((), 0))
        self.behind[rank] = replace(known, texts=(*known.texts, redact.text(text)), count=known.count + 1)

    def publish(self, change: Change) -> None:
        """Record a change and pass it to the observers without waiting; an observer that fails is removed.

        Secrets are masked in all texts except the function's own output.
        """
        if change.kind != "log" and change.text:
            change = replace(change, text=redact.text(change.text))
        self._observers.send(change, lambda: self._record(change))

    def _record(self, change: Change) -> None:
        """Record a change."""
        if change.kind == "log":
            self._logs.setdefault(change.rank, _Output()).add(change.text)
        elif change.kind == "report" and change.rank == 0 and change.step is not None:
            self._last_step = (change.step, change.time)
            self._first_step = self._first_step or self._last_step
        elif change.kind == "progress" and change.rank == 0 and change.step is not None:
            self.progress = (change.step, change.total, change.text)
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
        """Record that the run has ended, with its error or with the pickled value of its function."""
        self.error, self.result = error, result
        self._over.set()
        self.publish(Change("end"))

    # -------------------------------------------------------------------------------- read by any thread

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait at most ``timeout_s`` seconds for the run's end (None: for ever); return True if the run has ended."""
        return self._over.wait(timeout_s)

    @property
    def is_over(self) -> bool:
        """True if the run has ended, successfully or not."""
        return self._over.is_set()

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` for every change from now on, in order, on a separate thread.

        A slow one delays no other code.

        An observer that is too slow misses output and reports; a change ``skipped`` has their number. One marked by
        ``callbacks.mark_immediate`` is called by the publishing thread. The observer first gets a ``joined`` for each
        present independent member and the present ``slots``, and ``closed`` at once if the run is closed.
        """
        with self._observers.lock:  # the end of a member must not be published before its beginning
            tell = self._observers.add(observer)
            closed = self._closed
            for rank, host in self._joined.items():
                tell(Change("joined", rank, host))
            if self._slots is not None:
                tell(self._slots)
        if closed is not None:
            tell(closed)

    def wait_for_observers(self, timeout_s: float = callbacks.SETTLE_S) -> bool:
        """Wait at most ``timeout_s`` seconds until the observers have processed everything.

        Return True if they have.
        """
        return self._observers.wait_until_delivered(timeout_s)

    def steps_per_second(self) -> float:
        """Return the steps per second between the chief's first and last report; 0.0 if there were fewer than two."""
        with self._observers.lock:
            first, last = self._first_step, self._last_step
        if first is None or last is None or last[1] <= first[1]:
            return 0.0
        return (last[0] - first[0]) / (last[1] - first[1])

    @property
    def step(self) -> int | None:
        """Newest step that the chief has reported; None if it has reported none."""
        with self._observers.lock:
            return self._last_step[0] if self._last_step is not None else None

    def log(self, rank: int) -> str:
        """Return the received output of this rank, its newest ``LOG_KEPT`` characters."""
        with self._observers.lock:
            output = self._logs.get(rank)
            return output.text() if output is not None else ""


class _Output:
    """Newest part of the output of a rank."""

    def __init__(self) -> None:
        self._pieces: deque[str] = deque()
        self._length = 0

    def add(self, text: str) -> None:
        """Append text, and drop the oldest pieces beyond the limit."""
        self._pieces.append(text)
        self._length += len(text)
        while self._length - len(self._pieces[0]) >= LOG_KEPT:
            self._length -= len(self._pieces.popleft())

    def text(self) -> str:
        """Return the retained output."""
        return "".join(self._pieces)
