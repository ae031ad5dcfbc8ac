"""A wish that a run should end, left in its directory by whoever cannot reach its driver, who looks for it now and then."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass

from hopsml import settings
from hopsml.errors import PathNotFound, StorageError
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir

LOCAL_S, REMOTE_S = 1.0, 5.0  # between two looks, on this machine's disk and elsewhere: one call each
SLOWEST_S = 60.0  # between looks at a store that does not answer
TIMEOUT_S = 5.0  # of one look


def ask(directory: RunDir, reason: str) -> None:
    """Leave the wish; one that is there already is replaced. Raises StorageError."""
    wish = {"reason": reason, "by": settings.user_name(), "from": platform.node(), "asked": time.time()}
    directory.write_json(directory.cancel_json, wish)


def withdraw(directory: RunDir) -> None:
    """Take it back: a search that goes on in its directory shall not end by what ended it before."""
    for_url(directory.cancel_json).delete(directory.cancel_json)


def asked(directory: RunDir) -> str:
    """Why the run shall end, and who wants it; "" where nobody does. Raises StorageError."""
    try:
        wish = RunDir(directory.url, TIMEOUT_S).read_json(directory.cancel_json)
    except PathNotFound:
        return ""
    return f"{wish.get('reason') or 'cancelled'} (hopsml cancel, {wish.get('by')} on {wish.get('from')})"


@dataclass
class Looks:
    """How often to look for a wish: seldom where the store is remote, and more and more seldom where it does not answer."""

    pause_s: float
    usual_s: float

    @classmethod
    def at(cls, directory: RunDir) -> Looks:
        """For a run's directory."""
        usual_s = LOCAL_S if urls.split(directory.url)[0] in ("", "file") else REMOTE_S
        return cls(usual_s, usual_s)

    def look(self, directory: RunDir) -> str:
        """As ``asked``; "" for a store that cannot be asked just now."""
        try:
            reason = asked(directory)
        except StorageError:
            self.pause_s = min(2 * self.pause_s, SLOWEST_S)
            return ""
        self.pause_s = self.usual_s
        return reason
