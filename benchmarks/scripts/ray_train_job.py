"""A job of Ray Train, on a Ray cluster that it starts by itself."""

from __future__ import annotations

import os
import sys
from typing import Any


def train(arguments: dict[str, Any]) -> None:
    """Train the model with the TF_CONFIG that the library sets."""
    from benchmarks.scripts import model

    model.train(model.plain_strategy(), arguments["folder"], arguments["steps"])


if __name__ == "__main__":
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    folder = sys.argv[1]
    ray.init(num_cpus=int(sys.argv[2]) + 1, include_dashboard=False, _temp_dir=os.environ["TMPDIR"])
    trainer = TensorflowTrainer(
        train,
        train_loop_config={"folder": folder, "steps": int(sys.argv[3])},
        scaling_config=ScalingConfig(num_workers=int(sys.argv[2])),
        run_config=RunConfig(storage_path=os.path.join(folder, "results")),
    )
    trainer.fit()
