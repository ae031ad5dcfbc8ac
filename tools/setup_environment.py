"""Make .venv: what is pinned in requirements/, and this project itself, editable. Called by `make setup`.

    python3.11 tools/setup_environment.py STAMP SOURCE...

Standard library only, since it runs before anything is installed. STAMP is touched when all is done;
nothing is done while it is newer than every SOURCE. Two callers at once: the second waits and finds it done.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"


def is_current(stamp: Path, sources: Sequence[Path]) -> bool:
    """Whether ``stamp`` exists and no source is newer."""
    return stamp.exists() and all(stamp.stat().st_mtime >= source.stat().st_mtime for source in sources)


def run(*command: str | Path) -> None:
    """Run a command; CalledProcessError when it fails."""
    # The variable would leave the packages without .pyc files, and then importing TensorFlow takes 6.8 s
    # instead of 2.1 s in every new process.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT, env=environment)


def install() -> None:
    """Create the environment if need be and bring it to what the requirement files say."""
    if not PYTHON.exists():
        run(sys.executable, "-m", "venv", VENV)
    requirements = ROOT / "requirements"
    pip = (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--requirement", requirements / "uv.txt")
    uv = (VENV / "bin" / "uv", "pip", "install", "--quiet", "--python", PYTHON, "--no-deps")
    run(*uv, "--compile-bytecode", "--requirement", requirements / "dev.txt")
    run(*uv, "--no-build-isolation", "--editable", ROOT)  # the pinned setuptools builds it


def main(stamp: Path, sources: Sequence[Path]) -> None:
    """Install unless that was done since the sources changed."""
    cache = ROOT / ".cache"
    cache.mkdir(exist_ok=True)
    with (cache / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_current(stamp, sources):
            began = time.monotonic()
            install()
            stamp.touch()
            print(f"setup: {VENV} is ready after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(source) for source in sys.argv[2:]])
