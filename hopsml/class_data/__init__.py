"""Class-data archives: Spark's loaded classes as files that a JVM maps at its start instead of loading each.

A profile with ``class_data: true`` uses them where they have been created (``hopsml class-data``), on this machine: one
for the driver, one for executors that share its disk. An archive belongs to one build of Java, one set of jars and one
choice of JVM options; a digest of these is part of its file name, so an archive that does not fit is not found. The JVM
checks it again and starts without it (``-Xshare:auto``) if anything differs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from hopsml.errors import ArgumentError

OPTIONS = {"driver": "spark.driver.extraJavaOptions", "executor": "spark.executor.extraJavaOptions"}
MAKE_TIMEOUT_S = 180.0
_WRITABLE = 0o022  # by the group, or by all users
# Suppresses the JVM's messages about an archive that it does not use: it starts without it.
QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def with_archives(settings: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings with the existing archives added.

    A setting that already names an archive is unchanged. An archive that others may have written is not used, as the JVM
    runs the classes in it.
    """
    found = dict(settings)
    for role, option in OPTIONS.items():
        archive = archive_of(role, settings)
        if archive is not None and _is_own(archive) and "SharedArchiveFile" not in found.get(option, ""):
            found[option] = f"{found.get(option, '')} -XX:SharedArchiveFile={archive} {QUIET}".strip()
    return found


def archive_of(role: str, settings: Mapping[str, str]) -> Path | None:
    """Return the path of the driver's or the executors' archive, existing or not; None without Java or Spark."""
    java, jars = _java(), _jars()
    if java is None or jars is None:
        return None
    library = java.parents[1] / "lib" / "server" / "libjvm.so"
    parts = [str(java), settings.get(OPTIONS[role], "")]
    for file in (library, *sorted(jars.iterdir())):
        if file.exists():
            status = file.stat()
            parts.append(f"{file} {status.st_size} {status.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return _cache() / f"{role}-{digest}.jsa"


def _is_own(archive: Path) -> bool:
    """Return True if an archive exists, and only this user or root can have written it or its folder."""
    try:
        facts = [os.stat(place) for place in (archive, archive.parent)]
    except OSError:
        return False
    believed = (os.geteuid(), 0)
    return archive.is_file() and all(one.st_uid in believed and not one.st_mode & _WRITABLE for one in facts)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hopsml" / "class-data"


def _java() -> Path | None:
    """Return the path of the java program; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return Path(found).resolve() if found else None


def _jars() -> Path | None:
    """Return the folder of Spark's jars; None if there is none."""
    home = os.environ.get("SPARK_HOME")
    spec = None if home else find_spec("pyspark")
    folder = Path(home) if home else Path(spec.origin).parent if spec is not None and spec.origin else None
    return folder / "jars" if folder is not None and (folder / "jars").is_dir() else None


# ------------------------------------------------------------------------------------------ creation


def make_archives(settings: Mapping[str, str], spark_submit: str) -> dict[str, Path]:
    """Create the archives by a small Spark application that records the classes it loads; return their paths by role.

    The settings are those of the profile, because an archive fits JVM options. It takes about 15 s; the archives have
    about 130 MB.

    Args:
        settings: Spark's settings of the profile.
        spark_submit: path of spark-submit.

    Raises:
        ArgumentError: without Java or Spark, if Spark puts a folder with files on the class path, or if the application
            fails.
    """
    _refuse_configuration()
    targets: dict[str, Path] = {}
    for role in OPTIONS:
        archive = archive_of(role, settings)
        if archive is None:
            raise ArgumentError(
                "class-data archives need Java and Spark, which are not installed on this machine; install them first"
            )
        targets[role] = archive
    _cache().mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        _cache().chmod(0o700)
    except PermissionError as error:
        raise ArgumentError(
            f"{_cache()} belongs to another user, and JVMs would execute its content; set XDG_CACHE_HOME to a folder "
            "of your own"
        ) from error
    with tempfile.TemporaryDirectory(dir=_cache(), prefix="making-") as name:
        folder = Path(name)
        noted = dict(settings)
        for role, option in OPTIONS.items():
            noted[option] = f"{settings.get(option, '')} -XX:ArchiveClassesAtExit={folder / role}".strip()
        _run(noted, spark_submit, folder)
        for role, target in targets.items():
            (folder / role).chmod(0o600)
            os.replace(folder / role, target)
    return targets


def _refuse_configuration() -> None:
    """Check that Spark's configuration folder is empty.

    Java creates no archive with a non-empty folder on the class path.
    """
    jars, said = _jars(), os.environ.get("SPARK_CONF_DIR")
    conf = Path(said) if said else jars.parent / "conf" if jars is not None else None
    if conf is not None and conf.is_dir() and any(conf.iterdir()):
        where = f"SPARK_CONF_DIR={said}" if said else f"SPARK_HOME's {conf}"
        raise ArgumentError(
            f"{where} contains files, and Java creates no class-data archive if such a folder is on the class path; "
            "move Spark's settings into a profile, or use no archives"
        )


def _run(settings: Mapping[str, str], spark_submit: str, folder: Path) -> None:
    """Run the application with these settings, and check that it has written both archives."""
    # One executor: two would write the same file.
    line = [spark_submit, "--master", "local-cluster[1,1,1024]"]
    for key, value in settings.items():
        line += ["--conf", f"{key}={value}"]
    script = Path(__file__).with_name("job.py")
    variables = {"PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **variables}
    done = subprocess.run(
        [*line, str(script)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=MAKE_TIMEOUT_S,
        check=False,
    )
    missing = [role for role in OPTIONS if not (folder / role).is_file()]
    if done.returncode or missing:
        what = f"status {done.returncode}" if done.returncode else f"no archive of the {' and the '.join(missing)}"
        raise ArgumentError(
            f"the application that creates class-data archives ended with {what}:\n{done.stdout[-2000:]}"
        )
