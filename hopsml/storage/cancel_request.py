"""A request that a run should end, left in its directory by who cannot reach its driver, which polls for it."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass

from hopsml import settings
from hopsml.errors import PathNotFound, StorageError
from hopsml.storage import backoff, urls
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
    """Schedule of reads of a cancel request: seldom on a remote store, with growing pauses while it does not answer."""

    usual_s: float
    failures: int = 0  # looks in a row that the store did not answer

    @classmethod
    def of(cls, directory: RunDir) -> Polling:
        """As often as the store of a run's directory bears it."""
        return cls(LOCAL_S if urls.is_local(directory.url) else REMOTE_S)

    @property
    def pause_s(self) -> float:
        """Seconds until the next read."""
        return backoff.pause_s(self.failures + 1, self.usual_s, SLOWEST_S)

    @property
    def is_usual(self) -> bool:
        """Whether the store answered the last time."""
        return not self.failures

    def poll(self, directory: RunDir) -> str:
        """Return what ``read`` returns, but "" for a store that does not answer, which makes ``pause_s`` longer."""
        try:
            reason = read(directory)
        except StorageError:
            self.failures += 1
            return ""
        self.failures = 0
        return reason
