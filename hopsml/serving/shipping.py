"""Upload of complete segments of the request log, with pauses while the storage is unavailable."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from hopsml.errors import StorageError
from hopsml.serving import places, request_log
from hopsml.serving.messages import ServingSettings
from hopsml.serving.places import ServingFolder
from hopsml.storage import urls
from hopsml.storage.backoff import Outage
from hopsml.storage.filesystem import for_url

log = logging.getLogger("hopsml.serving")

EVERY_S = 2.0
LAST_TIMEOUT_S = 20.0  # at the end; remaining segments are uploaded after the next start


class Shipper:
    """Uploader of the request log, including segments of killed replicas; it runs in the supervisor or agent."""

    def __init__(self, folder: ServingFolder, settings: ServingSettings) -> None:
        self._folder, self._settings = folder.requests, settings
        self._one = threading.Lock()  # the last upload may start during an abandoned one
        self._outage = Outage(EVERY_S)

    async def run(self) -> None:
        """Upload complete segments periodically, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            if self._outage.may_try(time.monotonic()):
                await asyncio.to_thread(self._ship)

    async def last(self) -> None:
        """Upload the remaining segments, when no replica writes any more."""
        try:
            await asyncio.wait_for(asyncio.to_thread(self._ship), LAST_TIMEOUT_S)
        except TimeoutError:
            log.warning("the rest of the request log stays in %s, for the next start", self._folder)

    def _ship(self) -> None:
        """Upload all complete segments, one upload at a time."""
        with self._one:
            if self._folder.is_dir():
                self._ship_all()

    def _ship_all(self) -> None:
        """Complete the segments of ended writers, and upload all complete ones."""
        for name in request_log.left_by([path.name for path in self._folder.iterdir()], self._writers()):
            with contextlib.suppress(FileNotFoundError):
                request_log.finish(self._folder / name)
        for path in sorted(self._folder.glob(f"*{request_log.COMPLETE}")):
            try:
                self._upload(path)
            except FileNotFoundError:  # another agent on this machine has uploaded it
                continue
            except StorageError as error:
                if self._outage.failed(time.monotonic()):
                    log.warning("the request log waits in %s: %s", self._folder, error)
                return
        if self._outage.succeeded():
            log.info("the request log is brought to storage again")

    def _writers(self) -> set[str]:
        """Return the names of writers whose processes run; a name ends with the pid."""
        names = {path.name.rpartition("-")[0] for path in self._folder.glob(f"*{request_log.PART}")}
        return {name for name in names if Path("/proc", name.rpartition("-")[2]).exists()}

    def _upload(self, path: Path) -> None:
        """Upload a segment to the folder of its day, and delete it."""
        when = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        day = urls.join(places.requests_url(self._settings.name, self._settings.project), f"{when:%Y-%m-%d}")
        url = urls.join(day, f"{socket.gethostname()}-{when:%H%M%S}-{path.name}")
        for_url(url).upload(path, url)
        path.unlink()
