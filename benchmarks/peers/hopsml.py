"""This project, by the spark-submit command that ``hopsml submit --profile local-cluster`` runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from benchmarks import environments
from benchmarks.launched import ROOT, Command
from benchmarks.peers.base import Peer, local_cluster
from hopsml import profiles, submission


def start(python: Path, script: Sequence[str], workers: int) -> list[Command]:
    """The settings of the profile; the project's folder lies beside the reports."""
    profile = dataclasses.replace(profiles.load("local-cluster"), master=local_cluster(workers))
    line = submission.command(profile, script[0], script[1:])
    return [Command(line, variables(python, Path(script[1])))]


def variables(python: Path, folder: Path) -> dict[str, str]:
    """What the driver of a session or a job of ours needs."""
    return {
        "SPARK_HOME": str(environments.pyspark_home(python)),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "HOPSML_CONF_DIR": str(ROOT / "conf"),
        "HOPSML_PROJECT_URL": f"file://{folder}/project",
    }


PEER = Peer("hopsml", "hopsml", "hopsml_job.py", start, own_environment=False)
