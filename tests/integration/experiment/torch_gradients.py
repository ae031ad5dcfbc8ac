"""Trainings with each setting of the gradient exchange for PyTorch, run by the workers of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.helpers.training.jobs.gradients import BATCH, INPUTS, LOOPS, OUTPUTS, RATE, STEPS, batch_of


@contextmanager
def settings_of(settings: dict[str, Any]) -> Iterator[None]:
    """Let ``prepare`` inside the block use these settings, in place of the run's own."""
    import msgspec

    from hopsml.cluster.shared.spec import GradientSettings
    from hopsml.cluster.worker.context import current, set_current

    context = current()
    assert context is not None
    own = msgspec.structs.replace(context.spec.communication, gradients=GradientSettings(**settings))
    import dataclasses

    set_current(dataclasses.replace(context, spec=msgspec.structs.replace(context.spec, communication=own)))
    try:
        yield
    finally:
        set_current(context)


def _linear() -> Any:
    import torch

    class Linear(torch.nn.Module):
        """Product with a matrix of weights."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(INPUTS, OUTPUTS))

        def forward(self, x: Any) -> Any:
            return x @ self.weight

    return Linear()


def loops(names: list[str], steps: int = STEPS) -> dict[str, Any]:
    """Train a linear regression with each setting; return the weights of all ranks, and the number of updates."""
    import torch

    import hopsml

    rank = hopsml.distributed.rank()
    found: dict[str, Any] = {}
    for name in names:
        with settings_of(LOOPS[name]):
            model = hopsml.torch.prepare(_linear())
        (weight,) = model.parameters()
        optimizer = torch.optim.SGD([weight], RATE)
        updates = 0
        for step in range(steps):
            x, y = map(torch.from_numpy, batch_of(rank, step))
            optimizer.zero_grad()
            ((model(x) - y).square().sum() / BATCH).backward()
            updates += weight.grad is not None
            optimizer.step()
        before = weight.detach().clone()
        hopsml.torch.finish_updates(optimizer)
        hopsml.torch.finish_updates(optimizer)  # has no further effect
        of_all = hopsml.distributed.exchange(weight.detach().numpy().tobytes())
        found[name] = {
            "same": len(set(of_all)) == 1, "updates": updates, "weights": weight.detach().tolist(),
            "finished": not torch.equal(before, weight), "none": weight.grad is None,
        }  # fmt: skip
    return {"json": found}


def kinds(names: list[str]) -> dict[str, Any]:
    """Reduce sparse gradients, absent ones, ones of half precision and small ones with each setting."""
    import torch

    import hopsml

    rank = hopsml.distributed.rank()
    found: dict[str, Any] = {}
    for name in names:
        torch.manual_seed(0)
        model = torch.nn.Module()
        model.table = torch.nn.Embedding(6, 2, sparse=True)
        model.layer = torch.nn.Linear(60, 40, bias=False)
        model.narrow = torch.nn.Linear(4, 1, bias=False).to(torch.bfloat16)
        model.unused = torch.nn.Linear(60, 40)
        with settings_of(LOOPS[name]):
            hopsml.torch.prepare(model)
        parameters = list(model.parameters())
        before = [one.detach().clone() for one in parameters]
        optimizer = torch.optim.SGD(parameters, 0.125)
        layouts = set()
        for words in ([0, 1, 1] if rank == 0 else [5, 0], [2], [3, 3, 3, 3] if rank == 0 else [4]):
            optimizer.zero_grad()
            loss = model.table(torch.tensor(words)).sum() + model.narrow(torch.ones(4, dtype=torch.bfloat16)).sum()
            # A gradient that one worker alone has, with few entries that are not zero.
            (loss + (model.layer(torch.eye(60)[:1]).sum() if rank == 0 else 0.0)).backward()
            layouts |= {str(one.grad.layout) for one in (model.table.weight,) if one.grad is not None}
            optimizer.step()
        hopsml.torch.finish_updates(optimizer)
        moved = [(one.detach() - old).double() for one, old in zip(parameters, before, strict=True)]
        mine = [moved[0].sum(1).tolist(), float(moved[1].sum()), moved[2].tolist(), float(moved[3].abs().sum())]
        found[name] = {"layouts": sorted(layouts), "of_ranks": hopsml.distributed.exchange(mine)}
    return {"json": found}


def network(names: list[str]) -> dict[str, Any]:
    """Train a network with convolutions and normalisation with each setting; return losses and a digest of all ranks."""
    import hashlib

    import torch

    import hopsml

    rank, size = hopsml.distributed.rank(), hopsml.distributed.world_size()
    x = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    y = (x.mean((1, 2, 3)) > 0).long()
    found: dict[str, Any] = {}
    for name in names:
        torch.manual_seed(rank)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3),
            torch.nn.Flatten(), torch.nn.Linear(256, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2),
        ).to(memory_format=torch.channels_last)  # fmt: skip
        with settings_of(LOOPS[name]):
            model = hopsml.torch.prepare(model)
        optimizer = torch.optim.Adam(model.parameters(), 0.005)
        losses: list[float] = []
        for _ in range(30):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[rank::size]), y[rank::size])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        hopsml.torch.finish_updates(optimizer)
        state = b"".join(one.detach().contiguous().numpy().tobytes() for one in model.parameters())
        digests = hopsml.distributed.exchange(hashlib.sha256(state).hexdigest())
        found[name] = {"same": len(set(digests)) == 1, "losses": [losses[0], losses[-1]]}
    return {"json": found}


def interrupted(folder: str, batches: int = 60) -> dict[str, Any]:
    """Train until the group has lost a worker and admitted another; return the weights' digests of all ranks."""
    import hashlib
    import os
    import pathlib
    import signal
    import time

    import torch

    import hopsml

    torch.manual_seed(0)
    model = hopsml.torch.prepare(torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Tanh(), torch.nn.Linear(48, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.5)
    x = torch.randn(4000, 64, generator=torch.Generator().manual_seed(1))
    state = hopsml.elastic.State(model=model, optimizer=optimizer, sizes=[], since=0, losses=[])
    lost = pathlib.Path(folder, "lost")
    for batch in state.resume(hopsml.elastic.Sampler(len(x), 16, seed=1, epochs=1000)):
        optimizer.zero_grad()
        loss = (model(x[batch]) - x[batch].mean(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        size = hopsml.distributed.world_size()
        if not state.sizes or state.sizes[-1] != size:
            state.sizes, state.since = [*state.sizes, size], state.batches
        state.losses = [*state.losses[:1], loss.item()]
        state.commit(every=1)
        if state.batches == 10 and hopsml.distributed.rank() == 1 and not lost.exists():
            lost.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if lost.exists() and size == 2 and state.batches - state.since >= batches:
            break
        time.sleep(0.01)
    hopsml.torch.finish_updates(optimizer)
    content = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    digests = hopsml.distributed.exchange(hashlib.sha256(content).hexdigest())
    return {"json": digests, "first": state.losses[0], "last": state.losses[-1], "sizes": state.sizes}


def unfinished() -> dict[str, Any]:
    """Train without applying the last gradients; return the error for a model with sparse gradients."""
    import torch

    import hopsml
    from hopsml.errors import ArgumentError

    model = hopsml.torch.prepare(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    try:
        hopsml.torch.prepare(torch.nn.Embedding(4, 2, sparse=True))
    except ArgumentError as error:
        return {"text": str(error)}
    return {"text": ""}
