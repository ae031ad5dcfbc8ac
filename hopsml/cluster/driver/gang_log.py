"""The newest events of a run's gang with what it decided: ``gang.jsonl`` of a failed run, for ``tools.replay_gang``.

The first line says which machine it was and what its state was before the events that follow, the oldest of which may have
been dropped. Each further line is an event (``null`` for the run's beginning), when it came, what followed, and the phase
after it. The machines are pure, so the events give the same decisions again. Secrets are masked in all of it.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hopsml import redact
from hopsml.cluster.gang.events import Action, Event
from hopsml.cluster.gang.gang import Gang

VERSION = 1
PART = 2048  # events; the newest PART to twice as many are kept


@dataclass
class _Part:
    """Consecutive events, and the state of the machine before them."""

    state: dict[str, Any]
    entries: list[tuple[float, Event | None, list[Action], str]] = field(default_factory=list)


class GangLog:
    """Bounded, however long the run is; used where the gang is."""

    def __init__(self, gang: Gang) -> None:
        """``gang``: before its beginning."""
        self._gang = gang
        self._parts = [_Part(msgspec.to_builtins(gang))]
        self.dropped = 0

    def add(self, now: float, event: Event | None, actions: list[Action]) -> None:
        """Keep what the gang has just decided at ``now`` (monotonic seconds); ``event``: None for its beginning."""
        newest = self._parts[-1].entries
        newest.append((now, event, actions, self._gang.phase.value))
        if len(newest) == PART:
            self.dropped += sum(len(part.entries) for part in self._parts[:-1])
            self._parts = [self._parts[-1], _Part(msgspec.to_builtins(self._gang))]

    def to_jsonl(self) -> bytes:
        """The file's content; ``clock`` of the first line plus the time of an event is seconds since the epoch."""
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
    """An event or action as plain values, with the name of its class as ``kind``."""
    if value is None:
        return None
    return {"kind": type(value).__name__, **msgspec.to_builtins(value)}
