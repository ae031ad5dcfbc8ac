"""Log of the newest events and actions of a run's group: ``gang.jsonl`` of a failed run, for ``tools.replay_gang``.

The first line names the state machine and has its state before the events that follow; older events may have been
dropped. Each further line has an event (``null`` for the run's beginning), its time, the actions that followed, and the
phase after it. The state machines are pure, so the events give the same decisions again. Secrets are masked in all of
it.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hopsml.cluster.gang.events import Action, Event
from hopsml.cluster.gang.machine import GroupMachine
from hopsml.core import redact

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
            {"at": now, "event": described(event), "actions": [described(one) for one in actions], "phase": phase}
            for part in self._parts
            for now, event, actions, phase in part.entries
        ]
        return "".join(json.dumps(redact.record(line), ensure_ascii=False) + "\n" for line in lines).encode()


def described(value: Event | Action | None) -> dict[str, Any] | None:
    """Return an event or action as plain values, with the name of its class as ``kind``; None for None."""
    if value is None:
        return None
    return {"kind": type(value).__name__, **msgspec.to_builtins(value)}
