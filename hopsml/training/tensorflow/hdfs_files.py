"""Registers hopsml's file system for ``hdfs://`` with TensorFlow: a library of native/tf_hdfs/, without a JVM."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from hopsml import settings
from hopsml.errors import HopsmlError, StorageError
from hopsml.storage.remote import hadoop

_LIBRARY = Path(__file__).parent / "lib" / "libhopsml_tf_hdfs.so"
SOCKET_TIMEOUT = "dfs.client.socket-timeout"  # ms
_lock = threading.Lock()
_registered = False


def register_hdfs() -> None:
    """Have TensorFlow open ``hdfs://`` and ``viewfs://`` in this process, as any other path.

    ``tf.io.gfile``, ``tf.data``, ``tf.summary``, ``tf.train.Checkpoint``, SavedModels and Keras' ``save`` take such paths
    then. A worker of a run has called it before the user's function; elsewhere it is called once, before the first path.
    NameNodes, user, ticket and tokens are found as by Hadoop's own clients (``HADOOP_CONF_DIR``); a step that gets no
    answer for ``HOPSML_STORAGE_TIMEOUT_S`` seconds fails with ``tf.errors.DeadlineExceededError``. It starts nothing before
    the first path; a process that is forked after it is refused (``tf.errors.FailedPreconditionError``).

    Raises:
        StorageError: the library is not there, or TensorFlow does not take it.
    """
    problem = _register()
    if problem:
        raise StorageError(f"TensorFlow cannot open hdfs:// here: {problem}")


def register_if_there() -> str:
    """As ``register_hdfs``; what hinders it, "" for nothing."""
    return _register()


def _register() -> str:
    global _registered
    with _lock:
        if _registered:
            return ""
        if not _LIBRARY.exists():
            return f"{_LIBRARY.name} was not built (make tf-hdfs, or a wheel that was made with Rust)"
        import tensorflow as tf

        try:
            _tell_client()
        except (HopsmlError, OSError) as error:  # a configuration that cannot be read
            return str(error)
        try:
            tf.experimental.register_filesystem_plugin(str(_LIBRARY))
        except tf.errors.AlreadyExistsError:
            pass  # another package's, which the user has chosen by importing it
        except tf.errors.OpError as error:
            return f"TensorFlow {tf.__version__} refuses {_LIBRARY.name}: {error.message}"
        _registered = True
        return ""


def _tell_client() -> None:
    """What the library reads in the environment when it is used first."""
    folder = settings.hadoop_conf_dir()
    if folder is not None:
        os.environ.setdefault("HADOOP_CONF_DIR", str(folder))  # in a container of YARN's only Spark's Java knows it
    wishes = hadoop.client_settings(settings.default_fs() or "hdfs://")
    if SOCKET_TIMEOUT not in settings.hadoop_settings():  # else a silent DataNode's turn outlasts the step's deadline
        wishes[SOCKET_TIMEOUT] = str(int(1000 * settings.storage_timeout_s() / 4))
    os.environ.setdefault(settings.HDFS_CLIENT, ",".join(f"{key}={value}" for key, value in wishes.items()))
