"""Build the classes by which Spark's JVM sends rows to workers, unless current: ``python -m tools.build_spark_push``.

    hopsml/training/data/lib/hopsml-spark-push.jar       of native/spark_push/, for Spark 3.3 to 4.x

One jar serves both versions of Scala and all versions of Java since 8, whichever pyspark it is compiled with: its classes
use only what all these have in the same form, and ``PushJob`` looks up the one method that differs.

It uses the standard library only, as ``tools/build_native.py`` does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "native" / "spark_push"
JAR = ROOT / "hopsml" / "training" / "data" / "lib" / "hopsml-spark-push.jar"
OPTIONS = ("--release", "8", "-Xlint:-options", "-proc:none", "-nowarn", "-encoding", "UTF-8")


class NoJavac(Exception):
    """Error of a missing Java compiler or Spark; the message has the consequences."""


def build() -> Path:
    """Build the jar unless it is current, and return its path.

    Raises:
        NoJavac: there is no compiler or no Spark.
        subprocess.CalledProcessError: the compiler failed; its ``stderr`` has the reason.
    """
    spark = _spark()
    sources = sorted(SOURCES.glob("*.java"))
    wanted = _digest(sources)
    mark = JAR.with_suffix(".built-of")
    if JAR.exists() and mark.exists() and mark.read_text() == wanted:
        return JAR
    javac = shutil.which("javac") or shutil.which(f"{os.environ.get('JAVA_HOME', '')}/bin/javac")
    if javac is None:
        raise NoJavac(
            "javac is missing: rows of DataFrames, data=, go to the workers by Python, which takes two to four times the "
            "processor time (apt-get install openjdk-17-jdk-headless, then make setup)"
        )
    with tempfile.TemporaryDirectory() as folder:
        command = [javac, *OPTIONS, "-cp", f"{spark}/jars/*", "-d", folder, *map(str, sources)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        _pack(Path(folder))
    mark.write_text(wanted)
    return JAR


def _spark() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise NoJavac("pyspark is not installed: nothing is built for it")
    return Path(found.submodule_search_locations[0])


def _digest(sources: list[Path]) -> str:
    digest = hashlib.sha256(" ".join(OPTIONS).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _pack(classes: Path) -> None:
    """Write the classes into the jar by a rename, so that concurrent builds are safe."""
    JAR.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(dir=JAR.parent)
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as jar:
        for one in sorted(classes.rglob("*.class")):
            jar.write(one, str(one.relative_to(classes)))
    os.chmod(part, 0o644)
    os.replace(part, JAR)


def main() -> None:
    """Build the jar, or print the consequences if this is not possible."""
    try:
        build()
    except NoJavac as lost:
        print(f"setup: {lost}")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"setup: {JAR.name} could not be built:\n{failed.stderr}")


if __name__ == "__main__":
    main()
