"""``hopsml class-data``: archives of Spark's classes, with which later launches on this machine start faster."""

from __future__ import annotations

from typing import Annotated

import typer


def class_data(
    profile: Annotated[
        str, typer.Option(help="Profile with class_data: true; name of a file in conf/.")
    ] = "local-cluster",
) -> None:
    """Make archives of Spark's classes, with which later launches on this machine start faster.

    They are made for the JVM options of a profile, once for each version of Java and Spark. It takes about 15 seconds.
    """
    from hopsml import class_data as archives
    from hopsml.core import profiles, spark_home
    from hopsml.errors import ArgumentError

    known = profiles.load(profile)
    if not known.class_data:
        raise ArgumentError(
            f"profile '{profile}' does not use class-data archives. If driver and executors share the disk of one "
            "machine, set class_data: true in the profile"
        )
    for role, path in archives.make(known.spark, spark_home.spark_submit()).items():
        print(f"{role:8} {path.stat().st_size / 1e6:5.0f} MB  {path}")
