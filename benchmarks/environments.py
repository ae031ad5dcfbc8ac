"""A pinned Python environment per peer: ``.cache/bench/NAME`` from ``requirements/bench-NAME.txt``, on first use.

Packages named in ``bench-NAME-built.txt`` are built from source in that environment, after their build requirements are
installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "bench"
# Variables for builds from source. Debian 12's compiler no longer declares what Horovod's copy of gloo relies on.
BUILD_VARIABLES = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
    "CXXFLAGS": "-include cstdint",
}


def requirements_of(name: str) -> Path:
    """Return the file with the pinned packages of a peer."""
    return ROOT / "requirements" / f"bench-{name}.txt"


def built_of(name: str) -> Path:
    """Return the file with the packages of a peer that are built from source; most peers have no such file."""
    return ROOT / "requirements" / f"bench-{name}-built.txt"


def ensure(name: str, say: Callable[[str], None]) -> Path:
    """Return the peer's Python interpreter; create its environment if it is missing or the pins have changed.

    A file lock excludes a second caller, which waits and then uses the finished environment.

    Raises:
        RuntimeError: a package could not be installed; contains the installer's output.
    """
    folder, pins = CACHE / name, requirements_of(name)
    python, stamp = folder / "bin" / "python", folder / ".complete"
    wanted = hashlib.sha256(pins.read_bytes()).hexdigest()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            say(f"making the environment of {name} from {pins.name} (once)")
            began = time.monotonic()
            _install(folder, pins)
            stamp.write_text(wanted)
            say(f"the environment of {name} is ready after {time.monotonic() - began:.0f} s")
    return python


def _install(folder: Path, pins: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    uv = str(_uv())
    _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
    # Compiled in advance: a peer that compiles its packages at the first start would be measured too slow.
    install = [uv, "pip", "install", "--quiet", "--no-deps", "--compile-bytecode"]
    install += ["--python", str(folder / "bin" / "python")]
    _run([*install, "--requirement", str(pins)])
    built = built_of(folder.name)
    if built.exists():
        path = os.pathsep.join((str(folder / "bin"), os.environ.get("PATH", os.defpath)))
        building = ["--no-build-isolation", "--no-binary", ":all:", "--requirement", str(built)]
        _run([*install, *building], {**BUILD_VARIABLES, "PATH": path})


def _uv() -> Path:
    beside = Path(sys.executable).with_name("uv")
    found = beside if beside.exists() else shutil.which("uv")
    if found is None:
        raise RuntimeError("uv is not there, which makes the peers' environments; run `make setup`")
    return Path(found)


def _run(command: list[str], variables: Mapping[str, str] | None = None) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment |= variables or {}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")


def pyspark_home(python: Path) -> Path:
    """Return the folder of the pyspark package that an interpreter would import."""
    folders = sorted(python.parent.parent.glob("lib/python3*/site-packages/pyspark"))
    if not folders:
        raise RuntimeError(f"{python} has no pyspark")
    return folders[0]
