"""Number of accelerators of this worker."""

from __future__ import annotations

import logging
import os

from hopsml.cluster.shared import gpus
from hopsml.cluster.worker import context
from hopsml.core import refused_names

__all__ = [
    "get_num_gpus",
]

__path__: list[str] = []  # so that an import of a missing name reports what to use instead
logger = logging.getLogger(__name__)


def get_num_gpus() -> int:
    """Return the number of GPUs of this worker; outside a worker, of those that CUDA shows. Never raises."""
    worker = context.current()
    if worker is not None:
        return len(worker.gpu_indices)
    try:
        host = gpus.host_gpus()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return len(host if visible is None else gpus.visible_gpus(host, visible))
    except Exception:  # drivers fail in many ways, and the caller only needs a number
        logger.warning("the GPUs of this host cannot be counted; 0 is assumed", exc_info=True)
        return 0


def __getattr__(name: str) -> object:
    raise refused_names.missing_attribute_error(__name__, name, __all__)


def __dir__() -> list[str]:
    return list(__all__)
