"""File functions for the project, by the predecessor's names: ``hdfs.ls``, ``hdfs.copy_to_local``, ``hdfs.dump``.

A path may be relative to the project (``"Resources/x"``), absolute (``/Projects/p/x``), or a URL of any store. If the
project is on the local disk, all functions work there. Inside a worker a path below ``tensorboard.logdir()`` refers to
the remote directory to which it is mirrored.
"""

from hopsml.core import refused_names
from hopsml.hdfs.copies import copy_from_project, copy_to_hdfs, copy_to_local, cp, move, rename
from hopsml.hdfs.files import (
    abs_path,
    add_module,
    delete,
    dump,
    exists,
    get,
    get_fs,
    get_plain_path,
    glob,
    isdir,
    isfile,
    load,
    log,
    ls,
    lsl,
    mkdir,
    open_file,
    project_id,
    project_name,
    project_path,
    project_user,
    rmr,
)
from hopsml.hdfs.metadata import (
    access,
    capacity,
    chmod,
    chown,
    close,
    get_webhdfs_host,
    get_webhdfs_port,
    is_tls_enabled,
    stat,
)

__all__ = [
    "abs_path",
    "access",
    "add_module",
    "capacity",
    "chmod",
    "chown",
    "close",
    "copy_from_project",
    "copy_to_hdfs",
    "copy_to_local",
    "cp",
    "delete",
    "dump",
    "exists",
    "get",
    "get_fs",
    "get_plain_path",
    "get_webhdfs_host",
    "get_webhdfs_port",
    "glob",
    "is_tls_enabled",
    "isdir",
    "isfile",
    "load",
    "log",
    "ls",
    "lsl",
    "mkdir",
    "move",
    "open_file",
    "project_id",
    "project_name",
    "project_path",
    "project_user",
    "rename",
    "rmr",
    "stat",
]


def __getattr__(name: str) -> object:
    raise refused_names.missing_attribute_error(__name__, name, __all__)


def __dir__() -> list[str]:
    return list(__all__)
