"""Driver that sends 100 rows to a worker with the jar of its argument in place of the package's; prints how many came."""

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from hopsml import experiment
from hopsml.training.data import push


def count(rows: Any) -> int:
    """Return the number of rows, read in batches."""
    return sum(len(batch["id"]) for batch in rows.batch(10))


def main() -> None:
    push.JAR = Path(sys.argv[1])
    experiment.collective_all_reduce(lambda: None, num_workers=1, profile="local-cluster", progress=False)
    frame = SparkSession.builder.getOrCreate().range(100)
    run = experiment.submit(count, data={"rows": frame}, num_workers=1, progress=False)
    print("rows:", run.result().value, flush=True)


if __name__ == "__main__":
    main()
