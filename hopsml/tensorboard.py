"""TensorBoard's log directory: ``logdir()`` inside the training function, ``visualize(result.logdir)`` outside."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.core import settings
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError
from hopsml.storage import urls

__all__ = [
    "logdir",
    "visualize",
]

LOCAL_FOLDER = "local_logdir"
# Folders of a run directory that also count as its log directory.
_OF_RUN = re.compile(r"events|trials|generation\.\d+")
_DEBUGGERS = ("interactive_debugger", "non_interactive_debugger")


def logdir() -> str:
    """Return the directory for event files, inside the training function; every rank can call it, and it exists.

    It is a local path, because TensorFlow no longer writes to ``hdfs://``. If the run directory is remote, the
    directory is mirrored to it in the background, and the path ends in the remote URL, so that
    ``hdfs.mkdir(tensorboard.logdir() + "/model")`` and code that searches for ``hdfs://`` in it work as well. With
    ``local_logdir=True`` the path contains no URL, and is mirrored all the same.

    Raises:
        ArgumentError: called outside a training function.
    """
    context = current()
    if context is None:
        raise ArgumentError(
            "tensorboard.logdir() was called outside of a training function; use result.logdir of the run"
        )
    path = context.logdir or str(context.events_dir)
    return _without_url(context, path) if _is_local() and urls.remote_of(path) is not None else path


def _is_local() -> bool:
    """Return True if the run was started with ``local_logdir=True``."""
    return SETTINGS.local_logdir


def _without_url(context: WorkerContext, path: str) -> str:
    """Return a symbolic link, without a URL in its name, to a mirrored folder.

    It is next to the worker's folder, which contains only the user's files.
    """
    name = LOCAL_FOLDER if context.trial is None else f"{LOCAL_FOLDER}-{context.trial.trial_id}"
    plain = re.sub("[^A-Za-z0-9_.=-]", "-", name)
    if plain != name:  # otherwise two trials could write into one folder
        plain = f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    link = context.work_dir.parent / plain
    try:
        link.symlink_to(path, target_is_directory=True)
    except FileExistsError:  # created by an earlier call
        pass
    return str(link)


def visualize(hdfs_root_logdir: str) -> None:
    """Show the events of a run directory or log directory in TensorBoard.

    In a notebook it is shown in the cell. Otherwise its address is printed, and it runs until Ctrl-C.

    Args:
        hdfs_root_logdir: URL or path of the directory.

    Raises:
        ArgumentError: the directory is not that of a run.
    """
    from hopsml.notebook import display, magics, tensorboard_server
    from hopsml.storage.run_dir import find

    named = str(hdfs_root_logdir).rstrip("/")
    above = named.rpartition("/")[0]  # of a run's events/, and of a search's trials/ or generation.2/
    directory = find(above if _OF_RUN.fullmatch(urls.name(named)) else named, settings.project_url())
    if display.is_live():
        magics.tensorboard_run(directory.url)
        return
    with tensorboard_server.running(tensorboard_server.events_of(directory)) as server:
        address = f"http://127.0.0.1:{server.port()}/"
        tensorboard_server.keep(server, f"TensorBoard of {directory.run_id}: {address} (Ctrl-C stops it)")


def __getattr__(name: str) -> Any:
    if name == "local_logdir_bool":
        return current() is not None and _is_local()
    if name in _DEBUGGERS:
        raise AttributeError(
            f"tensorboard.{name}() needs sessions of TensorFlow 1, which TensorFlow 2 does not have; use "
            "tf.debugging.experimental.enable_dump_debug_info(hopsml.tensorboard.logdir()) and TensorBoard's "
            "Debugger V2"
        )
    raise AttributeError(f"module 'hopsml.tensorboard' has no attribute '{name}'")


def __dir__() -> list[str]:
    return list(__all__)
