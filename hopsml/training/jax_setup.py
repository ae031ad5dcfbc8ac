"""Makes a worker ready for JAX before the user's function: ``jax.distributed`` over the address that its agent holds."""

from __future__ import annotations

import atexit
import os

from hopsml.cluster.worker import in_force
from hopsml.cluster.worker.context import WorkerContext

HEARTBEAT_S = 10  # without which JAX's own coordinator counts a process as lost; hopsml's notices it before


def prepare(context: WorkerContext) -> None:
    """Initialize ``jax.distributed``: ``jax.devices()`` are then those of all workers, in the order of their ranks."""
    import jax

    if not context.gpu_indices:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
    if context.collective is None or context.world_size == 1:
        return
    jax.distributed.initialize(
        context.leader,
        context.world_size,
        context.rank,
        coordinator_bind_address=context.leader,
        initialization_timeout=int(context.spec.group.start_timeout_s),
        heartbeat_timeout_seconds=HEARTBEAT_S,
    )
    in_force.formed("jax", context.world_size)
    # A process that ends without it takes the others with it.
    atexit.register(jax.distributed.shutdown)
