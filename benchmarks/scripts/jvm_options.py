"""The JVM options of the profile local-cluster with class-data archives of the Spark in SPARK_HOME, as JSON.

Makes missing archives first. It runs in hopsml's environment, for a peer's Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from hopsml import class_data
from hopsml.core import profiles
from hopsml.submission import spark_command


def make_archives(settings: Mapping[str, str]) -> None:
    """Make the class-data archives for these settings, if some are missing."""
    archives = [class_data.archive_of(role, settings) for role in class_data.OPTIONS]
    if not all(archive is not None and archive.is_file() for archive in archives):
        class_data.make_archives(settings, spark_command.spark_submit_path())


def main() -> None:
    """Print the JVM options alone, as the profile's other settings do not affect the start of a JVM."""
    settings = profiles.load("local-cluster").spark
    make_archives(settings)
    found = class_data.with_archives(settings)
    print(json.dumps({option: found[option] for option in class_data.OPTIONS.values()}))


if __name__ == "__main__":
    main()
