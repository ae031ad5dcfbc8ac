"""Normalisation utilities for torch modules and large batches.

hopsml/training/tensorflow/keras/normalisations.py has those for Keras. torch's own SyncBatchNorm refuses CPU tensors; the
one here works on any device that the process group supports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from hopsml.errors import ArgumentError
from hopsml.training.large_batch import rules

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
