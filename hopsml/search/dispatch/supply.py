"""Choice of the next trial: retries first, then paused trials that the stopper resumes, then new ones."""

from __future__ import annotations

from collections import deque

from hopsml.search.dispatch.ask_tell import AskTell
from hopsml.search.dispatch.ledger import TrialPhase, TrialState


class ReadyQueue:
    """First-in-first-out queue that can skip trials of one lane, in time independent of its length."""

    def __init__(self) -> None:
        self._queues: dict[int | None, deque[tuple[int, TrialState]]] = {}  # lane to avoid -> (position, trial)
        self._last = 0
        self._first = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, trial: TrialState, first: bool = False) -> None:
        """Append a trial, or put it before all others.

        ``first`` is for a trial that had been assigned already.
        """
        queue = self._queues.setdefault(trial.avoid, deque())
        self._count += 1
        if first:
            self._first -= 1
            queue.appendleft((self._first, trial))
        else:
            self._last += 1
            queue.append((self._last, trial))

    def take(self, lane: int | None = None) -> TrialState | None:
        """Remove and return the first trial that may run on ``lane``; None if there is none.

        Args:
            lane: number of the lane; None: any lane.
        """
        turns = [(queue[0][0], key) for key, queue in self._queues.items() if lane is None or key != lane]
        if not turns:
            return None
        _, key = min(turns, key=lambda turn: turn[0])
        queue = self._queues[key]
        _, trial = queue.popleft()
        if not queue:
            del self._queues[key]
        self._count -= 1
        return trial

    def drain(self) -> list[TrialState]:
        """Remove and return all trials, in order."""
        entries = sorted((entry for queue in self._queues.values() for entry in queue), key=lambda entry: entry[0])
        self._queues.clear()
        self._count = 0
        return [trial for _, trial in entries]


class Supply:
    """Source of the next trial for a free lane or group."""

    def __init__(self, ask_tell: AskTell) -> None:
        self.ask_tell = ask_tell
        self.ready = ReadyQueue()

    def returning(self, lane: int | None = None) -> TrialState | None:
        """Return the next trial that ran before and continues, by retry or resume; None if there is none.

        Args:
            lane: number of the lane that will run it; None: any lane.
        """
        trial = self.ready.take(lane)
        while trial is None:
            trial = self.ask_tell.resume()
            if trial is None or trial.phase is TrialPhase.OVER:
                return None
            if trial.phase is not TrialPhase.READY:
                trial = None  # it has not paused yet, and is queued again when it has
            elif lane is not None and trial.avoid == lane:
                self.ready.put(trial)  # another lane may run it
                trial = None
        return trial

    def next(self, lane: int | None = None) -> TrialState | None:
        """Return the next trial: one that ran before, else a new one; None if there is none at present.

        Args:
            lane: number of the lane that will run it; None: any lane.
        """
        return self.returning(lane) or self.ask_tell.next_trial()
