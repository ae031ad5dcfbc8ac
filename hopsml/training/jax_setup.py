"""Set-up of JAX in a worker before the user's function: ``jax.distributed`` over the address that its agent reserves.

The user's function stays unchanged: its own ``jax.distributed.initialize()`` finds the group initialized.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from hopsml.cluster.worker import collective_stats
from hopsml.cluster.worker.context import WorkerContext
from hopsml.core import proxies
from hopsml.core.versions import JAX, check_version
from hopsml.errors import ArgumentError
from hopsml.training import collective

HEARTBEAT_S = 10  # silence after which JAX's own coordinator counts a process as lost; hopsml detects the loss earlier


def prepare(context: WorkerContext) -> None:
    """Initialize ``jax.distributed``, so that ``jax.devices()`` lists the devices of all workers in rank order."""
    import jax

    check_version(JAX, jax.__version__)
    if not context.gpu_indices:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
    if context.collective is None:
        return
    begin = functools.partial(_begin, jax.distributed.initialize, context)
    if context.world_size > 1:
        begin()
        collective_stats.record_group("jax", context.world_size)
    _accept_repetition(context, begin)


def _begin(initialize: Callable[..., None], context: WorkerContext) -> None:
    """Initialize ``jax.distributed`` and register its shutdown."""
    import jax
    import jaxlib

    assert context.collective is not None
    collective.restrict_listening_ports(os.path.dirname(jaxlib.__file__) + os.sep, "gloo, JAX's collective on CPUs,")
    context.collective.announce()  # the function starts only after all workers have arrived
    # JAX warns of any variable with "proxy" in its name, even no_proxy; the members are excluded from proxies.
    with contextlib.suppress(AttributeError):  # raised by JAX versions without this setting
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
    # A process that exits without the shutdown terminates the others.
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
    """Replace ``jax.distributed.initialize`` by a version that accepts the group that exists already.

    The function may pass any coordinator address; a different size or rank raises ArgumentError.
    """
    import jax

    original = jax.distributed.initialize

    @functools.wraps(original)
    def initialize(*positional: Any, **named: Any) -> None:
        asked = inspect.signature(original).bind(*positional, **named).arguments
        size, rank = asked.get("num_processes"), asked.get("process_id")
        if size not in (None, context.world_size) or rank not in (None, context.rank):
            raise ArgumentError(
                f"jax.distributed.initialize(num_processes={size}, process_id={rank}): this is process "
                f"{context.rank} of the {context.world_size} of this run; omit these arguments, or pass "
                "hopsml.distributed.world_size() and hopsml.distributed.rank()"
            )
        if not jax.distributed.is_initialized():
            begin()

    jax.distributed.initialize = initialize
