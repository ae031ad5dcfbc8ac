"""Starts a Python child process ``python -m MODULE``, which can detect the end of this process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from hopsml.core import delegation_tokens as tokens
from hopsml.core import settings
from hopsml.core.processes import write_no_core_dumps


def start(module: str, *arguments: str, pass_fds: Sequence[int] = (), **options: Any) -> subprocess.Popen[bytes]:
    """Start ``python -m MODULE ARGUMENTS... PIDFD`` with this process's import path. Raises OSError.

    ``PIDFD`` is a file descriptor that becomes readable when this process has ended; -1 on kernels without pidfds.

    Args:
        module: name of the module.
        *arguments: command-line arguments.
        pass_fds: further file descriptors that the child inherits.
        **options: arguments of ``subprocess.Popen``, except ``cwd`` and ``env``.
    """
    parent = _own_pidfd()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, str(parent)],
            pass_fds=[*pass_fds, *([parent] if parent >= 0 else [])],
            cwd="/",  # "-m" puts the working directory on the path
            env=environment(),
            **options,
        )
        with contextlib.suppress(OSError):  # it has ended already
            write_no_core_dumps(process.pid)
        return process
    finally:
        if parent >= 0:
            os.close(parent)


def environment() -> dict[str, str]:
    """Return this process's environment variables for a child, with absolute paths and this import path."""
    found = dict(os.environ)
    found["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    found.setdefault("TOKIO_WORKER_THREADS", "2")
    conf = settings.hadoop_conf_dir()
    if conf:
        found["HADOOP_CONF_DIR"] = str(conf)
    token = found.get(tokens.VARIABLE)
    if token:
        found[tokens.VARIABLE] = os.path.abspath(token)
    return found


def _own_pidfd() -> int:
    try:
        return os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        return -1
