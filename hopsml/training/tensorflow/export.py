"""Export of the trained model as a SavedModel in the run's export folder."""

from __future__ import annotations

import inspect
import re
import shutil
from pathlib import Path
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError
from hopsml.training.tensorflow.groups import latest_strategy, leads
from hopsml.training.tensorflow.keras_callbacks import private_folder


def export(model: Any, name: str = "model") -> Path:
    """Write ``model`` as a SavedModel to ``<export_dir>/<name>``, and return that folder; call it on all ranks.

    Reading some variables needs all ranks; only the chief's files are retained. They appear under their name when
    they are complete; an earlier export of the name is replaced.

    Args:
        model: a Keras model or tf.Module.
        name: name of the folder.

    Raises:
        ArgumentError: the call is outside of a run, or ``name`` is not a file name.
    """
    context = current()
    if context is None:
        raise ArgumentError("export() needs a run's export folder; outside of a run use model.export(path)")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ArgumentError(f"name={name!r}: it must be a file name of letters, digits, '_', '-' and '.'")
    target = context.export_dir / name
    keep = leads(latest_strategy())
    aside = context.export_dir / f".{name}.tmp" if keep else private_folder() / name
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(parents=True, exist_ok=True)
    write_saved_model(model, aside)
    if keep:
        shutil.rmtree(target, ignore_errors=True)
        aside.rename(target)
    else:
        shutil.rmtree(aside)
    return target


def write_saved_model(model: Any, folder: Path) -> None:
    """Write a Keras model or tf.Module as a SavedModel, in this process alone."""
    import tensorflow as tf

    if hasattr(model, "export"):  # Keras: with a serving signature
        quiet = {"verbose": False} if "verbose" in inspect.signature(model.export).parameters else {}
        model.export(str(folder), **quiet)
    else:
        tf.saved_model.save(model, str(folder))
