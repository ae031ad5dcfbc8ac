"""Registration of hopsml's file system for ``hdfs://`` with TensorFlow, from a library without a JVM.

The library is built from native/tf_hdfs/.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from hopsml.core import settings
from hopsml.errors import HopsmlError, StorageError
from hopsml.storage.remote import hadoop

_LIBRARY = Path(__file__).parent / "lib" / "libhopsml_tf_hdfs.so"
SOCKET_TIMEOUT = "dfs.client.socket-timeout"  # ms
_lock = threading.Lock()
_registered = False


def register_hdfs() -> None:
    """Register ``hdfs://`` and ``viewfs://`` with TensorFlow in this process.

    ``tf.io.gfile``, ``tf.data``, ``tf.summary``, ``tf.train.Checkpoint``, SavedModels and Keras' ``save`` then accept
    such paths like others. In a worker of a run it has been called before the user's function; elsewhere call it
    once, before the first path. NameNodes, user, ticket and tokens are found as by Hadoop's own clients
    (``HADOOP_CONF_DIR``); a step that gets no answer for ``HOPSML_STORAGE_TIMEOUT_S`` seconds fails with
    ``tf.errors.DeadlineExceededError``. It starts nothing before the first path; a process that is forked after it is
    refused (``tf.errors.FailedPreconditionError``).

    Raises:
        StorageError: the library is missing, or TensorFlow refuses it.
    """
    problem = _register()
    if problem:
        raise StorageError(f"TensorFlow cannot open hdfs:// here: {problem}")


def register_if_there() -> str:
    """Register the file system if possible, as ``register_hdfs`` does; return the obstacle, "" if there is none."""
    return _register()


def _register() -> str:
    """Register the file system once; return the obstacle, "" if there is none."""
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
            pass  # another package's file system, which the user has chosen by importing it
        except tf.errors.OpError as error:
            return f"TensorFlow {tf.__version__} refuses {_LIBRARY.name}: {error.message}"
        _registered = True
        return ""


def _tell_client() -> None:
    """Set the environment variables that the library reads at its first use."""
    folder = settings.hadoop_conf_dir()
    if folder is not None:
        os.environ.setdefault("HADOOP_CONF_DIR", str(folder))  # in a YARN container only Spark's Java process knows it
    wishes = hadoop.client_settings(settings.default_fs() or "hdfs://")
    # Otherwise the timeout for a silent DataNode exceeds the step's deadline.
    if SOCKET_TIMEOUT not in settings.hadoop_settings():
        wishes[SOCKET_TIMEOUT] = str(int(1000 * settings.storage_timeout_s() / 4))
    os.environ.setdefault(settings.HDFS_CLIENT, ",".join(f"{key}={value}" for key, value in wishes.items()))
