"""Verbs of other frameworks: the same agents, groups, records and elasticity as of ``collective_all_reduce``."""

from __future__ import annotations

from hopsml.experiment import plan
from hopsml.experiment.collective import build
from hopsml.experiment.options import DistributedOptions, FrameworkOptions, TorchOptions
from hopsml.experiment.result import Result
from hopsml.experiment.verbs import Verb


@Verb(TorchOptions, "torch")
def torch(options: TorchOptions) -> Result:
    """Train with PyTorch on ``num_workers`` executors; blocks until the end and returns a ``Result``.

    Every worker calls ``train_fn(**args)`` in a fresh process whose default process group has been formed, with torch
    imported before the fork. ``hopsml.torch.prepare(model)`` averages gradients, or the function uses DDP or FSDP as it
    is. RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set as by torchrun, and a call of
    ``torch.distributed.init_process_group`` returns the existing group.

    Raises:
        ArgumentError, ArgumentTypeError: (ValueError, TypeError) at once, before anything is started.
        RunError: the run failed; the message names the rank, its host, its traceback and its log.
        StorageError: the run directory cannot be written; names the path.
    """
    return plan.start(build(options, "torch", "torch")).result()


@Verb(FrameworkOptions, "jax")
def jax(options: FrameworkOptions) -> Result:
    """Train with JAX on ``num_workers`` executors; blocks until the end and returns a ``Result``.

    Every worker calls ``train_fn(**args)`` in a fresh process in which ``jax.distributed`` is initialized:
    ``jax.devices()`` are those of all workers.

    Raises:
        ArgumentError, ArgumentTypeError, RunError, StorageError: as ``torch``.
    """
    return plan.start(build(options, "jax", "jax")).result()


@Verb(DistributedOptions, "distributed")
def distributed(options: DistributedOptions) -> Result:
    """Call a function of any framework on ``num_workers`` executors; blocks until the end and returns a ``Result``.

    Every worker calls ``train_fn(**args)`` in a fresh process. ``hopsml.distributed`` has its rank, the addresses of
    all workers and a reserved port; ``hopsml.all_reduce`` and similar functions exchange arrays,
    ``hopsml.distributed.exchange`` other values.

    Raises:
        ArgumentError, ArgumentTypeError, RunError, StorageError: as ``torch``.
    """
    return plan.start(build(options, "distributed", "none")).result()
