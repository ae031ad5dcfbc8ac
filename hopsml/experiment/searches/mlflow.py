"""Each trial of a search as a run of MLflow's own below the search's, where a tracking URI is set; never in its way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hopsml import settings
from hopsml.delivery import logger_aside
from hopsml.experiment import mlflow
from hopsml.storage import filesystem
from hopsml.storage.run_dir import RunDir
from hopsml.tracking.mlflow import entries
from hopsml.tracking.mlflow.link import LINK
from hopsml.tracking.mlflow.order import RunGroup, key_of

log = logger_aside("hopsml.search")
_STATES = {"completed": "FINISHED", "stopped": "FINISHED", "failed": "FAILED"}


def group_of(run_url: str, name: str) -> RunGroup:
    """What puts trials below the search's own run: it is found by the same key."""
    return RunGroup(key_of(run_url), name, 0, ends_itself=True)


class TrialsInMlflow:
    """An observer of a search's board; ``later`` carries a function out on a thread that may wait for the store."""

    def __init__(self, search: RunDir, uri: str, folder_of: Callable[[Mapping[str, Any]], str], name: str) -> None:
        """On the user's thread: MLflow's active run is a thread's own."""
        self._search, self._folder_of = search, folder_of
        self._record = search.read_run()
        self._order = mlflow.order_of(
            uri, search.run_id, self._record, register_as=None, group=group_of(search.url, name)
        )

    def publish(self, row: Mapping[str, Any], curve: list[tuple[int, float]], metric: str) -> None:
        """A trial that is over. What MLflow reads of it is written into its folder: it can be sent later as well."""
        directory = RunDir(self._folder_of(row))
        ended = time.time()
        record = {
            **self._record,
            "verb": "trial",
            "name": f"trial {row['number']}",
            "arguments": dict(row["config"]),
            "started": ended - float(row["seconds"]),
            "search": self._search.url,
        }
        status = {
            "run_id": directory.run_id,
            "state": _STATES[row["state"]],
            "ended": ended,
            "error": row["error"] or "",
        }
        name = metric or "metric"
        lines = [json.dumps({"time": ended, "step": step, name: value}) + "\n" for step, value in curve]
        try:
            directory.write_run(record)
            filesystem.for_url(directory.metrics).write_bytes(directory.metrics, "".join(lines).encode())
            directory.write_status(status)
            order = replace(self._order, run_name=str(record["name"]))
            followed = LINK.follow(
                order, directory, record, lambda text: log.warning("trial %s: %s", row["number"], text)
            )
            followed.rows([one for step, value in curve for one in entries.rows({name: value}, ended, step)])
            followed.end()
        except Exception:  # a record of a trial must not fail it
            log.warning("MLflow is not told of trial %s", row["number"], exc_info=True)


def uri_of(profile_environment: Mapping[str, str]) -> str:
    """Where MLflow is; "" where it is not used."""
    return settings.mlflow_tracking_uri(profile_environment) or ""
