"""Two workers that read Spark's files by Ray Data: ray_data_job.py FOLDER ROUNDS ANSWER."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

BATCH = 1024


def main(folder: str, rounds: int, answer: str) -> None:
    """Write the seconds from ``read_parquet`` to the last batch of both workers, which run already, by layout."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", _temp_dir=os.environ["TMPDIR"])

    @ray.remote(num_cpus=0)
    class Worker:
        def read(self, shard: Any) -> int:
            """Read all batches and return the number of rows."""
            return sum(len(batch["label"]) for batch in shard.iter_batches(batch_size=BATCH, batch_format="numpy"))

    workers = [Worker.remote() for _ in range(2)]  # type: ignore[attr-defined]
    found: dict[str, list[float]] = {"array": [], "wide": []}
    for number in range(rounds + 1):  # the first round is for Ray's own processes
        for layout, took in found.items():
            began = time.time()
            shards = ray.data.read_parquet(f"{folder}/{layout}").streaming_split(2)
            ray.get([worker.read.remote(shard) for worker, shard in zip(workers, shards, strict=True)])
            if number:
                took.append(time.time() - began)
    part = Path(f"{answer}.part")
    part.write_text(json.dumps(found))
    part.rename(answer)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
