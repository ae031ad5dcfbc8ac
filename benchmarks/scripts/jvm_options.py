"""The JVM options of the profile local-cluster with class-data archives of the Spark in SPARK_HOME, as JSON.

Makes the archives first, where they are missing. Run by our environment, for a peer's Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from hopsml import class_data, profiles, spark_home


def make_archives(settings: Mapping[str, str]) -> None:
    """Those of these settings, where they are missing."""
    archives = [class_data.archive_of(role, settings) for role in class_data.OPTIONS]
    if not all(archive is not None and archive.is_file() for archive in archives):
        class_data.make(settings, spark_home.spark_submit())


def main() -> None:
    """Nothing else of the profile: its other settings are no part of what makes a JVM start sooner."""
    settings = profiles.load("local-cluster").spark
    make_archives(settings)
    found = class_data.with_archives(settings)
    print(json.dumps({option: found[option] for option in class_data.OPTIONS.values()}))


if __name__ == "__main__":
    main()
