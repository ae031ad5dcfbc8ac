"""A job of torchrun: the model of model.py in PyTorch over gloo, every step logged; no checkpoints, as by default."""

from __future__ import annotations

import os
import sys
import time

from benchmarks.scripts.elastic_job import STEP_S
from benchmarks.scripts.steps_log import StepsLog
from benchmarks.scripts.torch_distributor_job import GLOBAL_BATCH, LAYERS


def main(folder: str) -> None:
    """Train until killed, logging each step."""
    import torch
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    workers = torch.distributed.get_world_size()
    log = StepsLog(folder, int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
    layers: list[torch.nn.Module] = []
    for inputs, outputs in LAYERS:
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    network = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers[:-1]))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    images = torch.rand(GLOBAL_BATCH // workers, 784)
    labels = torch.randint(0, 10, (GLOBAL_BATCH // workers,))
    step = 0
    while True:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
        step += 1
        log.finished(step)
        time.sleep(STEP_S)


if __name__ == "__main__":
    main(sys.argv[1])
