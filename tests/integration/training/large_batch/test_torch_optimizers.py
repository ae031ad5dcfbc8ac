"""Tests of the torch optimizers: updates equal the papers' formulas, plans train, state resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopsml
from hopsml.errors import ArgumentError
from tests.helpers.training import references

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_imported")]
STEPS = 100
RATES = [0.1 * min(1.0, (step + 1) / 20) * (0.1 if step > 60 else 1.0) for step in range(STEPS)]
LIMIT = 1e-5


def trained(kind: str, stop: int | None = None, dtype: str = "float32", **more: Any) -> list[Any]:
    """Return the trained parameters; at step ``stop`` a new optimizer continues from the first one's state."""
    import torch

    from hopsml.training.torch import layerwise_optimizers

    parameters = [
        torch.nn.Parameter(torch.tensor(value, dtype=getattr(torch, dtype))) for value in references.problem()
    ]
    optimizer = getattr(layerwise_optimizers, kind)(parameters, **more)
    for step, rate in enumerate(RATES):
        if step == stop:
            state, optimizer = optimizer.state_dict(), getattr(layerwise_optimizers, kind)(parameters, **more)
            optimizer.load_state_dict(state)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for index, one in enumerate(parameters):
            one.grad = torch.tensor(references.gradients(step, index, tuple(one.shape)), dtype=one.dtype)
        optimizer.step()
    return [one.detach().float().numpy() for one in parameters]


OF_EACH: dict[str, tuple[dict[str, Any], Any]] = {
    "LARS": ({"weight_decay": 1e-2, "trust": 0.02}, lambda: references.lars(STEPS, RATES)),
    "LAMB": ({"weight_decay": 1e-2}, lambda: references.lamb(STEPS, RATES)),
    "RMSpropWarmup": ({"steps_per_epoch": 7}, lambda: references.rmsprop_warmup(STEPS, RATES, 7)),
}


@pytest.mark.parametrize("kind", OF_EACH)
def test_torch_optimizers_equal_the_published_formulas_and_resume_from_a_state(kind: str) -> None:
    options, expected = OF_EACH[kind]
    assert references.error(trained(kind, **options), expected()) <= LIMIT
    assert references.error(trained(kind, stop=50, **options), expected()) <= LIMIT


@pytest.mark.parametrize("kind", OF_EACH)
def test_torch_optimizers_store_float32_state_for_low_precision_parameters(kind: str) -> None:
    options, expected = OF_EACH[kind]
    assert references.error(trained(kind, dtype="bfloat16", **options), expected()) <= 0.4


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("momentum", marks=pytest.mark.variant),
        "lars",
        pytest.param("lamb", marks=pytest.mark.variant),
        pytest.param("adam", marks=pytest.mark.variant),
        pytest.param("rmsprop_warmup", marks=pytest.mark.variant),
    ],
)
def test_plan_trains_a_torch_module(kind: str) -> None:
    import torch

    torch.manual_seed(1)
    random = np.random.default_rng(1)
    x = torch.tensor(np.float32(random.normal(size=(512, 8))))
    y = x @ torch.tensor(np.float32(random.normal(size=(8, 1))))
    module = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    )
    recipe = hopsml.large_batch.Recipe(
        reference_batch_size=16,
        learning_rate=0.01,
        epochs=12,
        optimizer=kind,
        warmup_epochs=2,
        trust=0.1,
        schedule=hopsml.large_batch.Cosine(0.1),
    )
    plan = recipe.at(64, n_samples=len(x))
    optimizer, scheduler = plan.torch(module)
    losses = []
    for step in range(plan.steps):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(plan.learning_rate(step))
        start = step % plan.steps_per_epoch * 64
        loss = torch.nn.functional.mse_loss(module(x[start : start + 64]), y[start : start + 64])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(float(loss))
    assert sum(losses[-8:]) < sum(losses[:8]) * 0.8


@pytest.mark.parametrize("kind", ["momentum", "lars", "lamb", "adam", "rmsprop_warmup"])
def test_torch_weights_do_not_change_after_the_end_of_a_plan(kind: str) -> None:
    import torch

    recipe = hopsml.large_batch.Recipe(
        reference_batch_size=16, learning_rate=0.01, epochs=3, optimizer=kind, schedule=hopsml.large_batch.Polynomial()
    )
    plan = recipe.at(16, n_samples=32)
    module = torch.nn.Linear(4, 3)
    initial = module.weight.detach().clone()
    optimizer, scheduler = plan.torch(module)
    ends = []
    for _ in range(plan.steps + 4):
        optimizer.zero_grad()
        module(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
        ends.append(module.weight.detach().clone())
    assert torch.isfinite(ends[-1]).all() and not torch.equal(ends[-1], initial)
    assert torch.equal(ends[-1], ends[plan.steps - 1])


@pytest.mark.parametrize("given", [{}, {"transition_center": 3, "transition_period": 2.5}], ids=["scaled", "given"])
def test_torch_rmsprop_warm_up_of_a_plan_has_its_transition_and_continues_after_the_end(given: dict[str, Any]) -> None:
    import torch

    recipe = hopsml.large_batch.Recipe(
        reference_batch_size=16, learning_rate=0.1, epochs=10, weight_decay=0.0, optimizer="rmsprop_warmup",
        schedule=hopsml.large_batch.SlowStart(), **given,
    )  # fmt: skip
    plan = recipe.at(16, n_samples=7 * 16)
    module = torch.nn.ParameterList([torch.tensor(value, dtype=torch.float32) for value in references.problem()])
    optimizer, scheduler = plan.torch(module)
    for step in range(STEPS):
        for index, one in enumerate(module):
            one.grad = torch.tensor(references.gradients(step, index, tuple(one.shape)), dtype=one.dtype)
        optimizer.step()
        scheduler.step()
    rates = [plan.learning_rate(step) for step in range(STEPS)]
    assert plan.steps == 70 and rates[-1] == rates[69] > 0
    expected = references.rmsprop_warmup(STEPS, rates, 7, *((3, 2.5) if given else (10 / 9, 5 / 9)))
    assert references.error([one.detach().numpy() for one in module], expected) <= LIMIT


def test_biases_and_normalisations_have_no_weight_decay() -> None:
    import torch

    module = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(2, 2)
    )
    decayed, others = hopsml.large_batch.parameter_groups(module, 1e-4)
    assert [tuple(one.shape) for one in decayed["params"]] == [(2, 1, 3, 3), (2, 2)] and decayed["weight_decay"] == 1e-4
    assert len(others["params"]) == 4 and others["weight_decay"] == 0
    with pytest.raises(ArgumentError, match="nothing to train"):
        hopsml.large_batch.parameter_groups(torch.nn.Flatten(), 1e-4)


def two_processes(rank: int, meeting: str, queue: Any) -> None:
    """Half of a batch in each of two processes: what synchronised normalisation gives, and reduced statistics."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    module, x = normalised()
    assert hopsml.large_batch.synchronize(module) == 1
    x = (x[:3] if rank == 0 else x[3:]).clone().requires_grad_()
    y = module(x)
    (y**3).sum().backward()
    plain = torch.nn.BatchNorm1d(2)
    plain.running_mean.fill_(float(rank))
    plain.running_var.fill_(1.0 + rank)
    hopsml.large_batch.reduce_statistics(plain)
    found = [y, x.grad, module[0].running_var, plain.running_mean, plain.running_var]
    queue.put((rank, [one.detach().numpy().tolist() for one in found]))
    dist.barrier()  # no rank ends the group while another one is still in it
    dist.destroy_process_group()


def normalised() -> Any:
    import torch

    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.BatchNorm1d(2)), torch.randn(8, 2)


@pytest.mark.variant
def test_synchronised_normalisation_equals_one_process_and_statistics_are_reduced(tmp_path: Path) -> None:
    import multiprocessing

    spawn = multiprocessing.get_context("spawn")
    queue = spawn.SimpleQueue()
    workers = [spawn.Process(target=two_processes, args=(rank, str(tmp_path / "meeting"), queue)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    results = dict(queue.get() for _ in workers)
    queue.close()
    module, x = normalised()
    x.requires_grad_()
    y = module(x)
    (y**3).sum().backward()
    for place, expected in enumerate((y, x.grad)):
        both = np.concatenate([results[0][place], results[1][place]])
        np.testing.assert_allclose(both, expected.detach().numpy(), atol=2e-5)
    for rank in range(2):
        np.testing.assert_allclose(results[rank][2], module[0].running_var.numpy(), rtol=1e-5)
        assert results[rank][3:] == [[0.5, 0.5], [1.75, 1.75]]  # (1 + 2) / 2 + (0 + 1) / 2 - 0.25


def test_zero_last_gamma_sets_the_last_gamma_of_each_torch_block() -> None:
    import torch

    block = torch.nn.Module()
    block.bn1, block.bn2, block.downsample = torch.nn.BatchNorm2d(2), torch.nn.BatchNorm2d(2), None
    assert hopsml.large_batch.zero_last_gamma(torch.nn.Sequential(block)) == ["0.bn2"]
    assert float(block.bn2.weight.abs().sum()) == 0 and float(block.bn1.weight.sum()) == 2
    with pytest.raises(ArgumentError, match="no block with a shortcut"):
        hopsml.large_batch.zero_last_gamma(torch.nn.Sequential(torch.nn.BatchNorm2d(2)))
    assert hopsml.large_batch.zero_last_gamma([block.bn1]) == ["BatchNorm2d"]
