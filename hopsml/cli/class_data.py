"""``hopsml class-data``: archives of Spark's classes, so that later launches on this machine start sooner."""

from __future__ import annotations

from typing import Annotated

import typer


def class_data(
    profile: Annotated[str, typer.Option(help="a file of conf/ with class_data: true")] = "local-cluster",
) -> None:
    """Make the archives for a profile's JVM options, once for each Java and Spark; some fifteen seconds."""
    from hopsml import class_data as archives
    from hopsml import profiles, spark_home
    from hopsml.errors import ArgumentError

    known = profiles.load(profile)
    if not known.class_data:
        raise ArgumentError(
            f"profile '{profile}' does not use class-data archives; they serve where driver and executors share one "
            "machine's disk: set class_data: true in the profile"
        )
    for role, path in archives.make(known.spark, spark_home.spark_submit()).items():
        print(f"{role:8} {path.stat().st_size / 1e6:5.0f} MB  {path}")
