"""Training of ``elastic_workload.py`` by PyTorch: same samples, same order, so the same weight."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.helpers.cluster.elastic_workload import (
    BATCH,
    EPOCHS,
    N_SAMPLES,
    PATIENT_FROM,
    announce,
    announce_place,
    wait_for,
)


def train(
    folder: str,
    commit: int | None = 2,
    step_s: float = 0.01,
    patience_s: float = 0.0,
    ballast_mb: int = 0,
    slow_rank: int = -1,
    over: str = "hopsml",
) -> dict[str, Any]:
    """Train like ``elastic_workload.train``, over hopsml's collective by ``prepare`` or by DDP over another group.

    The weight is in the model and again in the optimizer's momentum: both must be restored.
    """
    import numpy as np
    import torch

    import hopsml

    place = Path(folder)
    context = announce_place(place)
    model = _sums(ballast_mb)
    wrapped = hopsml.torch.prepare(model) if over == "hopsml" else _ddp(model)
    decaying = {"params": [model.weight], "weight_decay": 0.01}
    gathering = {"params": [model.again], "momentum": 0.99, "lr": 0.01}
    optimizer = torch.optim.SGD([decaying, gathering, {"params": [model.counts]}], lr=1.0)
    state = hopsml.elastic.State(model=model, optimizer=optimizer, seen=[], worlds=[])
    air: list[bytearray] = []
    for batch in state.resume(hopsml.elastic.Sampler(N_SAMPLES, BATCH, seed=3, epochs=EPOCHS)):
        optimizer.zero_grad()
        wrapped(torch.from_numpy(batch)).neg().backward()
        context = announce_place(place, context)  # a group that has changed did so by now
        if not context.joins:  # the batch by which a newcomer prepares is discarded
            announce(place / f"{context.generation}-{state.batches}-{context.rank}.npy", "")
        world = round(-1 / float(model.counts.grad.min()))  # of which the gradients are a mean: not a step that follows
        for one in (model.weight, model.again, model.counts):
            one.grad.mul_(world)
        seen = np.repeat(np.arange(N_SAMPLES), (-model.counts.grad).round().int().numpy()).tolist()
        optimizer.step()
        if (balloon := place / f"balloon-{os.getpid()}").exists():
            air.append(bytearray(b"x") * (int(balloon.read_text()) << 20))
        if not (place / "hurry").exists():
            time.sleep(step_s * (10 if context.rank == slow_rank else 1))
        if patience_s and state.batches >= PATIENT_FROM:
            wait_for(place / "disturbed", patience_s)
        state.seen, state.worlds = [*state.seen, seen], [*state.worlds, world]
        if not context.joins:
            announce(place / f"step-{context.rank}", str(state.batches))
        state.commit(every=commit)
    _check(model, optimizer, state.seen)
    return {
        "weight": float(model.weight.detach()),
        "seen": state.seen,
        "worlds": state.worlds,
        "generation": context.generation,
        "world_size": context.world_size,
    }


def _sums(ballast_mb: int) -> Any:
    """Return a model whose gradients are the sum of its samples' sines, twice, and the count of each sample."""
    import torch

    class Sums(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
            self.again = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
            self.counts = torch.nn.Parameter(torch.zeros(N_SAMPLES, dtype=torch.float64))
            self.register_buffer("ballast", torch.zeros(ballast_mb << 20, dtype=torch.uint8))

        def forward(self, ids: Any) -> Any:
            return (self.weight + self.again) * torch.sin(ids.double()).sum() + self.counts[ids].sum()

    return Sums()


def _ddp(model: Any) -> Any:
    """Wrap the model in DDP as functions for torchrun do; a single worker needs no DDP."""
    import torch
    import torch.distributed as dist

    return torch.nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model


def _check(model: Any, optimizer: Any, seen: list[list[int]]) -> None:
    """Raise AssertionError unless parameters, optimizer state and plain values belong to one training."""
    import numpy as np

    momentum = -float(optimizer.state[model.again]["momentum_buffer"])
    assert abs(momentum - float(model.weight.detach())) < 1e-9 * abs(momentum), (momentum, float(model.weight.detach()))
    counted = np.bincount(np.concatenate(seen), minlength=N_SAMPLES)
    differs = model.counts.detach().numpy() - counted
    where = np.flatnonzero(differs)
    assert not len(where), (
        f"the model has counted other samples: {dict(zip(where.tolist(), differs[where], strict=True))}"
    )
