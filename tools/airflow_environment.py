"""Create .cache/airflow/venv with the Airflow of requirements/airflow.txt and this project, editable.

    .venv/bin/python -m tools.airflow_environment

Airflow needs a separate environment, because it pins other versions of packages that the project needs. It contains neither
Spark nor TensorFlow. Nothing is done while it is newer than its requirements. Of two concurrent callers the second waits.
"""

from __future__ import annotations

import fcntl
import sys
import time
from pathlib import Path

from tools.setup_environment import ROOT, Missing, fetch, is_current, run

HOME = ROOT / ".cache" / "airflow"
VENV = HOME / "venv"
PYTHON = VENV / "bin" / "python"
REQUIREMENTS = ROOT / "requirements" / "airflow.txt"
SOURCES = (REQUIREMENTS, ROOT / "setup.py")


def ensure() -> Path:
    """Create the environment unless it is current, and return its interpreter.

    Raises:
        Missing: packages cannot be fetched.
        subprocess.CalledProcessError: another command failed.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    stamp = VENV / ".complete"
    with (HOME / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_current(stamp, SOURCES):
            began = time.monotonic()
            _install()
            stamp.touch()
            print(f"setup: {VENV} is ready after {time.monotonic() - began:.0f} s", flush=True)
    return PYTHON


def _install() -> None:
    uv = Path(sys.executable).parent / "uv"
    run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, VENV)
    install = (uv, "pip", "install", "--quiet", "--python", PYTHON, "--no-deps")
    fetch(*install, "--requirement", REQUIREMENTS)
    run(*install, "--no-build-isolation", "--editable", ROOT)  # the pinned setuptools builds it


if __name__ == "__main__":
    try:
        print(ensure())
    except Missing as problem:
        sys.exit(f"setup: {problem}")
