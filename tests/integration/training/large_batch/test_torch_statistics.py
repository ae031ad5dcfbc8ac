"""Tests of recomputed statistics of batch normalisation in PyTorch, in one process, and of their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hopsml
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.model.flavors.torch import hide_triton

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_imported")]
ROWS = np.random.default_rng(5).normal(3.0, 2.0, (23, 4)).astype("float32")
BATCHES = [ROWS[:8], ROWS[8:16], ROWS[16:]]  # the last one is smaller

recompute = hopsml.large_batch.recompute_statistics


def torch_model() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(2)
    inner = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.BatchNorm1d(5))
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), inner, nn.Linear(5, 1))


def torch_inputs(model: Any, batches: list[Any]) -> list[Any]:
    """Return the inputs of both normalisations, from a copy in which nothing is random."""
    import copy

    import torch

    twin, found = copy.deepcopy(model).train(), []
    twin[3].eval()
    with torch.no_grad():
        for batch in batches:
            found.append(twin[4][:2](twin[:4](batch)).numpy())
    return [np.concatenate(batches), np.concatenate(found)]


@pytest.mark.parametrize("prepare", [lambda model: None, hopsml.large_batch.synchronize], ids=["plain", "synchronized"])
def test_torch_statistics_are_the_moments_of_all_rows_of_all_batches(prepare: Callable[[Any], Any]) -> None:
    import torch

    model = torch_model()
    prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.tensor(ROWS)).sum().backward()
    optimizer.step()
    parameters, state = [one.detach().clone() for one in model.parameters()], torch.get_rng_state()
    counted = model[0].num_batches_tracked.clone()
    batches = [torch.tensor(one) for one in BATCHES]
    expected = torch_inputs(model, batches)
    assert recompute(model, [[one, None] for one in batches]) == 2
    for layer, x in zip((model[0], model[4][2]), expected, strict=True):
        np.testing.assert_allclose(layer.running_mean.numpy(), x.mean(0), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(layer.running_var.numpy(), x.var(0, ddof=1), rtol=1e-5)
        assert layer.momentum == 0.1 and layer.training and torch.equal(layer.num_batches_tracked, counted)
        assert "forward" not in vars(layer) and not layer._forward_pre_hooks
    assert model.training and model[3].training
    assert all(torch.equal(old, new) for old, new in zip(parameters, model.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), state), "dropout has drawn no number"


def test_torch_statistics_of_one_batch_are_those_of_a_step_without_momentum() -> None:
    import torch

    one, two = torch_model()[0], torch.nn.BatchNorm1d(4, momentum=1.0)
    two(torch.tensor(ROWS))
    recompute(one, [torch.tensor(ROWS)])
    np.testing.assert_allclose(one.running_mean.numpy(), two.running_mean.numpy(), rtol=1e-6)
    np.testing.assert_allclose(one.running_var.numpy(), two.running_var.numpy(), rtol=1e-6)


def test_torch_statistics_of_images_in_half_precision_and_in_wrappers() -> None:
    import torch

    images = torch.tensor(np.random.default_rng(1).normal(2.0, 3.0, (6, 3, 5, 5)), dtype=torch.float32)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), torch.nn.BatchNorm2d(3))
    with hide_triton():  # it would crash a process in which another test has loaded TensorFlow
        compiled = torch.compile(model, backend="eager")
    with torch.autocast("cpu", torch.bfloat16):
        assert recompute(compiled, [images[:4], images[4:]]) == 1
        rounded = model[0](images).detach().double().numpy()
    assert model[0](images).dtype == torch.float32
    np.testing.assert_allclose(model[1].running_mean.numpy(), rounded.mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(model[1].running_var.numpy(), rounded.var((0, 2, 3), ddof=1), rtol=1e-5)


def test_torch_statistics_do_not_change_in_frozen_normalisations_or_by_an_error() -> None:
    import torch

    model = torch_model()
    model[0].eval()
    batches = [torch.tensor(one) for one in BATCHES]
    assert recompute(model, batches) == 1 and not model[0].training
    assert not model[0].running_mean.any()
    assert recompute(model.eval(), batches) == 2, "of a model in evaluation mode none is frozen"
    before = model[0].running_mean.clone()
    with pytest.raises(RuntimeError, match=r"shape|size"):
        recompute(model, [*batches, torch.ones(3, 7)])
    assert torch.equal(model[0].running_mean, before) and not model[0].training


def test_share_of_batches_is_rounded_up_and_checked() -> None:
    import torch

    batches = [torch.tensor(one) for one in BATCHES]
    model = torch.nn.BatchNorm1d(4)
    recompute(model, batches, share=0.5)
    np.testing.assert_allclose(model.running_mean.numpy(), ROWS[:16].mean(0), rtol=1e-6)
    recompute(model, [torch.ones(0, 4), *batches])
    np.testing.assert_allclose(model.running_mean.numpy(), ROWS.mean(0), rtol=1e-6)
    for share in (0, 1.5):
        with pytest.raises(ArgumentError, match="share"):
            recompute(model, batches, share=share)
    with pytest.raises(ArgumentError, match=r"itertools\.islice"):
        recompute(model, iter(batches), share=0.5)
    with pytest.raises(ArgumentError, match="no worker has a batch"):
        recompute(model, [])
    with pytest.raises(ArgumentTypeError, match="iterable"):
        recompute(model, 7)  # type: ignore[arg-type]
    assert recompute(torch.nn.Linear(4, 1), batches) == 0
