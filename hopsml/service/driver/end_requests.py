"""Requests to a remote driver to end in order, as files on the project's storage.

    <project>/Jobs/<tag>.end

The driver polls for the file of its tag every two seconds, and is interrupted as by Ctrl-C: its runs are cancelled, and
the output of their workers so far is stored. YARN itself can only kill.
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
    """Request the driver of a launch to end.

    Raises:
        StorageError: The file cannot be written.
    """
    url = _url(project_url, tag)
    for_url(url).write_bytes(url, b"")


def is_there(project_url: str, tag: str) -> bool:
    """Return True if the driver of a launch was requested to end.

    Raises:
        StorageError: The storage cannot be read.
    """
    url = _url(project_url, tag)
    try:
        for_url(url).read_bytes(url)
    except PathNotFound:
        return False
    return True


def watch(environment: Mapping[str, str]) -> None:
    """Start to poll for a request to end, in a driver that a service started; it is interrupted once."""
    if tag := environment.get(TAG):
        threading.Thread(
            target=_look, args=(settings.project_url(), tag), name="hopsml-end-request", daemon=True
        ).start()


def _look(project_url: str, tag: str) -> None:
    """Poll for the file, and interrupt this process when it exists."""
    while True:
        try:
            if is_there(project_url, tag):
                os.kill(os.getpid(), signal.SIGINT)
                return
        except StorageError as error:
            log.debug("whether %s is to end could not be asked: %s", tag, error)
        time.sleep(LOOK_S)


def _url(project_url: str, tag: str) -> str:
    """Return the URL of the file for a launch."""
    return urls.join(project_url, FOLDER, f"{tag}.end")
