"""Collects facts about this process and its machine: user, interpreter, packages, environment variables, hardware.

All are read from memory and /proc, which takes a few milliseconds.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import platform
import re
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.core import processes, redact

if TYPE_CHECKING:
    from hopsml.tracking.inputs import WorkerFacts

logger = logging.getLogger(__name__)

_RELEVANT = (
    "HOPSML_", "TF_", "TF2_", "XLA_", "KERAS_", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "NCCL_", "CUDA_", "NVIDIA_", "TORCH_",
    "JAX_", "PYTHON", "LD_", "LC_",
)  # fmt: skip
_RELEVANT_NAMES = (
    "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_LOCAL_IP", "SPARK_LOCAL_DIRS",
    "HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_USER_NAME", "JAVA_HOME", "LANG", "TZ",
)  # fmt: skip
_ANOTHER_EACH_TIME = (
    "TF_CONFIG", "HOPSML_RUN_ID", "HOPSML_SEED", "HOPSML_FORK_SERVER", "HOPSML_TEST_ID", "HOPSML_JOB_RECORD",
    "HOPSML_ADDRESS",
)  # fmt: skip
_DISTRIBUTION = re.compile(r"^(?P<name>.+?)-(?P<version>[^-]+)\.dist-info$")


def who() -> dict[str, Any]:
    """Return user and process: enough to find the driver while it is alive, and to detect later that it is not."""
    pid = os.getpid()
    return {
        "login": _login(),
        "host": socket.gethostname(),
        "pid": pid,
        "process_started": processes.process_started(pid),
        "pid_namespace": processes.pid_namespace(),
    }


def record_worker(context: WorkerFacts) -> None:
    """Write ``worker.json`` on the chief, before the user's function runs; never fails a run."""
    if context.rank != 0:
        return
    facts = {"host": socket.gethostname(), "python": python(), "hardware": hardware(), "environment": environment()}
    try:
        (context.events_dir.parent / "worker.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        logger.warning("the hardware and software of the worker are not recorded: %s", error)


def hardware() -> dict[str, Any]:
    """Return the cores that this process may use, memory in bytes, processor and operating system."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "processor": _processor(),
        "system": platform.platform(),
    }


def python() -> dict[str, Any]:
    """Return version, implementation, path and hash seed of the interpreter."""
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "hash_seed": hash_seed(),
    }


def hash_seed() -> str:
    """Return the ``PYTHONHASHSEED`` with which this interpreter was started; "random" if unset or unknown.

    ``os.environ`` is not used: it may have been changed since, which has no effect.
    """
    try:
        started_with = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return "0" if not sys.flags.hash_randomization else "random"
    for entry in started_with:
        if entry.startswith(b"PYTHONHASHSEED=") and not sys.flags.ignore_environment:
            return entry.partition(b"=")[2].decode(errors="replace") or "random"
    return "random"


def environment() -> dict[str, str]:
    """Return the variables that affect frameworks, Spark and hopsml, without secrets."""
    return redact.settings({name: value for name, value in os.environ.items() if _is_relevant(name)})


def packages(folders: Iterable[str] | None = None) -> dict[str, str]:
    """Return installed distributions, name to version, by their ``.dist-info`` folders on the import path.

    The first one on the path counts, as for imports. Reading each one's metadata instead takes a hundred times as long.

    Args:
        folders: folders to search; None: ``sys.path``.
    """
    found: dict[str, str] = {}
    for folder in sys.path if folders is None else folders:
        try:
            entries = os.listdir(folder or ".")
        except OSError:  # an archive, or a missing folder
            continue
        for entry in entries:
            match = _DISTRIBUTION.match(entry)
            if match:
                found.setdefault(re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"])
    return dict(sorted(found.items()))


def _is_relevant(name: str) -> bool:
    return name in _RELEVANT_NAMES or (name.startswith(_RELEVANT) and name not in _ANOTHER_EACH_TIME)


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's uid without a name
        return str(os.getuid())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
