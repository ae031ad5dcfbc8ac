"""What a fork server is started with: variables and path that make its imports safe to fork from."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping

MARK = "HOPSML_FORK_SERVER"  # a variable on every fork server, and so on all that it starts
MARK_LENGTH = 48
_QUIET = {
    "OPENBLAS_NUM_THREADS": "1",  # OpenBLAS starts threads on import, and a process with threads cannot fork safely
    "TF_GRPC_REUSE_PORT": "1",  # TensorFlow may bind the port that the agent holds
}
# pyarrow's allocator starts a thread too; pandas imports it, which Keras imports, which TensorFlow imports.
_JEMALLOC = "JE_ARROW_MALLOC_CONF"
_NO_THREAD = "background_thread:false"


def new_mark() -> str:
    """A value of ``MARK`` that no other fork server has."""
    return secrets.token_hex(MARK_LENGTH // 2)


def environment_of(base: Mapping[str, str], mark: str) -> dict[str, str]:
    """The variables of a fork server that is started by a process with ``base``."""
    environment = {**base, **_QUIET, "PYTHONPATH": os.pathsep.join(own_sys_path())}
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment[_JEMALLOC] = ",".join(filter(None, (base.get(_JEMALLOC), _NO_THREAD)))  # the last one counts
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment[MARK] = mark
    return environment


def own_sys_path() -> list[str]:
    """What this interpreter can import beyond its own installation: Spark adds shipped files to sys.path alone."""
    entries = (entry or os.getcwd() for entry in sys.path)
    return [entry for entry in entries if not entry.startswith((sys.prefix, sys.base_prefix))]
