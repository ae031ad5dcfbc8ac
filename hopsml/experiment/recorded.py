"""Verb ``recorded``: a run directory for work of the driver itself, such as preparing data or registering a model.

with experiment.recorded("digits-etl", args={"parts": 4}) as run:
    frame.write.parquet(run.path("data"))
    run.metrics["rows"] = frame.count()
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from hopsml.cluster.shared.plain import argument_as_json, as_json
from hopsml.core import redact, settings, states
from hopsml.core.states import Lifecycle
from hopsml.experiment import applications
from hopsml.experiment.ending import status_record
from hopsml.storage import run_dir, urls
from hopsml.storage.run_dir import create_run_dir
from hopsml.tracking import listing, record
from hopsml.tracking.record import RunRecordWriter


@dataclass
class Recorded:
    """Run without workers that is under way; the contents of ``metrics`` become its result."""

    run_id: str
    run_dir: str
    metrics: dict[str, Any] = field(default_factory=dict)

    def path(self, *names: str) -> str:
        """Return the URL of a file or folder of the run; nothing is created."""
        return urls.join(self.run_dir, *names)

    def json(self, **more: Any) -> str:
        """Return one line of JSON for scripts: metrics, run id and directory, and the given entries."""
        return listing.json_line(
            as_json({**redact.arguments(self.metrics), "run_id": self.run_id, "run_dir": self.run_dir, **more}),
            ascii_only=True,
        )


@contextmanager
def recorded(
    name: str = "",
    args: Mapping[str, Any] | None = None,
    description: str | None = None,
    share: str | None = None,
) -> Iterator[Recorded]:
    """Record the work of the ``with`` block as a run, which ends with the block, also by an error.

    Args:
        name: run name, shown where runs are listed; by default that of the script.
        args: parameters of the work; they are only recorded.
        description: free text, shown where runs are listed.
        share: who may read the run's files, as in ``collective_all_reduce``.

    Yields:
        The run, for its directory and its metrics.

    Raises:
        StorageError: the run directory cannot be written; names the path.
    """
    application, started_s = applications.current_id(), time.time()
    about = record.driver_record()
    request = {
        "verb": "recorded",
        "name": name or PurePath(str(about.get("script") or "")).stem or "no-name",
        "description": description or "",
        "arguments": redact.arguments(argument_as_json(dict(args or {}))),
        "workers": 0,
        "application": application,
        "user": settings.project_name(),
        "driver": platform.node(),
        **about,
    }
    directory = create_run_dir(settings.project_url(), application, request, share=share)
    run_dir.announce_run(directory, application)
    recording = RunRecordWriter(directory, None).start()
    run = Recorded(directory.run_id, directory.url)
    try:
        yield run
        directory.write_json(directory.outputs_json, as_json(run.metrics))
    except BaseException as error:
        recording.join()
        text = f"{type(error).__name__}: {error}"
        directory.write_status(status_record(run.run_id, states.final_state(error), started_s, text))
        raise
    recording.join()
    directory.write_status(status_record(run.run_id, Lifecycle.FINISHED, started_s))
