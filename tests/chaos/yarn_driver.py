"""Program for YARN in client or cluster mode: an elastic training on two workers with its result in a file.

Arguments: the folder, and the means by which workers synchronise, as for ``elastic_workload.train``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hopsml import experiment
from tests.helpers.cluster import elastic_workload


def main(folder: str, over: str) -> None:
    """Train; the function has equal arguments in every attempt, so each run writes into a separate folder."""
    result = experiment.collective_all_reduce(
        elastic_workload.train,
        args={"folder": folder, "step_s": 0.3, "by_run": True, "over": over},
        min_workers=2,
        max_workers=2,
        checkpoint_every_s=0.5,
        progress=False,
    )
    part = Path(folder, ".result")
    part.write_text(json.dumps({"value": result.value, "run_dir": result.run_dir}))
    part.rename(Path(folder, "result"))


if __name__ == "__main__":
    main(*sys.argv[1:])
