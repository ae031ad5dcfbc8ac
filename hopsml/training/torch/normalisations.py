"""Normalisation utilities for torch modules and large batches.

hopsml/training/tensorflow/keras/normalisations.py has those for Keras. torch's own SyncBatchNorm refuses CPU tensors; the
one here works on any device that the process group supports.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from hopsml.errors import ArgumentError
from hopsml.training.large_batch import rules, statistics

_LAST = ("bn3", "bn2")  # names in torchvision's bottleneck and basic block, and in code modelled on them


def _is_normalisation(module: Any) -> bool:
    """Return True for a batch normalisation of torch."""
    return isinstance(module, torch.nn.modules.batchnorm._BatchNorm)


@torch.no_grad()  # type: ignore[untyped-decorator]
def reduce_statistics(module: torch.nn.Module) -> int:
    """Replace the statistics of every batch normalisation by those of all workers; return the number of them."""
    found = [one for one in module.modules() if _is_normalisation(one) and one.running_mean is not None]
    for one in found:
        mean, variance = rules.reduce_moments(one.running_mean.double(), one.running_var.double(), _average())
        one.running_mean.copy_(mean)
        one.running_var.copy_(variance)
    return len(found)


def _average() -> Callable[[Any], Any]:
    """Return a function that averages over torch's process group if there is one, else over hopsml's group."""
    if not dist.is_initialized():
        from hopsml.training.collective import all_reduce

        return lambda x: torch.from_numpy(all_reduce(x.cpu().numpy())).to(x.device)

    def average(x: Any) -> Any:
        x = x.clone()
        dist.all_reduce(x)
        return x / dist.get_world_size()

    return average


@torch.no_grad()  # type: ignore[untyped-decorator]
def recompute_statistics(module: torch.nn.Module, batches: Iterable[Any]) -> int:
    """Replace the statistics of batch normalisations by those of their inputs over all workers' batches.

    Returns the number of changed normalisations; see ``hopsml.large_batch.recompute_statistics``.
    """
    bare = _bare(module)
    found = [one for one in bare.modules() if _has_moving_statistics(one, bare.training)]
    sums = [torch.zeros(3, one.num_features, dtype=torch.float64, device=one.running_mean.device) for one in found]
    if not found:
        return 0
    with _normalising_by_batch(bare, found, sums):
        for batch in batches:
            features = batch[0] if isinstance(batch, (tuple, list)) else batch
            if not isinstance(features, torch.Tensor):
                bare(features)
            elif len(features):
                bare(features.to(found[0].running_mean.device))
    whole = _sum_over_workers(torch.cat([one.flatten() for one in sums])).split([one.numel() for one in sums])
    statistics.check_any_rows(float(one[0]) for one in whole)
    changed = 0
    for one, (count, total, squares) in zip(found, (part.view(3, -1).cpu().numpy() for part in whole), strict=True):
        if count[0]:  # the forward pass has reached it
            mean, variance = statistics.moments_of_sums(float(count[0]), total, squares, correction=1)
            one.running_mean.copy_(torch.from_numpy(mean))
            one.running_var.copy_(torch.from_numpy(variance))
            changed += 1
    return changed


def _bare(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module within a DistributedDataParallel or a compiled module.

    The wrappers' forward pass exchanges buffers, or does not call hooks that were registered after the compilation.
    """
    while True:
        inner = getattr(module, "_orig_mod", None)
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            inner = module.module
        if inner is None:
            return module
        module = inner


def _has_moving_statistics(module: Any, whole_trains: bool) -> bool:
    """Return True for a batch normalisation with moving statistics that is not frozen.

    It is frozen if it alone is in evaluation mode, and ``whole_trains``, the mode of the whole module, is training.
    """
    return _is_normalisation(module) and module.running_mean is not None and (module.training or not whole_trains)


@contextlib.contextmanager
def _normalising_by_batch(module: Any, normalisations: list[Any], sums: list[Any]) -> Iterator[None]:
    """Evaluate ``module`` in this context with normalisations that use their batch, and add the inputs' moments to sums.

    Modes and buffers are restored afterwards.
    """
    modes = {one: one.training for one in module.modules()}
    buffers = [(one, name, value.clone()) for one in normalisations for name, value in one.named_buffers(recurse=False)]
    hooks, local = [], []
    try:
        module.eval()
        for one, own in zip(normalisations, sums, strict=True):
            one.train()
            hooks.append(one.register_forward_pre_hook(functools.partial(_add_moments, own), with_kwargs=True))
            if isinstance(one, (SynchronizedBatchNorm, torch.nn.SyncBatchNorm)):
                # without an exchange: workers may have unequal numbers of batches
                one.__dict__["forward"] = functools.partial(_normalised_by_batch, one)
                local.append(one)
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for one in local:
            del one.__dict__["forward"]
        for one, name, value in buffers:
            getattr(one, name).copy_(value)
        for one, training in modes.items():
            one.training = training


def _add_moments(sums: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Add number, sum and sum of squares of a normalisation's input to ``sums``, of shape (3, channels)."""
    x = args[0] if args else kwargs["input"]
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = (one.double() for one in torch.var_mean(wide, [0, *range(2, x.dim())], correction=0))
    count = x.numel() / x.shape[1]
    sums += torch.stack([torch.full_like(mean, count), count * mean, count * (variance + mean * mean)])


def _normalised_by_batch(module: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the input of a synchronised normalisation, normalised by this worker's batch."""
    return torch.nn.functional.batch_norm(x, None, None, module.weight, module.bias, True, eps=module.eps)


def _sum_over_workers(x: torch.Tensor) -> torch.Tensor:
    """Return the sum over the workers of torch's process group if there is one, else over those of hopsml's group."""
    if dist.is_initialized():
        return _summed(x)
    from hopsml.training.collective import all_reduce

    return torch.from_numpy(all_reduce(x.cpu().numpy(), "sum")).to(x.device)


def zero_last_gamma(module: torch.nn.Module) -> list[str]:
    """Set the weight of the last normalisation of each residual block to 0; return the modules' names."""
    found = {}
    for name, block in module.named_modules():
        last = next((one for one in _LAST if _is_normalisation(getattr(block, one, None))), None)
        if last is not None and (hasattr(block, "downsample") or hasattr(block, "shortcut")):
            found[f"{name}.{last}".lstrip(".")] = getattr(block, last)
    if not found:
        raise ArgumentError(
            f"zero_last_gamma({type(module).__name__}): no block with a shortcut (downsample, shortcut) and normalisations "
            f"{' or '.join(_LAST)} is in it; give the normalisations, zero_last_gamma([module, ...])"
        )
    set_gammas_to_zero(found.values())
    return list(found)


def set_gammas_to_zero(modules: Any) -> list[str]:
    """Set the weight of these normalisations to 0; return their classes' names."""
    modules = list(modules)
    for one in modules:
        if getattr(one, "weight", None) is None:
            raise ArgumentError(f"zero_last_gamma: {type(one).__name__} has no weight: make it with affine=True")
        torch.nn.init.zeros_(one.weight)
    return [type(one).__name__ for one in modules]


class _SumOfWorkers(torch.autograd.Function):
    """Differentiable sum over all workers; its gradient is that of all workers' losses.

    torch's own version is deprecated.
    """

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of ``x`` over all workers."""
        return _summed(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return the sum of the gradients of all workers."""
        return _summed(gradient)


def _summed(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor over the workers of the process group."""
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x)
    return x


class SynchronizedBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """Batch normalisation over the batches of all workers of the process group; shares may be of different sizes."""

    def _check_input_dim(self, input: Any) -> None:
        """Raise ArgumentError for an input of fewer than two axes."""
        if input.dim() < 2:
            raise ArgumentError(
                f"synchronised batch normalisation of a tensor of {input.dim()} axes: it needs 2 at least"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the normalised batch; gradients pass through the exchanged sums."""
        self._check_input_dim(input)
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(input)
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        axes = [0, *range(2, input.dim())]
        number = wide.new_full((1,), wide.numel() / wide.shape[1])
        count, total = _SumOfWorkers.apply(torch.cat([number, wide.sum(axes)])).split([1, wide.shape[1]])
        count, mean = count.detach(), total / count.detach()
        shape = [1, -1, *[1] * (input.dim() - 2)]
        distance = wide - mean.view(shape)
        variance = _SumOfWorkers.apply((distance * distance).sum(axes)) / count
        self._keep(mean.detach(), (variance * count / (count - 1).clamp(min=1)).detach())
        normal = distance * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _keep(self, mean: Any, variance: Any) -> None:
        """Update the running statistics."""
        if not self.track_running_stats:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


def synchronize(module: torch.nn.Module) -> int:
    """Replace batch normalisations within ``module`` by synchronised ones; return their number.

    The new ones share the parameters of the replaced ones.
    """
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if _is_normalisation(child) and not isinstance(child, SynchronizedBatchNorm):
                of_it = child.num_features, child.eps, child.momentum, child.affine, child.track_running_stats
                new = SynchronizedBatchNorm(*of_it).train(child.training)
                new._parameters, new._buffers = child._parameters, child._buffers
                setattr(parent, name, new)
                replaced += 1
    return replaced
