"""Asking a driver that is elsewhere to end in order: a file on the project's store, by the tag of its launch.

    <project>/Jobs/<tag>.end

The driver looks for it every few seconds and is interrupted, as by Ctrl-C: its runs are cancelled, and what their workers
have written so far comes to the store. YARN itself can only kill.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Mapping

from hopsml import settings
from hopsml.errors import PathNotFound, StorageError
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url

log = logging.getLogger("hopsml.service")

LOOK_S = 2.0
TAG = "HOPSML_JOB_TAG"
FOLDER = "Jobs"


def put(project_url: str, tag: str) -> None:
    """Ask. Raises StorageError."""
    url = _url(project_url, tag)
    for_url(url).write_bytes(url, b"")


def is_there(project_url: str, tag: str) -> bool:
    """Whether somebody has asked. Raises StorageError."""
    url = _url(project_url, tag)
    try:
        for_url(url).read_bytes(url)
    except PathNotFound:
        return False
    return True


def watch(environment: Mapping[str, str]) -> None:
    """Begin to look, in a driver that a service has started; it is interrupted once."""
    if tag := environment.get(TAG):
        threading.Thread(
            target=_look, args=(settings.project_url(), tag), name="hopsml-end-request", daemon=True
        ).start()


def _look(project_url: str, tag: str) -> None:
    while True:
        try:
            if is_there(project_url, tag):
                os.kill(os.getpid(), signal.SIGINT)
                return
        except StorageError as error:
            log.debug("whether %s is to end could not be asked: %s", tag, error)
        time.sleep(LOOK_S)


def _url(project_url: str, tag: str) -> str:
    return urls.join(project_url, FOLDER, f"{tag}.end")
