"""spark-tensorflow-distributor with hopsml's JVM options and class-data archives, for a faster start of the JVMs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks import environments
from benchmarks.launched import Command, environment
from benchmarks.peers import hopsml
from benchmarks.peers.base import SCRIPTS, Peer, SparkSubmit


def start(python: Path, script: Sequence[str], workers: int) -> list[Command]:
    """Return the commands that start the job; the archives of the peer's own Spark are made on first use."""
    folder, home = Path(script[1]), environments.pyspark_home(python)
    variables = {**hopsml.variables_of(hopsml.PEER.python(), folder), "SPARK_HOME": str(home)}
    found = subprocess.run(
        [str(hopsml.PEER.python()), str(SCRIPTS / "jvm_options.py")],
        env=environment(variables, folder),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return SparkSubmit(json.loads(found.stdout))(python, script, workers)


PEER = Peer(
    "spark-tensorflow-distributor-our-jvm",
    "spark-tensorflow-distributor 1.0.0, our JVM options",
    "tensorflow_distributor_job.py",
    start,
    packages="spark-tensorflow-distributor",
)
