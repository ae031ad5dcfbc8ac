"""Request to cancel a run, written into its directory by a process that cannot reach its driver, which polls for it."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass

from hopsml import settings
from hopsml.errors import PathNotFound, StorageError
from hopsml.storage import backoff, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir

LOCAL_S, REMOTE_S = 1.0, 5.0  # between two reads, on this machine's disk and elsewhere: one call each
SLOWEST_S = 60.0  # longest pause between reads of a store that does not respond
TIMEOUT_S = 5.0  # of one read


def write(directory: RunDir, reason: str) -> None:
    """Request that the run ends; an existing request is replaced. Raises StorageError."""
    request = {"reason": reason, "by": settings.user_name(), "from": platform.node(), "asked": time.time()}
    directory.write_json(directory.cancel_json, request)


def delete(directory: RunDir) -> None:
    """Delete the request, so that a search that continues in its directory is not cancelled again."""
    for_url(directory.cancel_json).delete(directory.cancel_json)


def read(directory: RunDir) -> str:
    """Return the reason and author of a cancel request; "" if there is none. Raises StorageError."""
    try:
        request = RunDir(directory.url, TIMEOUT_S).read_json(directory.cancel_json)
    except PathNotFound:
        return ""
    return f"{request.get('reason') or 'cancelled'} (hopsml runs cancel, {request.get('by')} on {request.get('from')})"


@dataclass
class Polling:
    """Schedule of reads of a cancel request, with growing pauses while the shared storage does not respond.

    A remote store is read less often than a local disk.
    """

    usual_s: float
    failures: int = 0  # number of failed reads in a row

    @classmethod
    def of(cls, directory: RunDir) -> Polling:
        """Return the schedule for the store of a run's directory."""
        return cls(LOCAL_S if urls.is_local(directory.url) else REMOTE_S)

    @property
    def pause_s(self) -> float:
        """Seconds until the next read.

        It grows while reads fail.
        """
        return backoff.pause_s(self.failures + 1, self.usual_s, SLOWEST_S)

    @property
    def is_usual(self) -> bool:
        """True if the store responded to the last read."""
        return not self.failures

    def poll(self, directory: RunDir) -> str:
        """Return what ``read`` returns, but "" for a store that does not respond, which makes ``pause_s`` longer."""
        try:
            reason = read(directory)
        except StorageError:
            self.failures += 1
            return ""
        self.failures = 0
        return reason
