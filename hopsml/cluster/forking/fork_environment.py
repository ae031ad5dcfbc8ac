"""Environment of a fork server: variables and module path with which its imports are safe to fork from."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping

MARK = "HOPSML_FORK_SERVER"  # a variable of every fork server, inherited by all processes that it starts
MARK_LENGTH = 48
_QUIET = {
    "OPENBLAS_NUM_THREADS": "1",  # OpenBLAS starts threads on import, and a process with threads cannot fork safely
    "TF_GRPC_REUSE_PORT": "1",  # TensorFlow may bind the port that the agent holds
}
# pyarrow's allocator starts a thread too; TensorFlow imports Keras, which imports pandas, which imports pyarrow.
_JEMALLOC = "JE_ARROW_MALLOC_CONF"
_NO_THREAD = "background_thread:false"


def new_mark() -> str:
    """Return a random value of ``MARK``, which no other fork server has."""
    return secrets.token_hex(MARK_LENGTH // 2)


def environment_of(base: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return the variables of a fork server that is started by a process with the variables ``base``.

    Args:
        base: Variables of the process that starts it.
        mark: Value of ``MARK``.
    """
    environment = {**base, **_QUIET, "PYTHONPATH": os.pathsep.join(own_sys_path())}
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment[_JEMALLOC] = ",".join(filter(None, (base.get(_JEMALLOC), _NO_THREAD)))  # the last setting counts
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment[MARK] = mark
    return environment


def own_sys_path() -> list[str]:
    """Return the entries of sys.path outside this interpreter's installation: Spark adds shipped files only there."""
    entries = (entry or os.getcwd() for entry in sys.path)
    return [entry for entry in entries if not entry.startswith((sys.prefix, sys.base_prefix))]
