"""Features of PyTorch, as small trainings on the same global batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hopsml
from hopsml import experiment
from tools.features.table import Feature, Values

IMPLEMENTATIONS = ("hopsml", "gloo")


def launch(play: Callable[..., Any], args: dict[str, Any], workers: int, implementation: str) -> Any:
    """Run ``play`` on so many workers, and return the chief's value."""
    options: dict[str, Any] = {"backend": implementation} if workers > 1 else {}
    return experiment.torch(
        play, args=args, num_workers=workers, progress=False, name="features of PyTorch", **options
    ).value


def begin() -> None:
    """Nothing has to be made before the first case."""


def _sgd_with_momentum() -> Values:
    import torch

    torch.manual_seed(7)
    rank, size = hopsml.distributed.rank(), hopsml.distributed.world_size()
    model = hopsml.torch.prepare(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.linspace(-1, 1, 72).reshape(24, 3)
    for batch in x.split(8) * 2:
        share = batch[rank::size]  # equal shares: the mean of the workers' means is that of the global batch
        optimizer.zero_grad()
        (model(share) - share.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    return {"weights": [one.detach().tolist() for one in model.parameters()]}


FEATURES = [
    Feature("SGD with momentum", "optimizers", _sgd_with_momentum),
]
