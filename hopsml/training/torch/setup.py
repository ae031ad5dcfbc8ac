"""Makes a worker ready for PyTorch before the user's function: its threads, and the default process group."""

from __future__ import annotations

import os

from hopsml.cluster.worker.context import WorkerContext
from hopsml.training.torch import process_group


def prepare(context: WorkerContext) -> None:
    """As many threads as the worker has cores of its own, on a GPU its part of the host's; and the process group."""
    import torch

    # It is read at the import, which the fork server has made with one thread.
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads):
        torch.set_num_threads(int(threads))
    elif not threads and context.gpu_indices and context.collective is not None:  # no cores are kept for it
        neighbours = int(os.environ["LOCAL_WORLD_SIZE"])
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // neighbours))
    if context.collective is not None:
        process_group.form(context)
