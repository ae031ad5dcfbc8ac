"""Collects where a run comes from: the code around its training function, and facts about this process and its machine.

Code is the script or the notebook's cells, and the git state of its folder. Facts are user, interpreter, packages,
environment variables and hardware, read from memory and /proc within a few milliseconds.

The function itself is stored as a pickle, which a rerun runs; this code is stored for people who want to read it.
Secrets in it are masked: literals that are assigned to names such as ``password``, and known secret values.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.core import processes, redact, settings
from hopsml.core.platforms import core_count

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
# An older pip without the package wheel installs a source archive, such as pyspark's, with a folder .egg-info.
_DISTRIBUTION = re.compile(r"^(?P<name>.+?)-(?P<version>[^-]+)(?:-py\d[\d.]*)?\.(?:dist|egg)-info$")


def process_identity() -> dict[str, Any]:
    """Return user and process: enough to find the driver while it is alive, and to detect later that it is not."""
    pid = os.getpid()
    return {
        "login": settings.login_name(),
        "host": socket.gethostname(),
        "pid": pid,
        "process_started": processes.start_time_of(pid),
        "pid_namespace": processes.pid_namespace(),
    }


def record_worker(context: WorkerFacts) -> None:
    """Write ``worker.json`` on the chief, before the user's function runs; never fails a run."""
    if context.rank != 0:
        return
    facts = {
        "host": socket.gethostname(),
        "python": interpreter_facts(),
        "hardware": hardware_facts(),
        "environment": environment(),
    }
    try:
        (context.events_dir.parent / "worker.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        logger.warning("the hardware and software of the worker are not recorded: %s", error)


def hardware_facts() -> dict[str, Any]:
    """Return the cores that this process may use, memory in bytes, processor and operating system."""
    return {
        "cores": core_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "processor": _processor(),
        "system": platform.platform(),
    }


def interpreter_facts() -> dict[str, Any]:
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
    """Return installed distributions, name to version, by the names of their metadata on the import path.

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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


LIMIT_BYTES = 1 << 20  # greatest size of a code file, and of a diff
GIT_TIMEOUT_S = 5.0  # for all git commands of one call together
GIT_FRESH_S = 2.0
_OF_A_FILE = re.compile(r"^(?=diff --git )", re.MULTILINE)
_IS_CODE = re.compile(r"diff --git .*\.(?:py|pyi|ipynb|java|scala|kt|c|cc|cpp|h|go|rs|js|ts|r|R|jl)\"?$", re.MULTILINE)
# Files that consist of secrets: not even their diff is recorded.
_NEVER = ("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keytab", "*id_rsa*", "*id_ed25519*", "*.netrc", "*.pgpass")

_git_lock = threading.Lock()
_git_known: dict[Path, tuple[float, tuple[dict[str, Any], bytes]]] = {}


@dataclass
class Code:
    """Collected code: ``facts`` for the run record, ``files`` by name for the folder ``code/``."""

    facts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


def collect_code() -> Code:
    """Return the script or the notebook's cells, and the git state.

    Slow, since git is a process: not for the launch path.
    """
    code = Code()
    path, cells = script_path(), notebook_cells()
    folder = path.parent if path is not None else Path.cwd()
    if cells is not None:
        code.facts["notebook"] = {"path": notebook_path(), "cells": len(cells)}
        code.files["cells.py"] = _cells_as_text(cells).encode(errors="replace")
    if path is not None:
        _add_script(code, path)
    if path is not None or cells is not None:
        repository, diff = _git_now(folder)
        if repository:
            code.facts["git"] = repository
        if diff:
            code.files["git.diff"] = diff
    for name, content in code.files.items():
        code.files[name] = mask_code_secrets(name, content)
        if code.files[name] != content:
            code.facts.setdefault("redacted", []).append(name)
    return code


def mask_code_secrets(name: str, content: bytes) -> bytes:
    """Return a file of code with its secrets masked.

    A diff is masked file by file, by the rule for each file's kind.
    """
    text = content.decode(errors="surrogateescape")
    if name.endswith(".diff"):
        parts = _OF_A_FILE.split(text)
        text = "".join(redact.code(part) if _IS_CODE.match(part) else redact.text(part) for part in parts)
    else:
        text = redact.code(text)
    return text.encode(errors="surrogateescape")


def script_path() -> Path | None:
    """Return the file with which this process was started.

    None in a console, in a notebook, and for an installed program.
    """
    name = getattr(sys.modules.get("__main__"), "__file__", None)
    if not name or notebook_cells() is not None:
        return None
    path = Path(name).absolute()
    prefixes = [Path(prefix) for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix}]
    # A virtual environment may be inside the project, but a project is never inside the environment.
    installed = any(path.is_relative_to(prefix) for prefix in prefixes) or "site-packages" in path.parts
    return path if path.is_file() and not installed else None


def notebook_cells() -> list[str] | None:
    """Return the cells run so far in IPython or Jupyter; None outside of it."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    history = getattr(shell, "user_ns", {}).get("In") if shell is not None else None
    return [str(cell) for cell in history] if isinstance(history, list) else None


def notebook_path() -> str:
    """Return the path of the notebook if its front end sets it, else ""."""
    return os.environ.get("JPY_SESSION_NAME", "")


def _git_now(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return the result of ``git``, cached for ``GIT_FRESH_S``, since a search starts many runs at once."""
    with _git_lock:
        known = _git_known.get(folder)
        if known is None or time.monotonic() - known[0] > GIT_FRESH_S:
            known = _git_known[folder] = (time.monotonic(), git_state(folder))
        return known[1]


def git_state(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return the git state of a folder: facts such as commit, branch and remote, and the diff to the commit.

    The diff is cut at ``LIMIT_BYTES``. ``({}, b"")`` without git, outside of a repository, and in one without a commit.
    """
    deadline = time.monotonic() + GIT_TIMEOUT_S

    def ask(*arguments: str) -> bytes | None:
        return _git(folder, arguments, deadline)

    commit = ask("rev-parse", "HEAD")
    if not commit:
        return {}, b""
    # Not "--binary": secrets in its output could not be found. The index line still identifies a binary file's content.
    options = ("--no-color", "--no-ext-diff", "--no-textconv", "--full-index")
    diff = ask("diff", "HEAD", *options, "--", ":/", *(f":(exclude,top,glob)**/{name}" for name in _NEVER))
    is_known, diff = diff is not None, diff or b""
    status = ask("status", "--porcelain", "--untracked-files=normal")
    untracked = [line[3:] for line in _text(status).splitlines() if line.startswith("?? ")]
    return (
        {
            "commit": _text(commit),
            "branch": _text(ask("rev-parse", "--abbrev-ref", "HEAD")),
            "root": _text(ask("rev-parse", "--show-toplevel")),
            "remote": redact.text(_text(ask("config", "--get", "remote.origin.url"))),
            "dirty": bool(diff) if is_known else None,  # None: git did not finish in time
            "diff_sha256": hashlib.sha256(diff).hexdigest() if diff else "",
            "diff_is_cut": len(diff) > LIMIT_BYTES,
            "untracked": untracked[:100],
        },
        diff[:LIMIT_BYTES],
    )


def _add_script(code: Code, path: Path) -> None:
    facts: dict[str, Any] = {"path": str(path)}
    code.facts["script"] = facts
    if path.stat().st_size > LIMIT_BYTES:
        facts["not_copied"] = f"larger than {LIMIT_BYTES} bytes"
        return
    content = path.read_bytes()
    facts["sha256"] = hashlib.sha256(content).hexdigest()
    code.files["script.py"] = content


def _cells_as_text(cells: list[str]) -> str:
    parts = [f"# In [{number}]\n{cell.rstrip()}\n" for number, cell in enumerate(cells) if cell.strip()]
    return "\n".join(parts)


def _text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace").strip()


def _git(folder: Path, arguments: Sequence[str], deadline: float) -> bytes | None:
    """Return the output of a git command, at most ``LIMIT_BYTES`` + 1 bytes.

    None if it fails or has not ended at the deadline (monotonic time in seconds).
    """
    if time.monotonic() >= deadline:
        return None
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    line = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments]
    try:
        process = subprocess.Popen(
            line, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:  # git is not installed
        return None
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
    timer.start()
    try:
        with process.stdout as pipe:  # type: ignore[union-attr]  # PIPE was asked for
            output = pipe.read(LIMIT_BYTES + 1)
            is_cut = len(output) > LIMIT_BYTES
        if is_cut:
            process.kill()
        return output if process.wait() == 0 or is_cut else None
    finally:
        process.kill()
        timer.cancel()
        timer.join()
