"""External shuffle service of Spark in the NodeManagers: its class path, settings and compilation.

Spark's own auxiliary service for YARN is in a jar that pip's pyspark lacks; ``ShuffleService.java`` starts the handler of
shuffle blocks that pyspark contains.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.hadoop.errors import HadoopError
from tools.hadoop.settings import Settings
from tools.hadoop.spark import pyspark_home

SOURCE = Path(__file__).with_name("ShuffleService.java")
PREFIX = "yarn.nodemanager.aux-services"


def with_shuffle_service(plain: Settings, home: Path, port: int) -> Settings:
    """Return settings with which each NodeManager starts the service, with its classes apart from Hadoop's."""
    return plain | {
        "yarn-site.xml": {
            **plain["yarn-site.xml"],
            PREFIX: "spark_shuffle",
            f"{PREFIX}.spark_shuffle.class": "hopsml.tools.ShuffleService",
            f"{PREFIX}.spark_shuffle.classpath": f"{_classes_of(home)}:{pyspark_home()}/jars/*",
            "spark.shuffle.service.port": port,  # applications read it, too, unless they have their own value
        }
    }


def compile_service(home: Path, jars: str) -> None:
    """Compile the service against Hadoop's ``jars`` and those of pyspark; HadoopError if that fails."""
    classpath = f"{jars}/*:{pyspark_home()}/jars/*"
    command = ["javac", "-proc:none", "-nowarn", "-d", str(_classes_of(home)), "-cp", classpath, str(SOURCE)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError:
        raise HadoopError(
            "javac is missing; the shuffle service of the NodeManagers needs it (apt-get install openjdk-17-jdk-headless)"
        ) from None
    if done.returncode:
        raise HadoopError(f"javac {SOURCE.name} ended with {done.returncode}: {done.stderr[-2000:]}")


def _classes_of(home: Path) -> Path:
    return home / "shuffle-service"
