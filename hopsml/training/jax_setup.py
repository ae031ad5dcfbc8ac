"""Makes a worker ready for JAX before the user's function: ``jax.distributed`` over the address that its agent holds.

What the function itself calls is unchanged: ``jax.distributed.initialize()`` finds the group there already.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from hopsml import proxies
from hopsml.cluster.worker import in_force
from hopsml.cluster.worker.context import WorkerContext
from hopsml.errors import ArgumentError
from hopsml.training import collective

HEARTBEAT_S = 10  # without which JAX's own coordinator counts a process as lost; hopsml's notices it before


def prepare(context: WorkerContext) -> None:
    """Initialize ``jax.distributed``: ``jax.devices()`` are then those of all workers, in the order of their ranks."""
    import jax

    if not context.gpu_indices:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
    if context.collective is None:
        return
    begin = functools.partial(_begin, jax.distributed.initialize, context)
    if context.world_size > 1:
        begin()
        in_force.formed("jax", context.world_size)
    _accept_repetition(context, begin)


def _begin(initialize: Callable[..., None], context: WorkerContext) -> None:
    import jax
    import jaxlib

    assert context.collective is not None
    collective.listen_in_port_range(os.path.dirname(jaxlib.__file__) + os.sep, "gloo, JAX's collective on CPUs,")
    context.collective.announce()  # until all are there the function does not begin
    # JAX warns of any variable with "proxy" in its name, even no_proxy; the members are excluded from proxies.
    with contextlib.suppress(AttributeError):  # of a JAX that has no such setting
        jax.config.update("jax_check_proxy_envs", False)
    _listen_on_own_address(context)
    initialize(
        context.leader,
        context.world_size,
        context.rank,
        coordinator_bind_address=context.leader,
        initialization_timeout=int(context.spec.group.start_timeout_s),
        heartbeat_timeout_seconds=HEARTBEAT_S,
    )
    # A process that ends without it takes the others with it.
    atexit.register(jax.distributed.shutdown)


def _listen_on_own_address(context: WorkerContext) -> None:
    """Make the collectives of CPUs (gloo) announce the worker's address, not the address its host's name resolves to.

    On many systems that is 127.0.1.1, which workers on other hosts cannot reach.
    """
    from jax._src.lib import _jax

    assert context.collective is not None
    host = proxies.host_of(context.collective.addresses[context.rank])
    original = _jax.make_gloo_tcp_collectives

    @functools.wraps(original)
    def make(*positional: Any, **named: Any) -> Any:
        return original(*positional, **({"hostname": host} | named))

    _jax.make_gloo_tcp_collectives = make


def _accept_repetition(context: WorkerContext, begin: Callable[[], None]) -> None:
    """Let the program's own ``jax.distributed.initialize`` find the group, wherever it says that the coordinator is."""
    import jax

    original = jax.distributed.initialize

    @functools.wraps(original)
    def initialize(*positional: Any, **named: Any) -> None:
        asked = inspect.signature(original).bind(*positional, **named).arguments
        size, rank = asked.get("num_processes"), asked.get("process_id")
        if size not in (None, context.world_size) or rank not in (None, context.rank):
            raise ArgumentError(
                f"jax.distributed.initialize(num_processes={size}, process_id={rank}): this is process "
                f"{context.rank} of the {context.world_size} of this run; leave these arguments out, or give "
                "hopsml.distributed.world_size() and hopsml.distributed.rank()"
            )
        if not jax.distributed.is_initialized():
            begin()

    jax.distributed.initialize = initialize
