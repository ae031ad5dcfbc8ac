"""Where a training's own thread waits, between two batches, for newcomers to come into the group; no socket, no group."""

from __future__ import annotations

import threading


class PausePoint:
    """Opened by the threads that form the group's generations, once for each that has formed, in any order."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._opened: dict[int, bool] = {}

    def open(self, generation: int, meets: bool) -> None:
        """The group goes on as this generation; ``meets``: those that wait exchange the chief's state first."""
        with self._changed:
            self._opened[generation] = meets
            self._changed.notify_all()

    def wait(self, generation: int) -> bool:
        """Wait, paused in ``generation``, for a later one; whether the chief's state is to be exchanged in it.

        The first later one that has formed here decides. On another member that may be a further one, which says the same:
        it does until every member has gone on.
        """
        with self._changed:
            self._changed.wait_for(lambda: any(later > generation for later in self._opened))
            first = min(later for later in self._opened if later > generation)
            meets = self._opened[first]
            self._opened = {later: opened for later, opened in self._opened.items() if later >= first}
            return meets
