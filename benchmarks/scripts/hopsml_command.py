"""The spark-submit command of a hopsml job, as JSON; makes missing class-data archives first.

It runs in the environment that will run the job, so that it finds the same Spark, Java and archives.
"""

from __future__ import annotations

import json
import sys

from benchmarks.scripts.jvm_options import make_archives
from hopsml import submission
from hopsml.core import profiles


def main() -> None:
    """Print the command for the script and arguments given on the command line."""
    profile = profiles.load("local-cluster")
    make_archives(profile.spark)
    print(json.dumps(submission.build_command(profile, sys.argv[1], sys.argv[2:])))


if __name__ == "__main__":
    main()
