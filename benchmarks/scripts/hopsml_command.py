"""The spark-submit command of a job of ours, as JSON; makes the class-data archives first, where they are missing.

Run by the environment that will run the job: Spark, Java and archives are found as there.
"""

from __future__ import annotations

import json
import sys

from hopsml import class_data, profiles, submission


def main() -> None:
    """Script and arguments are our own arguments."""
    profile = profiles.load("local-cluster")
    archives = [class_data.archive_of(role, profile.spark) for role in class_data.OPTIONS]
    if not all(archive is not None and archive.is_file() for archive in archives):
        class_data.make(profile.spark, submission.spark_submit())
    print(json.dumps(submission.command(profile, sys.argv[1], sys.argv[2:])))


if __name__ == "__main__":
    main()
