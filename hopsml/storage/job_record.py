"""A job's driver tells whoever started it which run directory it made: a file at the URL in ``HOPSML_JOB_RECORD``.

A scheduler (Airflow) sets the variable for the driver and reads the file when the driver is gone. The last run that a
driver begins is the one that counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from hopsml.errors import PathNotFound
from hopsml.storage import filesystem
from hopsml.storage.run_dir import RunDir, to_json

VARIABLE = "HOPSML_JOB_RECORD"


def announce(directory: RunDir, application: str) -> None:
    """Write down where the run lies that this driver has just begun; nothing where nobody asked for it."""
    url = os.environ.get(VARIABLE)
    if url:
        write(url, {"run_dir": directory.url, "run_id": directory.run_id, "application": application})


def write(url: str, record: Mapping[str, Any]) -> None:
    """Write the record as JSON to ``url``, replacing one that is there, in one step. Raises StorageError."""
    filesystem.for_url(url).write_bytes(url, to_json(record))


def read(url: str) -> dict[str, Any] | None:
    """The record that a driver wrote to ``url``; None where there is none. Raises StorageError."""
    try:
        record = json.loads(filesystem.read_record(url))
    except PathNotFound:
        return None
    return record if isinstance(record, dict) else None
