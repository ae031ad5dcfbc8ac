"""A job of Ray Train that tolerates failures: TensorflowTrainer with max_failures, every step logged, until killed."""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def train(arguments: dict[str, Any]) -> None:
    """Train the model until killed; TF_CONFIG is set by the library."""
    from benchmarks.scripts import model
    from benchmarks.scripts.elastic_job import STEP_S
    from benchmarks.scripts.steps_log import StepsLog

    log = StepsLog(arguments["folder"], model.rank())
    one = model.build(model.plain_strategy())
    step = 0
    while True:
        one()
        step += 1
        log.finished(step)
        time.sleep(STEP_S)


if __name__ == "__main__":
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    folder = sys.argv[1]
    ray.init(num_cpus=int(sys.argv[2]) + 1, include_dashboard=False, _temp_dir=os.environ["TMPDIR"])
    trainer = TensorflowTrainer(
        train,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=int(sys.argv[2])),
        run_config=RunConfig(
            storage_path=os.path.join(folder, "results"), failure_config=FailureConfig(max_failures=5)
        ),
    )
    trainer.fit()
