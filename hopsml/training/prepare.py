"""Preparation of a worker before the user's function: frameworks, MLflow's run, secrets, and the driver's logging.

Workers do not run the driver script's top level. If the driver's root logger writes to a stream (as after
``logging.basicConfig(level=logging.INFO)``), the workers' root logger writes records of the same level in the same
format. Files, other handlers and the levels of individual loggers apply to the driver only. Without such a stream,
workers use Python's default.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from hopsml.cluster.worker.context import WorkerContext
from hopsml.core import redact
from hopsml.core.variables import SETTINGS, Settings


def masked(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
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


def described_logging(root: logging.Logger) -> str:
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


def follow_driver_log() -> None:
    """Give this worker's root logger the level and format of the driver's; called before the user's function."""
    if told := SETTINGS.logging:
        configure_logging(told, logging.getLogger())


def configure_logging(told: str, root: logging.Logger) -> None:
    """Give a root logger the level, format and stream described by ``told``, unless it writes to a stream already.

    Args:
        told: text made by ``described_logging``.
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
    from hopsml.training import mlflow_run
    from hopsml.training.tensorflow import setup

    mlflow_run.attach(context)
    follow_driver_log()
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
