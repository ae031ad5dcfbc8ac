"""A job of TorchFT: torchrun_elastic_job's training; a restarted replica receives the state of the others.

A step is logged if all replicas take part in it: steps that one of them makes alone are no steps of the group.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from typing import Any

from benchmarks.scripts.elastic_job import STEP_S
from benchmarks.scripts.steps_log import StepsLog
from benchmarks.scripts.torch_distributor_job import GLOBAL_BATCH, LAYERS


def main(folder: str, workers: int) -> None:
    """Train until killed, logging each step of the whole group."""
    import torch
    import torchft

    layers: list[torch.nn.Module] = []
    for inputs, outputs in LAYERS:
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1])
    plain = torch.optim.SGD(network.parameters(), lr=0.05)

    def take(state: dict[str, Any]) -> None:
        network.load_state_dict(state["network"])
        plain.load_state_dict(state["optimizer"])

    rank = int(os.environ["REPLICA_GROUP_ID"])
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=datetime.timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=take,
        state_dict=lambda: {"network": network.state_dict(), "optimizer": plain.state_dict()},
        replica_id=f"replica_{rank}",
        hostname="127.0.0.1",
        timeout=datetime.timedelta(seconds=30),
    )
    parallel = torchft.DistributedDataParallel(manager, network)
    optimizer = torchft.Optimizer(manager, plain)
    images = torch.rand(GLOBAL_BATCH // workers, 784)
    labels = torch.randint(0, 10, (GLOBAL_BATCH // workers,))
    log: StepsLog | None = None
    while True:
        before = manager.current_step()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(parallel(images), labels).backward()
        optimizer.step()
        if manager.current_step() > before and manager.num_participants() == workers:
            if log is None or log.generation != manager._quorum_id:
                log = StepsLog(folder, rank, manager._quorum_id)
            log.finished(manager.current_step())
        time.sleep(STEP_S)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
