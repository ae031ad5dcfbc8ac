"""Set-up of PyTorch in a worker before the user's function: number of threads, and default process group."""

from __future__ import annotations

import os

from hopsml.cluster.worker.context import WorkerContext
from hopsml.training.torch import process_group


def prepare(context: WorkerContext) -> None:
    """Set the number of torch threads, and form the process group.

    The number is that of ``OMP_NUM_THREADS``; without it, a worker with a GPU uses its share of the host's cores.
    """
    import torch

    # The variable is read at torch's import, which the fork server has made with one thread.
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads):
        torch.set_num_threads(int(threads))
    # No cores are reserved for a worker with a GPU.
    elif not threads and context.gpu_indices and context.collective is not None:
        neighbours = int(os.environ["LOCAL_WORLD_SIZE"])
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // neighbours))
    if context.collective is not None:
        process_group.form(context)
