"""How many accelerators this worker has."""

from __future__ import annotations

import logging
import os

from hopsml.cluster.shared import gpus
from hopsml.cluster.worker import context

logger = logging.getLogger(__name__)


def get_num_gpus() -> int:
    """GPUs of this worker; outside a worker those that CUDA would show. 0 without any; never raises."""
    worker = context.current()
    if worker is not None:
        return len(worker.gpu_indices)
    try:
        host = gpus.host_gpus()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return len(host if visible is None else gpus.visible_gpus(host, visible))
    except Exception:  # a driver may fail in ways of its own; the caller only wants a number
        logger.warning("the GPUs of this host cannot be counted; 0 is assumed", exc_info=True)
        return 0
