"""This project, by the spark-submit command that ``hopsml submit --profile local-cluster`` runs; archives are there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from benchmarks import environments
from benchmarks.launched import ROOT, Command
from benchmarks.peers.base import Peer, local_cluster
from hopsml import class_data, profiles, submission


def start(python: Path, script: Sequence[str], workers: int) -> list[Command]:
    """The settings of the profile; the project's folder lies beside the reports."""
    profile = dataclasses.replace(profiles.load("local-cluster"), master=local_cluster(workers))
    _make_archives(profile)
    line = submission.command(profile, script[0], script[1:])
    return [Command(line, variables(python, Path(script[1])))]


def _make_archives(profile: profiles.Profile) -> None:
    """As ``hopsml class-data`` does, once for each Java and Spark; before anything is measured."""
    archives = [class_data.archive_of(role, profile.spark) for role in class_data.OPTIONS]
    if not all(archive is not None and archive.is_file() for archive in archives):
        class_data.make(profile.spark, submission.spark_submit())


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
