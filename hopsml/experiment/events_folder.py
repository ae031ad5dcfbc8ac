"""The folder for event files on a remote store, made while agents start: it is there before anything is written in it."""

from __future__ import annotations

import threading

from hopsml.delivery import logger_aside
from hopsml.errors import HopsmlError
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir

logger = logger_aside(__name__)


class EventsFolder:
    """Begins to make the folder at once, on a thread: nobody's start waits for the store.

    In a local run directory workers make it. A store that refuses is logged: what workers write makes the folder as well.
    """

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory
        self._thread: threading.Thread | None = None
        if urls.split(directory.url)[0] not in ("", "file"):
            self._thread = threading.Thread(target=self._make, name=f"hopsml-events-{directory.run_id}", daemon=True)
            self._thread.start()

    def _make(self) -> None:
        try:
            for_url(self._directory.events).make_dirs(self._directory.events)
        except (HopsmlError, OSError) as error:
            logger.warning("the folder %s was not made: %s", self._directory.events, error)

    def wait(self) -> None:
        """Until that is done, which the storage timeout bounds."""
        if self._thread is not None:
            self._thread.join()
