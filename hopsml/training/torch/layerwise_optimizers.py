"""Optimizers of torch for large batches: LARS, LAMB, and the RMSprop warm-up.

The update rules are in hopsml/training/large_batch/rules.py. Parameters of one type are updated together by torch's
functions on lists, which start fewer operations. The entry ``layerwise`` of a parameter group decides whether its
parameters have a ratio and a decay; if it is None, those of two or more axes do. Gradients are used as they are, that
is, reduced if the module was prepared for its group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from hopsml.errors import ArgumentError
from hopsml.training.large_batch import rules, schedules
from hopsml.training.large_batch.recipe import BatchPlan
from hopsml.training.large_batch.schedules import check_number

Tensors = list[torch.Tensor]
_NORMALISATIONS = (
    "BatchNorm",
    "GroupNorm",
    "LayerNorm",
    "InstanceNorm",
    "RMSNorm",
    "SyncBatchNorm",
    "LocalResponseNorm",
)


def parameter_groups(module: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the module's trained parameters in two groups: with ``weight_decay``, and without.

    The second group has biases and normalisations, and all parameters of fewer than two axes. The groups suit any
    optimizer; LARS and LAMB give the second group no ratio either.

    Raises:
        ArgumentError: the module has nothing to train.
    """
    normal = {
        id(one)
        for part in module.modules()
        if any(word in type(part).__name__ for word in _NORMALISATIONS)
        for one in part.parameters(recurse=False)
    }
    trained = [one for one in module.parameters() if one.requires_grad]
    if not trained:
        raise ArgumentError(
            f"this {type(module).__name__} has no parameter that requires a gradient: there is nothing to train"
        )
    decayed = [one for one in trained if id(one) not in normal and rules.is_layerwise(one.shape)]
    kept = {id(one) for one in decayed}
    others = [one for one in trained if id(one) not in kept]
    groups = [
        {"params": decayed, "weight_decay": check_number("weight_decay", weight_decay, 0), "layerwise": True},
        {"params": others, "weight_decay": 0.0, "layerwise": False},
    ]
    return [group for group in groups if group["params"]]


class _Alike(NamedTuple):
    """Parameters of a group that are updated together; ``kept`` has the list of their states of each slot."""

    parameters: Tensors
    gradients: Tensors
    kept: list[Tensors]
    step: int
    layerwise: bool


class _LayerwiseTorch(torch.optim.Optimizer):
    """Base class of the optimizers here: groups parameters that can be updated together."""

    slots: tuple[str, ...] = ()

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        for name, value in defaults.items():
            check_number(name, value, 0)
        super().__init__(params, {**defaults, "layerwise": None})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; return the value of ``closure``."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for (layerwise, step), parameters in self._alike(group).items():
                gradients = [_gradient(one) for one in parameters]
                kept = [[self.state[one][name] for one in parameters] for name in self.slots]
                self._update(group, _Alike(parameters, gradients, kept, step, layerwise))
        return loss

    def _alike(self, group: dict[str, Any]) -> dict[tuple[bool, int], Tensors]:
        """Group the parameters that have a gradient by ``layerwise`` and step count."""
        found: dict[Any, Tensors] = defaultdict(list)
        for one in group["params"]:
            if one.grad is None:
                continue
            state = self.state[one]
            if not state:
                wide = torch.promote_types(one.dtype, torch.float32)
                state.update({name: torch.zeros_like(one, dtype=wide) for name in self.slots}, step=0)
            state["step"] = int(state["step"]) + 1
            layerwise = rules.is_layerwise(one.shape) if group["layerwise"] is None else group["layerwise"]
            found[layerwise, state["step"]].append(one)
        return found

    def _update(self, group: dict[str, Any], alike: _Alike) -> None:
        """Update parameters in place."""
        raise NotImplementedError


class LARS(_LayerwiseTorch):
    """Layer-wise adaptive rate scaling: arXiv 1708.03888, algorithm 1.

    The velocity does not include the rate, so a change of the rate needs no momentum correction (1706.02677, section
    3).

    Args:
        params: parameters or groups of them, as ``parameter_groups`` returns.
        lr: learning rate of the formula.
        momentum: momentum of the formula.
        weight_decay: weight decay of the formula.
        trust: eta of the formula.
        epsilon: added to the denominator.
    """

    slots = ("momentum_buffer",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust: float = 0.001,
        epsilon: float = 0.0,
    ) -> None:
        own = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "epsilon": epsilon}
        super().__init__(params, own)

    def _update(self, group: dict[str, Any], alike: _Alike) -> None:
        """Update parameters in place by LARS."""
        parameters, gradients, kept, _, layerwise = alike
        if layerwise:
            weights = _widened(parameters)
            pairs = zip(torch._foreach_norm(weights), torch._foreach_norm(gradients), strict=True)
            of_rule = group["trust"], group["weight_decay"], group["epsilon"]
            ratios = [rules.lars_ratio(*pair, *of_rule, torch) for pair in pairs]
            gradients = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
            torch._foreach_mul_(gradients, ratios)
        torch._foreach_mul_(kept[0], group["momentum"])
        torch._foreach_add_(kept[0], gradients)
        _add(parameters, kept[0], -group["lr"])


class LAMB(_LayerwiseTorch):
    """Layer-wise adaptive moments: arXiv 1904.00962, algorithm 2, with bias correction.

    Args:
        params: parameters or groups of them, as ``parameter_groups`` returns.
        lr: learning rate of the formula.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: added to the denominator.
        weight_decay: weight decay of the formula.
    """

    slots = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        own = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
        super().__init__(params, own)

    def _update(self, group: dict[str, Any], alike: _Alike) -> None:
        """Update parameters in place by LAMB."""
        parameters, gradients, (first, second), step, layerwise = alike
        beta1, beta2 = group["beta1"], group["beta2"]
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        below = torch._foreach_div(second, 1 - beta2**step)
        torch._foreach_sqrt_(below)
        torch._foreach_add_(below, group["epsilon"])
        updates = list(torch._foreach_div(first, below))
        torch._foreach_div_(updates, 1 - beta1**step)
        if layerwise:
            weights = _widened(parameters)
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
            pairs = zip(torch._foreach_norm(weights), torch._foreach_norm(updates), strict=True)
            torch._foreach_mul_(updates, [rules.lamb_ratio(*pair, torch) for pair in pairs])
        _add(parameters, updates, -group["lr"])


class RMSpropWarmup(_LayerwiseTorch):
    """Transition from RMSprop to gradient descent with momentum over the first epochs: arXiv 1711.04325, section 2.1.

    Args:
        params: parameters or groups of them.
        lr: learning rate of the formula.
        steps_per_epoch: number of updates in an epoch.
        momentum: mu1 of the formula.
        rho: mu2 of the formula.
        rms_rate: eta_RMS of the formula.
        epsilon: epsilon of the formula.
        center: epochs after which SGD's share of an update is half.
        period: width of the change, in epochs.
        weight_decay: lambda of the formula.
    """

    slots = ("momentum_buffer", "square_avg")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        steps_per_epoch: int = 1,
        momentum: float = 0.9,
        rho: float = 0.99,
        rms_rate: float = 3e-4,
        epsilon: float = 1e-8,
        center: float = schedules.TRANSITION_CENTER,
        period: float = schedules.TRANSITION_PERIOD,
        weight_decay: float = 0.0,
    ) -> None:
        check_number("period", period, 0, above=True)
        own = {"lr": lr, "momentum": momentum, "rho": rho, "rms_rate": rms_rate, "epsilon": epsilon}
        check_number("steps_per_epoch", steps_per_epoch, 1)
        more = {"steps_per_epoch": steps_per_epoch, "center": center, "period": period, "weight_decay": weight_decay}
        super().__init__(params, own | more)

    def _update(self, group: dict[str, Any], alike: _Alike) -> None:
        """Update parameters in place by the RMSprop warm-up."""
        parameters, gradients, kept, step, layerwise = alike
        share = schedules.sgd_share((step - 1) / group["steps_per_epoch"], group["center"], group["period"])
        names = {"momentum_factor": "momentum", "rho": "rho", "rms_rate": "rms_rate", "epsilon": "epsilon"}
        of_rule = {name: group[key] for name, key in names.items()} | {"weight_decay": group["weight_decay"]}
        if group["lr"] <= 0:
            return  # the rule divides by the rate, which is 0 after the end of a plan: nothing changes there
        for one, gradient, velocity, second in zip(parameters, gradients, *kept, strict=True):
            wide = one.to(velocity.dtype)
            new, *states = rules.rmsprop_warmup(
                wide, gradient, velocity, second, group["lr"], share, torch, layerwise=layerwise, **of_rule
            )
            for place, value in zip((one, velocity, second), (new, *states), strict=True):
                place.copy_(value)


def _gradient(one: torch.Tensor) -> torch.Tensor:
    """Return a parameter's gradient as a dense tensor, in float32 at least."""
    assert one.grad is not None
    dense = one.grad.to_dense() if one.grad.is_sparse else one.grad
    return dense.to(torch.promote_types(dense.dtype, torch.float32))


def _widened(tensors: Tensors) -> Tensors:
    """Return tensors in float32 at least."""
    return [one.to(torch.promote_types(one.dtype, torch.float32)) for one in tensors]


def _add(parameters: Tensors, updates: Tensors, factor: float) -> None:
    """Add scaled updates to parameters, in the parameters' types."""
    if all(one.dtype == update.dtype for one, update in zip(parameters, updates, strict=True)):
        torch._foreach_add_(parameters, updates, alpha=factor)
        return
    for one, update in zip(parameters, updates, strict=True):
        one.add_((update * factor).to(one.dtype))


def make_optimizer(plan: BatchPlan, module: torch.nn.Module) -> tuple[Any, Any]:
    """Return optimizer and scheduler; each training step calls ``optimizer.step()``, then ``scheduler.step()``."""
    optimizer = _optimizer(plan, parameter_groups(module, plan.recipe.weight_decay))
    peak = plan.peak_learning_rate
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: plan.learning_rate(step) / peak)
    return optimizer, scheduler


def _optimizer(plan: BatchPlan, groups: list[dict[str, Any]]) -> Any:
    """Return the optimizer named by the plan's recipe."""
    recipe, rate, momentum = plan.recipe, plan.peak_learning_rate, plan.base_momentum
    own = {} if recipe.epsilon is None else {"epsilon": recipe.epsilon}
    beta1, beta2 = plan.betas
    if recipe.optimizer == "lars":
        return LARS(groups, rate, momentum, trust=recipe.trust, **own)
    if recipe.optimizer == "lamb":
        return LAMB(groups, rate, beta1, beta2, **own)
    if recipe.optimizer == "rmsprop_warmup":
        center, period = plan.transition
        return RMSpropWarmup(groups, rate, plan.steps_per_epoch, momentum, center=center, period=period, **own)
    for group in groups:
        group.pop("layerwise")
    if recipe.optimizer == "adam":
        return torch.optim.AdamW(
            groups, rate, (beta1, beta2), eps=recipe.epsilon if recipe.epsilon is not None else 1e-8
        )
    return torch.optim.SGD(groups, rate, momentum)
