"""``experiment.spark``: the session whose DataFrames a training can be given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopsml.errors import ArgumentError
from hopsml.experiment import applications

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark(profile: str | None = None) -> SparkSession:
    """The Spark session on whose executors the verbs train: yours, else one as the profile describes.

        clicks = experiment.spark().read.parquet("hdfs:///data/clicks")
        experiment.collective_all_reduce(train, data={"clicks": clicks}, num_workers=4)

    Args:
        profile: name of a file in conf/; by default that of HOPSML_PROFILE. It counts where there is no Spark yet.

    Raises ArgumentError for a profile without Spark, and the errors of starting one.
    """
    applications.prepare(profile)
    context = getattr(applications.current(profile).backend, "context", None)
    if context is None:
        raise ArgumentError(
            "this profile has no Spark (master: none); choose another one, profile= or HOPSML_PROFILE: `hopsml profiles` "
            "lists them"
        )
    from pyspark.sql import SparkSession

    found: SparkSession = SparkSession.builder.getOrCreate()  # of the context that there is
    return found
