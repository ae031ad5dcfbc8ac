"""Program for spark-submit: two runs in one application; each stores files until a file exists in its own folder.

Arguments: the folder with the folders ``first`` and ``second``, the URL of the files.
"""

import sys

import hopsml
from tests.helpers.storage.token_workload import store_until

if __name__ == "__main__":
    for name in ("first", "second"):
        arguments = {"local": f"{sys.argv[1]}/{name}", "folder": f"{sys.argv[2]}/{name}"}
        result = hopsml.experiment.collective_all_reduce(store_until, args=arguments, num_workers=2)
        print(result.summary(), flush=True)
