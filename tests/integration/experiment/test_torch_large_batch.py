"""Tests that PyTorch's large-batch plans give the same weights with one or two workers, killed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopsml
from hopsml import experiment
from tests.helpers.local_application import warm_application

pytestmark = [pytest.mark.torch]
QUIET: dict[str, Any] = {"progress": False, "keep_warm": 60.0}
KINDS = ["lars", "lamb", "rmsprop_warmup"]


application = warm_application(
    lambda: experiment.torch(train, args={"kinds": [], "ends": ""}, num_workers=2, **QUIET), autouse=True
)


def train(kinds: list[str], ends: str) -> dict[str, Any]:
    """The weights of each kind of optimizer. ``ends``: a file; whoever makes it first ends itself in the middle."""
    import os
    import signal

    import torch

    import hopsml

    found: dict[str, Any] = {}
    for kind in kinds:
        torch.manual_seed(0)
        model = hopsml.torch.prepare(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)))
        draw = torch.Generator().manual_seed(1)
        x, y = torch.randn(64, 6, generator=draw), torch.randn(64, 3, generator=draw)
        recipe = hopsml.large_batch.Recipe(
            reference_batch_size=4, learning_rate=0.01, epochs=6, optimizer=kind, trust=0.02, warmup_epochs=1.0
        )
        optimizer, schedule = recipe.at(16, n_samples=64).torch(model)
        state = hopsml.elastic.State(model=model, optimizer=optimizer, schedule=schedule)
        for batch in state.resume(hopsml.elastic.Sampler(64, global_batch_size=16, seed=1, epochs=6)):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()
            state.commit(every=3)
            if ends and state.batches == 13 and hopsml.distributed.rank() == 1:
                try:
                    os.close(os.open(ends, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)
        found[kind] = [one.detach().numpy().tolist() for one in model.parameters()]
    return {"json": hopsml.distributed.exchange(found)}


SIZES = hopsml.large_batch.BatchSizeSchedule.doubling(workers=1, every=1, most=2)


def grow() -> dict[str, Any]:
    """Train by a schedule of sizes; return workers, global batch and factor of the rate of each step."""
    import time

    import torch

    model = hopsml.torch.prepare(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    state = hopsml.elastic.State(model=model, optimizer=optimizer, steps=[])
    data = hopsml.elastic.Sampler(64, 4, seed=1, epochs=5, scaling="linear", reference_workers=1, ramp_epochs=1)
    for batch in state.resume(data):
        SIZES.follow(data)
        optimizer.zero_grad()
        model(torch.ones(len(batch), 4)).square().mean().backward()
        optimizer.step()
        state.steps = [*state.steps, [data.world_size, data.batch_size, data.learning_rate_scale]]
        if data.world_size < SIZES.workers(data.epoch):
            time.sleep(2.0)  # so that the other worker, however slowly it starts, joins before the end
        state.commit(every=1)
    return {"steps": state.steps}


def test_schedule_doubles_a_torch_group_from_one_worker() -> None:
    run = experiment.torch(grow, min_workers=1, max_workers=2, first_workers=SIZES.workers(0), **QUIET)
    steps = run.value["steps"]
    workers = [size for size, *_ in steps]
    assert workers[:16] == [1] * 16 and workers == sorted(workers) and workers[-1] == 2  # an epoch of one worker
    assert all(batch == 4 * size for size, batch, _ in steps) and steps[0][2] == 1 and steps[-1][2] == 2


@pytest.mark.variant
def test_torch_large_batch_with_a_killed_worker_equals_one_worker(tmp_path: Path) -> None:
    alone = experiment.torch(train, args={"kinds": KINDS, "ends": ""}, num_workers=1, **QUIET).metrics["json"][0]
    for kind in KINDS:
        ends = tmp_path / kind
        given = {"kinds": [kind], "ends": str(ends)}
        together = experiment.torch(train, args=given, min_workers=2, max_workers=2, **QUIET).metrics["json"]
        assert ends.exists(), "a worker was lost"
        for weights in together:
            for one, two in zip(alone[kind], weights[kind], strict=True):
                np.testing.assert_allclose(two, one, rtol=2e-4, atol=2e-6, err_msg=kind)


def recomputed_statistics() -> dict[str, Any]:
    """Recompute statistics of a prepared module over seven batches that the workers divide; return them."""
    import torch
    from torch import nn

    rank, workers = hopsml.distributed.rank(), hopsml.distributed.world_size()
    torch.manual_seed(3)
    inner = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3), nn.Tanh())
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), inner, nn.BatchNorm1d(3), nn.Linear(3, 1))
    hopsml.large_batch.synchronize(model)
    own = hopsml.torch.prepare(model)
    x = 2 + 3 * torch.randn(26, 4, generator=torch.Generator().manual_seed(4))
    own(x[rank::workers]).sum().backward()  # moving statistics, which differ by the number of workers
    hopsml.large_batch.recompute_statistics(own, x.split(4)[rank::workers])
    found = [[one.running_mean.tolist(), one.running_var.tolist()] for one in (model.get_submodule("2.0"), model[3])]
    return {"found": found, "alike": all(one == found for one in hopsml.distributed.exchange(found))}


@pytest.mark.parametrize(("backend", "workers"), [("hopsml", 2), pytest.param("gloo", 3, marks=pytest.mark.variant)])
def test_recomputed_statistics_do_not_depend_on_the_number_of_workers(backend: str, workers: int) -> None:
    alone = experiment.torch(recomputed_statistics, num_workers=1, **QUIET).value
    together = experiment.torch(recomputed_statistics, num_workers=workers, backend=backend, **QUIET).value
    assert together["alike"]
    for one, several in zip(alone["found"], together["found"], strict=True):
        np.testing.assert_allclose(several, one, rtol=1e-6, atol=1e-6)
