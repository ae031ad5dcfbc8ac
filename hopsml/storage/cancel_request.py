"""A request that a run should end, left in its directory by who cannot reach its driver, which polls for it."""

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


def write(directory: RunDir, reason: str) -> None:
    """Ask for the run's end; a request that is there already is replaced. Raises StorageError."""
    request = {"reason": reason, "by": settings.user_name(), "from": platform.node(), "asked": time.time()}
    directory.write_json(directory.cancel_json, request)


def delete(directory: RunDir) -> None:
    """Take the request back: a search that goes on in its directory shall not end by what ended it before."""
    for_url(directory.cancel_json).delete(directory.cancel_json)


def read(directory: RunDir) -> str:
    """Why the run shall end, and who asks for it; "" where nobody does. Raises StorageError."""
    try:
        request = RunDir(directory.url, TIMEOUT_S).read_json(directory.cancel_json)
    except PathNotFound:
        return ""
    return f"{request.get('reason') or 'cancelled'} (hopsml cancel, {request.get('by')} on {request.get('from')})"


@dataclass
class Polling:
    """How often to look for a request: seldom on a remote store, more and more seldom on one that does not answer."""

    pause_s: float  # until the next look
    usual_s: float

    @classmethod
    def of(cls, directory: RunDir) -> Polling:
        """As often as the store of a run's directory bears it."""
        usual_s = LOCAL_S if urls.is_local(directory.url) else REMOTE_S
        return cls(usual_s, usual_s)

    @property
    def is_usual(self) -> bool:
        """Whether the store answered the last time."""
        return self.pause_s == self.usual_s

    def poll(self, directory: RunDir) -> str:
        """As ``read``, but "" for a store that does not answer; sets ``pause_s``."""
        try:
            reason = read(directory)
        except StorageError:
            self.pause_s = min(2 * self.pause_s, SLOWEST_S)
            return ""
        self.pause_s = self.usual_s
        return reason
