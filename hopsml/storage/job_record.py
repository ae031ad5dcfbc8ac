"""Record in which a job's driver stores its run directory, for the process that started it.

It is a file at the URL in ``HOPSML_JOB_RECORD``. A scheduler (Airflow) sets the variable for the driver, and reads the
file when the driver has exited. The last run that a driver begins counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import PathNotFound
from hopsml.storage import filesystem
from hopsml.storage.run_dir import RunDir, to_json

VARIABLE = Settings.job_record.name


def announce(directory: RunDir, application: str) -> None:
    """Record the run that this driver has just begun; does nothing if no record was requested."""
    url = SETTINGS.job_record
    if url:
        write(url, {"run_dir": directory.url, "run_id": directory.run_id, "application": application})


def write(url: str, record: Mapping[str, Any]) -> None:
    """Write the record as JSON to ``url`` atomically, replacing an existing one. Raises StorageError."""
    filesystem.for_url(url).write_bytes(url, to_json(record))


def read(url: str) -> dict[str, Any] | None:
    """Return the record that a driver wrote to ``url``; None if there is none. Raises StorageError."""
    try:
        record = json.loads(filesystem.read_record(url))
    except PathNotFound:
        return None
    return record if isinstance(record, dict) else None
