"""The spark-submit command of a job of ours, as JSON; makes the class-data archives first, where they are missing.

Run by the environment that will run the job: Spark, Java and archives are found as there.
"""

from __future__ import annotations

import json
import sys

from benchmarks.scripts.jvm_options import make_archives
from hopsml import profiles, submission


def main() -> None:
    """Script and arguments are our own arguments."""
    profile = profiles.load("local-cluster")
    make_archives(profile.spark)
    print(json.dumps(submission.command(profile, sys.argv[1], sys.argv[2:])))


if __name__ == "__main__":
    main()
