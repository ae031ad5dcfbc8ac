"""What changes in a project, as it can be followed."""

from __future__ import annotations

from hopsml.service.browse.changes import Changes
from hopsml.service.rest.event_stream import encoded


class ProjectFeed:
    """Events of runs; a place is the id of an event."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    @property
    def version(self) -> str:
        """The newest event."""
        return self._changes.newest

    def look(self) -> None:
        """Look at the project. Raises StorageError."""
        self._changes.look()

    async def begin(self, last: str) -> tuple[str, bytes]:
        """At the newest event, or where the listener was."""
        at = last or self._changes.newest
        return at, encoded(at, "hello", {})

    async def since(self, at: str) -> tuple[list[bytes], str | None]:
        """All that came after it."""
        found = self._changes.since(at)
        return [encoded(event.id, event.kind, {"run": event.run}) for event in found], found[-1].id if found else at
