"""hopsml, by the spark-submit command of ``hopsml submit --profile local-cluster``, after ``hopsml class-data``.

Its environment contains the packages of ``pip install hopsml[spark,tensorflow-cpu]``, like those of the peers, and not
those of the project's tests and notebooks: TensorFlow imports pandas, scikit-learn and others if they are installed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks import environments
from benchmarks.launched import ROOT, Command, environment
from benchmarks.peers.base import SCRIPTS, Peer, local_cluster


def start(python: Path, script: Sequence[str], workers: int) -> list[Command]:
    """Return the command with the profile's settings; the project's folder is in the folder of the reports."""
    folder = Path(script[1])
    variables = variables_of(python, folder)
    built = subprocess.run(
        [str(python), str(SCRIPTS / "hopsml_command.py"), *script],
        env=environment({**variables, "HOPSML_SPARK_MASTER": local_cluster(workers)}, folder),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [Command(json.loads(built.stdout), variables)]


def variables_of(python: Path, folder: Path) -> dict[str, str]:
    """Return the environment variables for the driver of a hopsml session or job."""
    return {
        "SPARK_HOME": str(environments.pyspark_home(python)),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "HOPSML_CONF_DIR": str(ROOT / "conf"),
        "HOPSML_PROJECT_URL": f"file://{folder}/project",
    }


PEER = Peer("hopsml", "hopsml", "hopsml_job.py", start)
