"""Synchronization point at which a training's own thread waits, between two batches, for workers to join the group.

It uses no socket and no group.
"""

from __future__ import annotations

import threading


class PausePoint:
    """Wait condition opened once for each generation that has formed, in any order, by the threads that form them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._opened: dict[int, bool] = {}

    def open(self, generation: int, meets: bool) -> None:
        """Announce that the group continues as a generation.

        Args:
            generation: the generation that has formed.
            meets: True if the waiting threads must exchange the chief's state first.
        """
        with self._changed:
            self._opened[generation] = meets
            self._changed.notify_all()

    def wait(self, generation: int) -> bool:
        """Wait for a generation later than ``generation``, in which the worker has paused.

        The first later generation that has formed here decides. On another member it may be a further one, which has
        the same ``meets``: the value does not change until every member has continued.

        Args:
            generation: the generation in which the worker has paused.

        Returns:
            True if the chief's state must be exchanged in the new generation.
        """
        with self._changed:
            self._changed.wait_for(lambda: any(later > generation for later in self._opened))
            first = min(later for later in self._opened if later > generation)
            meets = self._opened[first]
            self._opened = {later: opened for later, opened in self._opened.items() if later >= first}
            return meets
