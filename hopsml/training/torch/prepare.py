"""Preparation of a torch model for all workers: equal parameters, averaged gradients (``hopsml.torch.prepare``)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar, cast

from hopsml.cluster.shared.spec import GradientSettings
from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError, CollectiveMismatch
from hopsml.training import collective
from hopsml.training.distributed import exchange
from hopsml.training.torch import withheld

if TYPE_CHECKING:
    import torch

Module = TypeVar("Module", bound="torch.nn.Module")


def device() -> torch.device:
    """Return this worker's device: its GPU, which is the first visible one, or the CPU."""
    import torch

    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def prepare(module: Module) -> Module:
    """Synchronize ``module`` over all workers: rank 0's parameters, and from now on the mean of all gradients.

    Call it on every worker, before the optimizer is made, and again after parameters were added or replaced. With
    hopsml's own collective the module itself is returned (its ``state_dict`` has unchanged names); gradients are
    averaged during ``backward()``, as are the floating-point buffers of a module in training (BatchNorm's
    statistics). With gloo and nccl the result is a ``DistributedDataParallel``. Outside of a run, and with one
    worker, nothing is changed. In a run of several workers the process group must have been formed, as
    ``experiment.torch`` and ``search(..., framework="torch")`` do.

    Layers that are unfrozen later are averaged with hopsml's own collective. Any other parameter that trains without
    being averaged, such as one added later, raises ArgumentError, with its name, from ``backward()`` or
    ``optimizer.step()``. A copy of a prepared module (``copy.deepcopy``, ``torch.save``) is an ordinary module.
    ``compression`` and the other settings of ``experiment.torch`` apply to this module's gradients; with
    ``double_buffering`` and ``accumulate`` see ``finish_updates``.

    Args:
        module: the model to train.

    Raises:
        ArgumentError: ``module`` is not a module, has no trained parameters, or has some without a shape; or a run of
            several workers has no process group.
        CollectiveMismatch: workers have different parameters; the error names the rank and the parameter.
    """
    import torch
    import torch.distributed as dist

    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"prepare({type(module).__name__}): it takes a torch.nn.Module, the model to be trained")
    if not any(one.requires_grad for one in module.parameters()):
        raise ArgumentError(f"prepare({type(module).__name__}): none of its parameters is trained (requires_grad)")
    lazy = [name for name, one in module.named_parameters() if torch.nn.parameter.is_lazy(one)]
    if lazy:
        raise ArgumentError(
            f"prepare({type(module).__name__}): {', '.join(lazy[:10])} have no shape yet (LazyLinear): call the "
            "module once on a batch, before prepare()"
        )
    module.to(device())
    if not dist.is_initialized():
        _refuse_workers_apart()
    settings = _settings()
    if not dist.is_initialized() or dist.get_world_size() == 1:
        withheld.note_settings_without_effect(settings)
        return module
    _note_what_each_changes(module)
    withheld.note_restart(settings)
    if dist.get_backend() != "hopsml":
        devices = [0] if device().type == "cuda" else None
        return cast("Module", _wrapped(module, devices, settings))
    _compare(module)
    _begin_equal(module)
    from hopsml.training.torch import gradients

    joined = collective.group()
    assert joined is not None  # a group of several workers exists here
    withheld.warn_at_end(module, gradients.average_gradients(module, joined, settings))
    return module


@contextlib.contextmanager
def no_sync(module: torch.nn.Module) -> Iterator[None]:
    """Accumulate gradients on this worker inside the block; the next backward pass outside averages the sums."""
    from hopsml.training.torch import gradients

    own = getattr(module, "no_sync", None)
    with own() if own is not None else gradients.without_averaging(module):
        yield


def _settings() -> GradientSettings:
    """Return the run's settings of the gradient exchange."""
    context = current()
    return GradientSettings() if context is None else context.spec.communication.gradients


def _refuse_workers_apart() -> None:
    """Raise ArgumentError in a worker of a group of several that has no torch process group."""
    context = current()
    if context is None or context.collective is None or not context.spec.group.collective:
        return
    size = context.spec.group.size if context.spec.group.regroups else context.world_size
    if size == 1:
        return
    if context.trial is not None:
        remedy = f"experiment.{context.spec.verb}(..., workers_per_trial=..., framework='torch') forms it in each trial"
    else:
        remedy = "start the run by experiment.torch(train, ...), in a job file framework: torch"
    raise ArgumentError(
        f"hopsml.torch.prepare() in a run of {size} workers without a process group of torch's, of which "
        f"experiment.{context.spec.verb} forms none: each would train a model of its own. Do one of these: {remedy}; or "
        "call torch.distributed.init_process_group() before prepare()"
    )


def _note_what_each_changes(module: torch.nn.Module) -> None:
    """Print the names of weights that a forward pass changes by the worker's own rows."""
    import torch

    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    found = [name for name, one in module.named_modules() if isinstance(one, kinds) and one.max_norm is not None]
    if found:
        print(
            f"hopsml: embeddings with max_norm change the rows that a worker has looked up, and so differ between workers: "
            f"{', '.join(found)}. Limit the norm of all rows after optimizer.step() instead",
            flush=True,
        )


def _wrapped(
    module: torch.nn.Module, devices: list[int] | None, settings: GradientSettings
) -> torch.nn.parallel.DistributedDataParallel:
    """Wrap a module, or the module in a given DistributedDataParallel, in a new DistributedDataParallel."""
    import torch

    from hopsml.training.torch import ddp_hooks, late_parameters

    kind = torch.nn.parallel.DistributedDataParallel
    bare = module.module if isinstance(module, kind) else module
    ignored = getattr(bare, "_ddp_params_and_buffers_to_ignore", [])
    known = [one for name, one in bare.named_parameters() if one.requires_grad or name in ignored]
    late_parameters.watch_parameters(
        bare, known, "were frozen, of another type, or not there, when hopsml.torch.prepare() was called"
    )
    if settings.changed_names:
        ddp_hooks.check_supported(bare, settings)
    wrapped = kind(bare, device_ids=devices)
    if settings.changed_names:
        withheld.warn_at_end(bare, ddp_hooks.reduce_by(wrapped, settings))
    return wrapped


def _compare(module: torch.nn.Module) -> None:
    """Raise CollectiveMismatch if another worker has another model."""
    frozen = {name for name, one in module.named_parameters() if not one.requires_grad}
    own = [
        f"{name} {one.dtype} {tuple(one.shape)}{', not trained' if name in frozen else ''}"
        for name, one in module.state_dict(keep_vars=True).items()
    ]
    everybody = exchange(own)
    for rank, theirs in enumerate(everybody):
        for ours, other in zip(everybody[0] + [""] * len(theirs), theirs + [""] * len(everybody[0]), strict=False):
            if ours != other:
                raise CollectiveMismatch(
                    f"hopsml.torch.prepare(): rank {rank} has {other or 'no further value'} where rank 0 has "
                    f"{ours or 'no further value'}: all workers must make the same model",
                    rank=rank,
                )


def _begin_equal(module: torch.nn.Module) -> None:
    """Copy rank 0's parameters and buffers to all workers."""
    from hopsml.training.torch.state_tensors import as_bytes

    joined = collective.group()
    assert joined is not None
    for name, one in module.state_dict(keep_vars=True).items():
        with as_bytes(one) as array:
            joined.broadcast(array, 0, out=array, name=f"{name}, from rank 0")
