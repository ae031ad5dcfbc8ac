"""Tests that workers with different reductions fail immediately, with a rank and its value named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopsml.errors import WorkerFailed
from tests.helpers.clock import END_S
from tests.helpers.local_application import warm_application
from tests.integration.experiment.test_torch import submit

pytestmark = pytest.mark.torch


project = warm_application(lambda: submit(lambda: None, num_workers=2).result(END_S))


def frozen() -> None:
    """Several optimisers, of which one worker leaves one out."""
    import torch

    import hopsml

    model = torch.nn.ModuleDict({"features": torch.nn.Linear(4, 4), "head": torch.nn.Linear(4, 2)})
    model["features"].requires_grad_(hopsml.distributed.rank() == 0)
    hopsml.torch.prepare(model)


def other_turn() -> None:
    """Two models that take turns, of equal size: on one worker it is the other one's turn."""
    import torch

    import hopsml

    class Generator(torch.nn.Linear): ...

    class Critic(torch.nn.Linear): ...

    models = [hopsml.torch.prepare(kind(3, 1)) for kind in (Generator, Critic)]
    models[hopsml.distributed.rank()](torch.ones(2, 3)).sum().backward()


def grow_one_model() -> None:
    """Add a layer to the model on one worker alone."""
    import torch

    import hopsml

    model = hopsml.torch.prepare(torch.nn.ModuleList([torch.nn.Linear(3, 1)]))
    for step in range(4):
        if step == 2 and hopsml.distributed.rank() == 1:
            model.append(torch.nn.Linear(3, 1))
            hopsml.torch.prepare(model)
        sum(one(torch.ones(2, 3)) for one in model).sum().backward()


def step_less() -> dict[str, Any]:
    """Sequences of different lengths, so that one worker has a batch less."""
    import torch

    import hopsml

    model = hopsml.torch.prepare(torch.nn.Linear(3, 1))
    for _ in range(5 - hopsml.distributed.rank()):
        model(torch.ones(2, 3)).sum().backward()
    return {"steps": 1}


def tired_actor() -> None:
    """An actor that stops while the learner still waits for what it plays."""
    import hopsml

    for _ in range(5 - 2 * hopsml.distributed.rank()):
        hopsml.distributed.exchange([hopsml.distributed.rank()])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (frozen, r"rank 1 has features.weight .*, not trained where rank 0 has features.weight torch.float32 \(4, 4\)"),
        pytest.param(
            other_turn, r"rank [01] .*gradients of (Generator|Critic): weight to bias", marks=pytest.mark.variant
        ),
        (grow_one_model, r"rank [01] .*gradients of ModuleList: 0.weight to 0.bias"),
        pytest.param(
            step_less,
            r"rank 1 has ended .* function has ended, while this one was in all_reduce 'gradients of Linear: weight to",
            marks=pytest.mark.variant,
        ),
        pytest.param(
            tired_actor,
            r"rank 1 has ended .* function has ended, while this one was in all_gather 'sizes of exchanged",
            marks=pytest.mark.variant,
        ),
    ],
)
def test_differing_reductions_are_named_without_a_hang(project: Path, function: Callable[[], Any], words: str) -> None:
    with pytest.raises(WorkerFailed, match=words):
        submit(function, num_workers=2).result(END_S)
