"""The queue of trials that are ready to run, some of which must not run on the lane where they failed."""

from __future__ import annotations

from collections import deque

from hopsml.search.dispatch.ledger import Trial


class ReadyQueue:
    """A first-in-first-out queue that can skip trials of one lane; taking is as fast with many of them."""

    def __init__(self) -> None:
        self._queues: dict[int | None, deque[tuple[int, Trial]]] = {}  # lane to be avoided -> (turn, trial)
        self._last = 0
        self._first = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, trial: Trial, first: bool = False) -> None:
        """Append a trial; ``first``: before all others, as it was on its way already."""
        queue = self._queues.setdefault(trial.avoid, deque())
        self._count += 1
        if first:
            self._first -= 1
            queue.appendleft((self._first, trial))
        else:
            self._last += 1
            queue.append((self._last, trial))

    def take(self, lane: int | None = None) -> Trial | None:
        """Remove and return the first trial that may run on ``lane`` (None: on any lane); None if there is none."""
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

    def drain(self) -> list[Trial]:
        """Remove and return all trials, in order."""
        entries = sorted((entry for queue in self._queues.values() for entry in queue), key=lambda entry: entry[0])
        self._queues.clear()
        self._count = 0
        return [trial for _, trial in entries]
