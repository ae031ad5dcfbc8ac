"""Feed of the changes of a project's runs."""

from __future__ import annotations

from hopsml.service.browse.changes import Changes
from hopsml.service.rest.event_stream import encoded


class ProjectFeed:
    """Events of changed runs; a position is the id of an event."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    @property
    def version(self) -> str:
        """Return the id of the newest event."""
        return self._changes.newest

    def poll(self) -> None:
        """Poll the project for changes. Raises StorageError."""
        self._changes.poll()

    async def start_listener(self, last: str) -> tuple[str, bytes]:
        """Return a listener's start position and its greeting: the newest event, or the listener's last one.

        Args:
            last: Id of the last event that the listener has received; "" for none.
        """
        at = last or self._changes.newest
        return at, encoded(at, "hello", {})

    async def since(self, at: str) -> tuple[list[bytes], str | None]:
        """Return all events after a position, and the position after them."""
        found = self._changes.since(at)
        return [encoded(event.id, event.kind, {"run": event.run}) for event in found], found[-1].id if found else at
