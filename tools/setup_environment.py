"""Create .venv with the packages that requirements/ pins and this project, editable; called by `make setup`.

    python3.11 tools/setup_environment.py STAMP SOURCE...
    python3.11 tools/setup_environment.py --needs java mvn      # exit status 1, and a line for each that is missing

It uses the standard library only, since it runs before anything is installed. STAMP is touched at the end;
nothing is done while it is newer than every SOURCE. Of two concurrent callers the second waits and finds it done.
A missing requirement is reported in one line.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
WANTED = (3, 11)  # Python version of the pinned requirements
PROGRAMS = {
    "java": "Spark and YARN need Java 17 (apt-get install openjdk-17-jre-headless); the profile `local` works without",
    "mvn": "make hadoop-up, demo-yarn and test fetch Hadoop's jars by Maven (apt-get install maven)",
}


class Missing(Exception):
    """Error of a missing requirement; the message has the remedy."""


def is_current(stamp: Path, sources: Sequence[Path]) -> bool:
    """Return True if ``stamp`` exists and no source is newer."""
    return stamp.exists() and all(stamp.stat().st_mtime >= source.stat().st_mtime for source in sources)


def check_python(version: tuple[int, int], has_pip: bool) -> None:
    """Raise Missing unless this interpreter can create the environment."""
    if version != WANTED:
        found, wanted = (".".join(map(str, each)) for each in (version, WANTED))
        raise Missing(
            f"this is Python {found}, and requirements/ are pinned for {wanted}: make PYTHON=python{wanted} ..."
        )
    if not has_pip:
        raise Missing(f"{sys.executable} has no ensurepip: install its venv module (apt-get install python3.11-venv)")


def missing(names: Sequence[str], home: str = "") -> list[str]:
    """Return a line for each of these programs that is not on the PATH; ``home``: JAVA_HOME."""
    there = {name: shutil.which(name) for name in names}
    if home and os.access(Path(home, "bin", "java"), os.X_OK):
        there["java"] = home
    return [f"{name} is missing: {PROGRAMS[name]}" for name in names if not there[name]]


def fetch(*command: str | Path) -> None:
    """Run a command that needs a package index; raise Missing with its last output if it fails."""
    log = ROOT / ".cache" / "setup.log"
    with log.open("ab") as file:
        began = file.tell()
        try:
            run(*command, output=file)
        except subprocess.CalledProcessError as error:
            said = log.read_bytes()[began:].decode(errors="replace").split("\n")
            words = [line.strip(" ×╰─▶├│") for line in said if line.strip()] or [f"exit status {error.returncode}"]
            why = next((line for line in words if "onnect" in line or "resol" in line.lower()), words[-1])
            raise Missing(
                f"packages could not be fetched: {why[:200]} (no network, or an index that does not answer? proxies: "
                f"HTTPS_PROXY, PIP_INDEX_URL, UV_DEFAULT_INDEX; all of it: {log})"
            ) from error


def run(*command: str | Path, output: BinaryIO | None = None) -> None:
    """Run a command with its output in a file, by default this process's output; CalledProcessError if it fails."""
    # With the variable set no .pyc files would be written, and importing TensorFlow would take 6.8 s instead of 2.1 s in
    # every new process.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    line = [str(part) for part in command]
    subprocess.run(line, check=True, cwd=ROOT, env=environment, stdout=output, stderr=output)


def install() -> None:
    """Create the environment if necessary and install the pinned requirements."""
    if not PYTHON.exists():
        check_python(sys.version_info[:2], importlib.util.find_spec("ensurepip") is not None)
        run(sys.executable, "-m", "venv", VENV)
    requirements = ROOT / "requirements"
    pip = (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    fetch(*pip, "--retries", "1", "--requirement", requirements / "uv.txt")
    uv = (VENV / "bin" / "uv", "pip", "install", "--quiet", "--python", PYTHON, "--no-deps")
    # Not --compile-bytecode: of 23 000 files a quarter is ever imported, and compiled once at that time; TensorFlow's when
    # the native libraries below query its compiler options.
    fetch(*uv, "--requirement", requirements / "dev.txt")
    run(*uv, "--no-build-isolation", "--editable", ROOT)  # the pinned setuptools builds it


def main(stamp: Path, sources: Sequence[Path]) -> None:
    """Install unless that was done after the last change of the sources."""
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
    if sys.argv[1] == "--needs":
        lines = missing(sys.argv[2:], os.environ.get("JAVA_HOME", ""))
        print("".join(f"setup: {line}\n" for line in lines), end="", file=sys.stderr)
        sys.exit(bool(lines))
    try:
        main(Path(sys.argv[1]), [Path(source) for source in sys.argv[2:]])
    except Missing as problem:
        sys.exit(f"setup: {problem}")
