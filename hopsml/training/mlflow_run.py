"""Connection of a worker's ``mlflow.log_*`` calls and autologging to the MLflow run that mirrors its hopsml run.

MLflow creates runs on its server, which may be unavailable, and a hopsml run does not wait for it: the id is looked
up in the run directory when the function first starts an MLflow run, or logs without one.
"""

from __future__ import annotations

import functools
import os
import time
from types import ModuleType
from typing import Any

from hopsml.cluster.worker.context import WorkerContext
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import HopsmlError
from hopsml.storage.run_dir import RunDir
from hopsml.tracking.mlflow import order
from hopsml.training.tensorflow.import_hook import after_import

WANTED = Settings.mlflow_run.name  # set by the driver if the run has an MLflow run
VARIABLE = "MLFLOW_RUN_ID"
WAIT_S = 20.0  # seconds to wait for MLflow to create the run
_EVERY_S = 0.1
_PAUSES_S = (0.05, 0.1, 0.2, 0.4)
# Errors of SQLite, MySQL and PostgreSQL for a key that exists already.
_MET = ("IntegrityError", "UNIQUE constraint", "Duplicate entry", "duplicate key")


def attach(context: WorkerContext) -> None:
    """Let ``mlflow``, once imported, continue this run's MLflow run.

    Trials of a search have none before their end.
    """
    if SETTINGS.mlflow_run and context.trial is None:
        os.environ.pop(VARIABLE, None)  # names the driver's own run, the parent of this one
        after_import("mlflow", lambda module: _join(module, RunDir(context.run_url)))


def _join(module: ModuleType, directory: RunDir) -> None:
    """Replace ``mlflow.start_run`` by a version that continues the run's MLflow run."""
    from mlflow.tracking import fluent

    start = fluent.start_run

    @functools.wraps(start)
    def start_run(run_id: Any = None, *arguments: Any, **named: Any) -> Any:
        if run_id is None and not named.get("nested") and fluent.active_run() is None and VARIABLE not in os.environ:
            found = _opened(directory)
            chosen = fluent._active_experiment_id
            if found is not None and chosen in (None, found.experiment_id):
                os.environ[VARIABLE] = found.run_id
        return start(run_id, *arguments, **named)

    fluent.start_run = start_run
    module.start_run = start_run  # type: ignore[attr-defined]
    _let_ranks_meet()


def _let_ranks_meet() -> None:
    """Retry MLflow calls on conflicts: if two ranks add the same key to a run at once, its database refuses one."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.tracking.rest_store import RestStore

    call = RestStore._call_endpoint

    @functools.wraps(call)
    def call_again(self: Any, *arguments: Any, **named: Any) -> Any:
        for pause_s in _PAUSES_S:
            try:
                return call(self, *arguments, **named)
            except MlflowException as error:
                if not any(words in str(error) for words in _MET):
                    raise
            time.sleep(pause_s)
        return call(self, *arguments, **named)

    RestStore._call_endpoint = call_again


@functools.lru_cache(maxsize=1)
def _opened(directory: RunDir) -> order.Order | None:
    """Return the MLflow run once it has been created; None, with a note, if it was not created in time."""
    deadline, why = time.monotonic() + WAIT_S, "it does not answer"
    while time.monotonic() < deadline:
        try:
            found = order.read(directory)
        except HopsmlError as error:
            found, why = None, str(error)
        if found is not None and found.run_id:
            return found
        if found is not None and found.state == order.REFUSED:
            why = found.note
            break
        time.sleep(_EVERY_S)
    print(f"hopsml: MLflow has no run for {directory.run_id} ({why}): what is logged makes one of its own", flush=True)
    return None
