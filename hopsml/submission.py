"""spark-submit's command line for a script under a profile: built first (``hopsml submit --dry-run``), then sent."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from hopsml.errors import ArgumentError
from hopsml.profiles import Profile


def command(
    profile: Profile,
    script: str,
    arguments: Sequence[str] = (),
    *,
    num_workers: int | None = None,
    conf: Mapping[str, str] | None = None,
) -> list[str]:
    """The arguments for the operating system; ``conf`` wins over the profile's settings.

    Raises ArgumentError for a profile without Spark, or a script that is not there or has a syntax error.
    """
    if not profile.uses_spark:
        raise ArgumentError(
            f"profile '{profile.name}' runs without Spark: start the script itself, python {script}, or name another "
            "profile with --profile"
        )
    _check(script)
    settings = profile.settings()
    if num_workers is not None:
        settings["spark.executor.instances"] = str(num_workers)
    settings.update(conf or {})
    line = [spark_submit(), "--master", profile.master, "--deploy-mode", profile.deploy_mode]
    for key, value in settings.items():
        line += ["--conf", f"{key}={value}"]
    return [*line, script, *arguments]


def _check(script: str) -> None:
    path = Path(script)
    if not path.is_file():
        raise ArgumentError(f"there is no script {script}")
    try:
        compile(path.read_text(encoding="utf-8"), script, "exec")
    except SyntaxError as error:
        raise ArgumentError(f"{script}, line {error.lineno}: {error.msg}; nothing was submitted") from error


def spark_submit() -> str:
    """The spark-submit to use: of $SPARK_HOME, else the installed pyspark's, else the one on the path."""
    home = os.environ.get("SPARK_HOME")
    candidates = [Path(home, "bin", "spark-submit")] if home else []
    spec = find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        candidates.append(Path(spec.origin).parent / "bin" / "spark-submit")
    found = next((str(path) for path in candidates if path.is_file()), None) or shutil.which("spark-submit")
    if found is None:
        raise ArgumentError(
            "there is no spark-submit: set SPARK_HOME, or install pyspark (pip install 'hopsml[spark]')"
        )
    return found


def environment() -> dict[str, str]:
    """The caller's, with this interpreter for the driver and the executors where none is named."""
    return {**os.environ, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
