"""Makes a worker ready for PyTorch before the user's function: its threads, and the default process group."""

from __future__ import annotations

import os

from hopsml.cluster.worker.context import WorkerContext
from hopsml.training.torch import process_group


def prepare(context: WorkerContext) -> None:
    """As many threads as the worker has cores of its own, and the process group of those that train."""
    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads):  # it was read at the import, which the fork server has made
        torch.set_num_threads(int(threads))
    if context.collective is not None:
        process_group.form(context)
