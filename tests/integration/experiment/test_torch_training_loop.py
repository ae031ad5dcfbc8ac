"""Tests of ``hopsml.torch.TrainingLoop`` on the local backend: one loop, four algorithms by name."""

from __future__ import annotations

from typing import Any

import pytest

import hopsml
from hopsml import experiment
from hopsml.errors import ArgumentError
from tests.helpers.local_application import warm_application

pytestmark = [pytest.mark.torch]
QUIET: dict[str, Any] = {"progress": False, "keep_warm": 120.0}
ALGORITHMS = ["sync_sgd", "local_sgd", "block_momentum", "elastic_averaging"]


application = warm_application(
    lambda: experiment.torch(train, args={"algorithms": []}, num_workers=2, **QUIET), autouse=True
)


def train(algorithms: list[str]) -> dict[str, Any]:
    """Return the accuracy on all digits by algorithm, and whether all workers end with the same module."""
    import functools
    import os

    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    found = load_digits()
    x, y = torch.tensor(found.data / 16.0, dtype=torch.float32), torch.tensor(found.target)
    order = torch.Generator().manual_seed(os.getpid())

    def batches() -> Any:
        return [(x[chosen], y[chosen]) for chosen in torch.randperm(len(x), generator=order).split(32)]

    results: dict[str, Any] = {}
    for name in algorithms:
        torch.manual_seed(os.getpid())  # weights that differ between workers
        module = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        settings = {} if name == "sync_sgd" else {"every": 5}
        optimizer = functools.partial(torch.optim.SGD, lr=0.1)
        loop = hopsml.torch.TrainingLoop(module, batches, nn.CrossEntropyLoss(), optimizer, name, **settings)  # type: ignore[arg-type]
        logs = loop.run(120)
        weights = [one.tolist() for one in loop.module.state_dict().values()]
        loop.module.eval()
        results[name] = {
            "logs": logs,
            "accuracy": float((loop.module(x).argmax(1) == y).float().mean()),
            "alike": all(one == weights for one in hopsml.distributed.exchange(weights)),
        }
    return {"json": results}


def test_every_algorithm_trains_equal_torch_modules_by_name() -> None:
    results = experiment.torch(train, args={"algorithms": ALGORITHMS}, num_workers=2, **QUIET).value["json"]
    assert list(results) == ALGORITHMS
    for name, found in results.items():
        assert found["accuracy"] > 0.85, (name, found)
        assert found["alike"], f"{name}: the workers end with different modules"
        assert found["logs"]["loss"] > 0


def in_pieces(algorithm: str, settings: dict[str, Any]) -> list[float]:
    """Train a weight by a constant gradient that differs between workers, in several calls of ``run``.

    Returns the weight at the end of each; before the last call of the last two it is set to 0.
    """
    import functools

    import torch

    slope, found = 1.0 + hopsml.distributed.rank(), []
    for steps in ([16], [8, 8], [4] * 4, [3, 2, 11], [8], [6, 8]):
        module = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(module.weight)
        loop = hopsml.torch.TrainingLoop(
            module,
            lambda: [(torch.ones(1, 1), torch.ones(1, 1))],
            lambda predicted, _: -(predicted * slope).mean(),
            functools.partial(torch.optim.SGD, lr=1.0),
            algorithm,  # type: ignore[arg-type]
            **settings,
        )
        for number, count in enumerate(steps):
            if steps == [6, 8] and number == 1:
                with torch.no_grad():
                    module.weight.zero_()
            loop.run(count)
        found.append(float(module.weight))
    return found


def test_several_calls_of_run_train_a_torch_module_as_one_call() -> None:
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("sync_sgd", {}),
        ("local_sgd", {"every": 4}),
        ("block_momentum", {"every": 4, "momentum": 0.5}),
        ("elastic_averaging", {"every": 4}),
    ]

    def pieces() -> list[list[float]]:
        return [in_pieces(name, settings) for name, settings in kinds]

    found = experiment.torch(pieces, num_workers=2, **QUIET).value
    for (name, _), (first, *others, undisturbed, after_change) in zip(kinds, found, strict=True):
        assert others == [pytest.approx(first)] * 3, name
        assert first > 0 and after_change == pytest.approx(undisturbed), name


def refusals() -> list[str]:
    """Return the messages about an unsupported algorithm, an unknown setting, and missing batches."""
    import torch

    def message(algorithm: str, **settings: Any) -> str:
        module, loss = torch.nn.Linear(1, 1), torch.nn.MSELoss()
        with pytest.raises(ArgumentError) as refused:
            hopsml.torch.TrainingLoop(module, list, loss, torch.optim.SGD, algorithm, **settings).run(1)  # type: ignore[arg-type]
        return str(refused.value)

    return [message("async_sgd"), message("local_sgd", evry=3), message("local_sgd")]


def test_algorithms_without_support_in_torch_are_refused() -> None:
    servers, setting, batches = experiment.torch(refusals, num_workers=1, **QUIET).value
    assert "needs parameter servers" in servers
    assert "evry: not a setting" in setting
    assert "returned no batch" in batches
    changing = experiment.torch(refusals, min_workers=1, max_workers=1, **QUIET).value
    assert "in a group that may change" in changing[2]
