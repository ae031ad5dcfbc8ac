"""TensorBoard's log directory: ``logdir()`` inside the training function, ``visualize(result.logdir)`` outside."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared import checks
from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.core import refused_names, settings
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.storage import urls

if TYPE_CHECKING:
    from hopsml.storage.run_dir import RunDir

__all__ = [
    "logdir",
    "visualize",
]

LOCAL_FOLDER = "local_logdir"
_DEEPEST = 3  # folders of a run's log directory: generation.2/a=1&b=5/events
__path__: list[str] = []  # so that an import of a missing name reports what to use instead


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
    return _without_url(context, path) if _is_local() and urls.mirrored_url(path) is not None else path


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


def visualize(*arguments: Any, hdfs_root_logdir: str = "") -> None:
    """Show the events of a run directory or log directory in TensorBoard: ``visualize(hdfs_root_logdir)``.

    In a notebook it is shown in the cell. Otherwise its address is printed, and it runs until Ctrl-C.

    Args:
        *arguments: URL or path of the directory, or the result of a verb; old code passes its SparkSession before it,
            which is not used.
        hdfs_root_logdir: the directory by name.

    Raises:
        ArgumentError: the directory is not that of a run.
        ArgumentTypeError: something else was given.
    """
    from hopsml.notebook import display, magics, tensorboard_server

    directory = _run_above(_directory_of(arguments, hdfs_root_logdir).rstrip("/"))
    if display.is_live():
        magics.tensorboard_run(directory.url)
        return
    with tensorboard_server.run_tensorboard(tensorboard_server.events_url(directory)) as server:
        address = f"http://127.0.0.1:{server.port()}/"
        tensorboard_server.serve_until_interrupt(
            server, f"TensorBoard of {directory.run_id}: {address} (Ctrl-C stops it)"
        )


def _run_above(named: str) -> RunDir:
    """Return the directory of the run that ``named``, an id or a folder, is or lies in.

    Raises:
        ArgumentError: There is none.
    """
    from hopsml.storage.run_dir import find_run_dir
    from hopsml.tracking import named_runs

    above = [named]
    while "/" in named and len(above) <= _DEEPEST and urls.parent(above[-1]) != above[-1]:
        above.append(urls.parent(above[-1]))
    store = settings.project_url()
    for url in above:
        with contextlib.suppress(ArgumentError):
            return find_run_dir(url, store)
    return named_runs.find(named, store)  # raises the error that has the folder's name


def _directory_of(arguments: tuple[Any, ...], named: str) -> str:
    """Return the directory among the arguments of ``visualize``; a SparkSession or SparkContext before it is left out.

    Raises:
        ArgumentTypeError: There is none, or more than one.
    """
    given = [*arguments, *([named] if named else [])]
    if len(given) > 1 and checks.is_spark_session(given[0]):
        given = given[1:]
    if len(given) == 1 and isinstance(given[0], tuple) and given[0]:
        given = [given[0][0]]  # a result, whose first element is its directory
    if len(given) != 1 or not isinstance(given[0], (str, os.PathLike)):
        kinds = ", ".join(type(one).__name__ for one in given) or "nothing"
        raise ArgumentTypeError(f"visualize() was given {kinds}; pass the directory of a run, such as result.logdir")
    return os.fspath(given[0])


def __getattr__(name: str) -> Any:
    if name == "local_logdir_bool":
        return current() is not None and _is_local()
    raise refused_names.missing_attribute_error(__name__, name, ("logdir", "visualize", "local_logdir_bool"))


def __dir__() -> list[str]:
    return list(__all__)
