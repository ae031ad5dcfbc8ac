"""Request to cancel a run, written into its directory by a process that cannot reach its driver, which polls for it."""

from __future__ import annotations

import platform
import time

from hopsml.core import settings
from hopsml.errors import PathNotFound
from hopsml.storage import mailbox
from hopsml.storage.run_dir import RunDir


def write(directory: RunDir, reason: str) -> None:
    """Request that the run ends; an existing request is replaced. Raises StorageError."""
    request = {"reason": reason, "by": settings.user_name(), "from": platform.node(), "asked": time.time()}
    directory.write_json(directory.cancel_json, request)


def delete(directory: RunDir) -> None:
    """Delete the request, so that a search that continues in its directory is not cancelled again."""
    mailbox.discard(directory.cancel_json)


def read(directory: RunDir) -> str:
    """Return the reason and author of a cancel request; "" if there is none. Raises StorageError."""
    try:
        request = RunDir(directory.url, mailbox.TIMEOUT_S).read_json(directory.cancel_json)
    except PathNotFound:
        return ""
    return f"{request.get('reason') or 'cancelled'} (hopsml runs cancel, {request.get('by')} on {request.get('from')})"
