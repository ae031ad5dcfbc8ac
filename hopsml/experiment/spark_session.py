"""Function ``experiment.spark``: the Spark session whose DataFrames a training can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopsml.errors import ArgumentError
from hopsml.experiment import applications

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark(profile: str | None = None) -> SparkSession:
    """Return the Spark session on whose executors the verbs train: the existing one, else one of the profile.

        clicks = experiment.spark().read.parquet("hdfs:///data/clicks")
        experiment.collective_all_reduce(train, data={"clicks": clicks}, num_workers=4)

    Args:
        profile: name of a file in conf/, used if Spark has not started yet; by default that of HOPSML_PROFILE.

    Raises:
        ArgumentError: The profile has no Spark; otherwise the errors of Spark's start.
    """
    applications.prepare(profile)
    context = getattr(applications.current(profile).backend, "context", None)
    if context is None:
        raise ArgumentError(
            "this profile has no Spark (master: none); choose another one, profile= or HOPSML_PROFILE: `hopsml profiles` "
            "lists them"
        )
    from pyspark.sql import SparkSession

    found: SparkSession = SparkSession.builder.getOrCreate()  # of the existing context
    return found
