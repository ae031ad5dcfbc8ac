"""TensorBoard's log directory: ``logdir()`` inside the training function, ``visualize(result.logdir)`` outside."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any

from hopsml import settings
from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.errors import ArgumentError
from hopsml.storage import urls

LOCAL_FOLDER = "local_logdir"
_OF_RUN = re.compile(r"events|trials|generation\.\d+")  # folders of a run's directory that are called its log directory
_DEBUGGERS = ("interactive_debugger", "non_interactive_debugger")


def logdir() -> str:
    """The directory for event files, inside the training function; the same call on every rank. It exists.

    It is a local path that TensorFlow can write (TensorFlow has no ``hdfs://`` any more). Where the run directory is
    remote, what is written there is mirrored in the background, and the path ends in the remote URL, so that
    ``hdfs.mkdir(tensorboard.logdir() + "/model")`` and code that looks for ``hdfs://`` in it work as well. With
    ``local_logdir=True`` there is no URL in it; what is written there comes to the run directory all the same.
    """
    context = current()
    if context is None:
        raise ArgumentError(
            "tensorboard.logdir() is only known inside a training function; outside, use result.logdir of the run"
        )
    path = context.logdir or str(context.events_dir)
    return _without_url(context, path) if _is_local() and urls.remote_of(path) is not None else path


def _is_local() -> bool:
    return os.environ.get(settings.LOCAL_LOGDIR) == "1"


def _without_url(context: WorkerContext, path: str) -> str:
    """Another name of a folder that is mirrored; beside the worker's folder, which holds nothing but the user's files."""
    name = LOCAL_FOLDER if context.trial is None else f"{LOCAL_FOLDER}-{context.trial.trial_id}"
    plain = re.sub("[^A-Za-z0-9_.=-]", "-", name)
    if plain != name:  # otherwise two trials could write into one folder
        plain = f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    link = context.work_dir.parent / plain
    try:
        link.symlink_to(path, target_is_directory=True)
    except FileExistsError:  # of an earlier call
        pass
    return str(link)


def visualize(hdfs_root_logdir: str) -> None:
    """Show the events below a run's directory or log directory: in a notebook a TensorBoard in the cell, else its address.

    Outside a notebook it runs until Ctrl-C. Raises ArgumentError for what is no run.
    """
    from hopsml.notebook import frontend, magics, tensorboard_server
    from hopsml.storage.run_dir import find

    named = str(hdfs_root_logdir).rstrip("/")
    above = named.rpartition("/")[0]  # of a run's events/, and of a search's trials/ or generation.2/
    directory = find(above if _OF_RUN.fullmatch(urls.name(named)) else named, settings.project_url())
    if frontend.is_live():
        magics.tensorboard_run(directory.url)
        return
    with tensorboard_server.running(tensorboard_server.events_of(directory)) as server:
        address = f"http://127.0.0.1:{server.port()}/"
        tensorboard_server.keep(server, f"TensorBoard of {directory.run_id}: {address} (Ctrl-C ends it)")


def __getattr__(name: str) -> Any:
    if name == "local_logdir_bool":
        return current() is not None and _is_local()
    if name in _DEBUGGERS:
        raise AttributeError(
            f"tensorboard.{name}() was for TensorFlow 1's sessions, which are gone: use "
            "tf.debugging.experimental.enable_dump_debug_info(hopsml.tensorboard.logdir()) and TensorBoard's Debugger V2"
        )
    raise AttributeError(f"module 'hopsml.tensorboard' has no attribute '{name}'")
