"""Torch optimizer of a batch plan, and the scheduler of its learning rate."""

from __future__ import annotations

from typing import Any

import torch

from hopsml.training.large_batch.recipe import BatchPlan
from hopsml.training.torch import layerwise_optimizers as layerwise


def make(plan: BatchPlan, module: torch.nn.Module) -> tuple[Any, Any]:
    """Return optimizer and scheduler; each training step calls ``optimizer.step()``, then ``scheduler.step()``."""
    optimizer = _optimizer(plan, layerwise.parameter_groups(module, plan.recipe.weight_decay))
    peak = plan.peak_learning_rate
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: plan.learning_rate(step) / peak)
    return optimizer, scheduler


def _optimizer(plan: BatchPlan, groups: list[dict[str, Any]]) -> Any:
    """Return the optimizer named by the plan's recipe."""
    recipe, rate, momentum = plan.recipe, plan.peak_learning_rate, plan.base_momentum
    own = {} if recipe.epsilon is None else {"epsilon": recipe.epsilon}
    beta1, beta2 = plan.betas
    if recipe.optimizer == "lars":
        return layerwise.LARS(groups, rate, momentum, trust=recipe.trust, **own)
    if recipe.optimizer == "lamb":
        return layerwise.LAMB(groups, rate, beta1, beta2, **own)
    if recipe.optimizer == "rmsprop_warmup":
        return layerwise.RMSpropWarmup(groups, rate, plan.steps_per_epoch, momentum, **own)
    for group in groups:
        group.pop("layerwise")
    if recipe.optimizer == "adam":
        return torch.optim.AdamW(
            groups, rate, (beta1, beta2), eps=recipe.epsilon if recipe.epsilon is not None else 1e-8
        )
    return torch.optim.SGD(groups, rate, momentum)
