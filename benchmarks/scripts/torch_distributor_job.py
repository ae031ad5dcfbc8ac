"""A job of TorchDistributor: the model of model.py in PyTorch, DistributedDataParallel over gloo."""

from __future__ import annotations

import os
import sys

from benchmarks.scripts import first

LAYERS = ((784, 256), (256, 128), (128, 10))
GLOBAL_BATCH = 128


def train(folder: str, steps: int) -> None:
    """Train the model with the RANK and leader's address that the library sets."""
    import torch
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    workers = torch.distributed.get_world_size()
    layers: list[torch.nn.Module] = []
    for inputs, outputs in LAYERS:
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    network = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers[:-1]))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    images = torch.rand(GLOBAL_BATCH // workers, 784)
    labels = torch.randint(0, 10, (GLOBAL_BATCH // workers,))
    done = 0
    while steps == 0 or done < steps:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
        done += 1
        if done == 1:
            first.report(folder, int(os.environ["RANK"]))


if __name__ == "__main__":
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    SparkSession.builder.getOrCreate()  # TorchDistributor uses the active session and creates none
    distributor = TorchDistributor(num_processes=int(sys.argv[2]), local_mode=False, use_gpu=False)
    distributor.run(train, sys.argv[1], int(sys.argv[3]))
