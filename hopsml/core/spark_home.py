"""Location of Spark on this machine, found without importing pyspark."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from hopsml.core import extras
from hopsml.errors import ArgumentError


def spark_submit() -> str:
    """Return the path of spark-submit: that of $SPARK_HOME, else of the installed pyspark, else the one on PATH.

    Raises:
        ArgumentError: there is no spark-submit.
    """
    home = os.environ.get("SPARK_HOME")
    candidates = [Path(home, "bin", "spark-submit")] if home else []
    spec = find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        candidates.append(Path(spec.origin).parent / "bin" / "spark-submit")
    found = next((str(path) for path in candidates if path.is_file()), None) or shutil.which("spark-submit")
    if found is None:
        raise ArgumentError(
            f"spark-submit was not found; set SPARK_HOME, or install pyspark ({extras.install('spark')})"
        )
    return found
