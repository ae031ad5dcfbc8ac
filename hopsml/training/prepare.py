"""Preparation of a worker before the user's function: frameworks, MLflow's run, secrets, and the driver's logging.

Workers do not run the driver script's top level. If the driver's root logger writes to a stream (as after
``logging.basicConfig(level=logging.INFO)``), the workers' root logger writes records of the same level in the same
format. Files, other handlers and the levels of individual loggers apply to the driver only. Without such a stream,
workers use Python's default.

MLflow creates runs on its server, which may be unavailable, and a run does not wait for it: the id of its MLflow run is
looked up in the run directory when the function first starts an MLflow run, or logs without one.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from hopsml.cluster.worker.context import WorkerContext, set_current
from hopsml.core import redact, tracing
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import HopsmlError
from hopsml.storage.run_dir import RunDir
from hopsml.tracking.mlflow import order
from hopsml.training.tensorflow.import_hook import after_import

TRACE_HOOK = "hopsml.training.prepare:trace_first_step"  # hook of runs whose driver traces them


def trace_first_step(context: WorkerContext) -> None:
    """Record a span of this worker that ends with its first report or progress message."""
    begin_s, parent = time.time(), tracing.inherited_context()

    @functools.cache
    def first() -> None:
        facts: dict[str, str | int] = {"rank": context.rank, "generation": context.generation, "run": context.run_id}
        tracing.record_span(
            "worker's first step", tracing.child_context(parent), parent, begin_s, time.time(), "", **facts
        )

    def send(message: dict[str, object]) -> None:
        if message.get("kind") == "report":
            first()
        context.send(message)

    def progress(done: int, total: int, unit: str) -> None:
        first()
        context.progress(done, total, unit)

    set_current(dataclasses.replace(context, send=send, progress=progress))


MLFLOW_WANTED = Settings.mlflow_run.name  # set by the driver if the run has an MLflow run
MLFLOW_VARIABLE = "MLFLOW_RUN_ID"
MLFLOW_WAIT_S = 20.0  # seconds to wait for MLflow to create the run
_EVERY_S = 0.1
_PAUSES_S = (0.05, 0.1, 0.2, 0.4)
# Errors of SQLite, MySQL and PostgreSQL for a key that exists already.
_MET = ("IntegrityError", "UNIQUE constraint", "Duplicate entry", "duplicate key")


def continue_mlflow_run(context: WorkerContext) -> None:
    """Let ``mlflow``, once imported, continue this run's MLflow run.

    Trials of a search have none before their end.
    """
    if SETTINGS.mlflow_run and context.trial is None:
        os.environ.pop(MLFLOW_VARIABLE, None)  # names the driver's own run, the parent of this one
        after_import("mlflow", lambda module: _join(module, RunDir(context.run_url)))


def _join(module: ModuleType, directory: RunDir) -> None:
    """Replace ``mlflow.start_run`` by a version that continues the run's MLflow run."""
    from mlflow.tracking import fluent

    start = fluent.start_run

    @functools.wraps(start)
    def start_run(run_id: Any = None, *arguments: Any, **named: Any) -> Any:
        if (
            run_id is None
            and not named.get("nested")
            and fluent.active_run() is None
            and MLFLOW_VARIABLE not in os.environ
        ):
            found = _opened(directory)
            chosen = fluent._active_experiment_id
            if found is not None and chosen in (None, found.experiment_id):
                os.environ[MLFLOW_VARIABLE] = found.run_id
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
    deadline, why = time.monotonic() + MLFLOW_WAIT_S, "it does not answer"
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
    print(
        f"hopsml: MLflow has no run for {directory.run_id} ({why}), so calls of mlflow.log_* create a separate run",
        flush=True,
    )
    return None


def register_secrets_first(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Wrap a function so that each worker registers the values of the named variables as secrets first.

    Args:
        function: function to wrap.
        names: environment variables whose names do not show that they hold secrets.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in names:
            redact.register(name, os.environ.get(name, ""))
        return function(*args, **kwargs)

    return call if names else function


LOGGING = Settings.logging.name  # environment variable with the driver's logging configuration
_STYLES = {logging.PercentStyle: "%", logging.StrFormatStyle: "{", logging.StringTemplateStyle: "$"}


def describe_logging(root: logging.Logger) -> str:
    """Return the configuration of a root logger as the text of ``LOGGING``; "" if it writes to no stream."""
    handler = _to_a_stream(root)
    if handler is None:
        return ""
    written = handler.formatter
    # A custom formatter, or no formatter.
    if type(written) is not logging.Formatter or type(written._style) not in _STYLES:
        written = logging.Formatter()
    return json.dumps(
        {
            "level": root.level,
            "from": handler.level,
            "format": written._fmt,
            "dates": written.datefmt,
            "style": _STYLES[type(written._style)],
            "stdout": getattr(handler, "stream", None) is sys.stdout,
        }
    )


def apply_driver_logging() -> None:
    """Give this worker's root logger the level and format of the driver's; called before the user's function."""
    if told := SETTINGS.logging:
        configure_logging(told, logging.getLogger())


def configure_logging(told: str, root: logging.Logger) -> None:
    """Give a root logger the level, format and stream described by ``told``, unless it writes to a stream already.

    Args:
        told: text made by ``describe_logging``.
        root: logger to configure.
    """
    if _to_a_stream(root) is not None:
        return
    wanted = json.loads(told)
    handler = logging.StreamHandler(sys.stdout if wanted["stdout"] else sys.stderr)
    handler.setLevel(wanted["from"])
    handler.setFormatter(logging.Formatter(wanted["format"], wanted["dates"], wanted["style"], False))
    root.addHandler(handler)
    root.setLevel(wanted["level"])


def _to_a_stream(root: logging.Logger) -> logging.Handler | None:
    """Return the first handler that is a plain StreamHandler; classes derived from it write elsewhere."""
    return next((one for one in root.handlers if type(one) is logging.StreamHandler), None)


def prepare(context: WorkerContext) -> None:
    """Prepare frameworks, MLflow and logging in this worker.

    TensorFlow is repaired at once if it is imported already (in a forked worker), else when it is imported.
    """
    from hopsml.training.tensorflow import setup

    continue_mlflow_run(context)
    apply_driver_logging()
    if context.spec.framework == "torch":
        from hopsml.training.torch import process_group as torch_setup

        torch_setup.prepare(context)
    if context.spec.framework == "jax":
        from hopsml.training import jax_setup

        jax_setup.prepare(context)
    if "tensorflow" in sys.modules:
        setup.prepare(context)
    else:
        setup.install_import_hook(context)
