"""Hadoop's jars, fetched once from Maven into a cache folder.

``HADOOP_VERSION=3.3.6`` in the environment selects another release than that of pom.xml, for daemons and tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.hadoop.errors import HadoopError

POM = Path(__file__).with_name("pom.xml")
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "hadoop"
STAMP = ".pom-sha256"
VERSION = "HADOOP_VERSION"


def ensure_jars(cache: Path = CACHE, pom: Path = POM) -> Path:
    """Fetch the jars that ``pom`` names unless they are current, and return their folder.

    It is ``cache/jars``, or ``cache/jars-VERSION`` for the release that the environment selects. Concurrent callers wait
    for each other; an interrupted fetch is not considered complete.

    Raises HadoopError with Maven's output if it cannot fetch, or if ``mvn`` is not installed.
    """
    wanted = hashlib.sha256(pom.read_bytes()).hexdigest()
    version = os.environ.get(VERSION, "")
    jars = cache / (f"jars-{version}" if version else "jars")
    cache.mkdir(parents=True, exist_ok=True)
    with exclusive(cache / "jars.lock"):
        if _stamp(jars) != wanted:
            fresh = cache / "jars.new"
            shutil.rmtree(fresh, ignore_errors=True)
            _fetch(pom, fresh, version)
            (fresh / STAMP).write_text(wanted)
            shutil.rmtree(jars, ignore_errors=True)
            fresh.rename(jars)
    return jars


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``; the kernel releases it when this process ends, in any way."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _stamp(jars: Path) -> str:
    try:
        return (jars / STAMP).read_text()
    except FileNotFoundError:
        return ""


def _fetch(pom: Path, target: Path, version: str) -> None:
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
    command += [f"-Dhadoop.version={version}"] if version else []
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError:
        raise HadoopError(
            "mvn is not on the PATH; install Maven 3.6 or later (Debian: apt-get install maven)"
        ) from None
    if done.returncode or not any(target.glob("hadoop-hdfs-*.jar")):
        raise HadoopError(
            f"Maven could not fetch the jars of {pom} (exit status {done.returncode}); is a Maven repository "
            f"reachable?\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
        )
