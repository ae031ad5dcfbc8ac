"""Driver of an elastic training that continues in place when workers are lost, and announces when it is about to.

Arguments: a folder for the training's files, in which ``mending`` appears when the group is asked to continue, and
``result``; "arrays" or "torch".
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from hopsml import experiment
from hopsml.experiment import collective, plan
from hopsml.experiment.options import TorchOptions
from hopsml.experiment.run import Run
from tests.helpers.clock import END_S
from tests.helpers.cluster import elastic_torch_workload, elastic_workload
from tests.helpers.cluster.elastic_workload import announce


def _start(framework: str, **given: Any) -> Run:
    if framework == "torch":
        options = TorchOptions(elastic_torch_workload.train, backend="hopsml", **given)
        return plan.start(collective.build(options, "torch", "torch"))
    return experiment.submit(elastic_workload.train, implementation="hopsml", **given)


def main(folder: str, framework: str) -> None:
    """Run a training of three workers to its end."""
    run = _start(
        framework,
        args={"folder": folder, "step_s": 0.1, "patience_s": 1.0, "over": "hopsml"},
        min_workers=1,
        max_workers=3,
        checkpoint_every_s=0.2,
        progress=False,
    )
    while run.status()["generation"] == 0 and not run.done():
        time.sleep(0.001)
    announce(Path(folder, "mending"), "")
    value = run.result(END_S).value
    announce(Path(folder, "result"), json.dumps({"value": value, "notes": run.state.notes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
