"""Program for spark-submit: two workers store files in HDFS until a file exists; arguments: its folder, the files' URL."""

import sys

import hopsml
from tests.helpers.storage.token_workload import store_until

if __name__ == "__main__":
    arguments = {"local": sys.argv[1], "folder": sys.argv[2]}
    result = hopsml.experiment.collective_all_reduce(store_until, args=arguments, num_workers=2)
    print(result.summary())
