"""Tests of the averaging algorithms against their papers' formulas for a single number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training.averaging import Averaging, BlockMomentum, ElasticAveraging, LocalSGD, create_averaging

pytestmark = pytest.mark.fast

WORKERS, STEPS, RATE = 4, 60, 0.1
GOALS = np.array([1.0, 2.0, 3.0, 6.0])  # each worker's own optimum; that of all is their mean, 3


def trained(make: Callable[[], Averaging], steps: int = STEPS) -> tuple[list[float], float]:
    """Each worker descends to its own goal; their weights in the end, and the trained model's."""
    workers, weights = [make() for _ in range(WORKERS)], [[np.array([0.0])] for _ in range(WORKERS)]
    for one, own in zip(workers, weights, strict=True):
        one.begin(own, WORKERS)
    for step in range(1, steps + 1):
        weights = [[own[0] - RATE * (own[0] - goal)] for own, goal in zip(weights, GOALS, strict=True)]
        if workers[0].is_due(step) and step < steps:
            mean = [np.mean([own[0] for own in weights], 0)]
            weights = [one.combine_weights(own, mean) for one, own in zip(workers, weights, strict=True)]
    mean = [np.mean([own[0] for own in weights], 0)]
    finals = {float(one.final_weights(mean)[0][0]) for one in workers}
    assert len(finals) == 1, "all workers end with one model"
    return [float(own[0][0]) for own in weights], finals.pop()


def test_local_sgd_continues_from_the_mean_of_all_workers() -> None:
    one = LocalSGD(3)
    assert [step for step in range(1, 10) if one.is_due(step)] == [3, 6, 9]
    assert one.combine_weights([np.array([5.0])], [np.array([2.0])]) == [np.array([2.0])]
    _, final = trained(lambda: LocalSGD(5))
    assert final == pytest.approx(3.0 * (1 - 0.9**STEPS))  # linear: as one worker would with the mean of the gradients


def test_block_momentum_equals_the_published_formula() -> None:
    eta, zeta = 0.7, 0.5
    one = BlockMomentum(1, momentum=eta, rate=zeta)
    one.begin([np.array([1.0])], WORKERS)
    model, change, sent, means = 1.0, 0.0, 1.0, [2.0, 1.5, 4.0]
    for mean in means:
        (own,) = one.combine_weights([np.array([9.0])], [np.array([mean])])
        change = eta * change + zeta * (mean - sent)
        model += change
        sent = model + eta * change
        assert own == pytest.approx(sent)
    plain = BlockMomentum(1, momentum=eta, rate=zeta, nesterov=False)
    plain.begin([np.array([1.0])], WORKERS)
    assert plain.combine_weights([np.array([9.0])], [np.array([2.0])])[0] == pytest.approx(1.5)


def test_block_momentum_without_momentum_is_local_sgd() -> None:
    _, mine = trained(lambda: BlockMomentum(5, momentum=0.0))
    _, other = trained(lambda: LocalSGD(5))
    assert mine == pytest.approx(other)


@pytest.mark.parametrize("nesterov", [True, False])
def test_block_momentum_converges_to_the_best_mean(nesterov: bool) -> None:
    _, final = trained(lambda: BlockMomentum(5, nesterov=nesterov), steps=600)
    assert final == pytest.approx(3.0, abs=1e-3)


def test_block_momentum_of_n_workers_moves_faster_than_the_mean() -> None:
    _, slow = trained(lambda: LocalSGD(1), steps=8)
    _, fast = trained(lambda: BlockMomentum(1), steps=8)
    assert slow < fast


def test_elastic_averaging_equals_the_published_formula() -> None:
    ones = [ElasticAveraging(1, beta=0.8) for _ in range(WORKERS)]
    own, centre, alpha = np.array([1.0, 2.0, 3.0, 4.0]), 0.5, 0.8 / WORKERS
    for one in ones:
        one.begin([np.array([centre])], WORKERS)
    for _ in range(3):
        mean = [np.array([own.mean()])]
        found = [one.combine_weights([np.array([value])], mean)[0][0] for one, value in zip(ones, own, strict=True)]
        wanted = own - alpha * (own - centre)
        centre = centre + alpha * float((own - centre).sum())
        assert found == pytest.approx(wanted)
        own = wanted
    assert ones[0].final_weights([np.array([centre])])[0] == pytest.approx(centre)


def test_elastic_averaging_keeps_workers_apart_and_its_final_model_is_the_optimum() -> None:
    weights, final = trained(lambda: ElasticAveraging(2), steps=400)
    assert max(weights) - min(weights) > 0.5
    assert final == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalSGD(0), "every=0 is too small"),
        (lambda: BlockMomentum(1, momentum=1.0), "momentum=1.0: the momentum of block momentum must be at least 0"),
        (lambda: BlockMomentum(1, rate=0.0), "rate=0.0"),
        (lambda: ElasticAveraging(1, beta=0.0), "beta=0.0: beta of elastic averaging"),
        (lambda: create_averaging("local_sdg", {}), "algorithm='local_sdg' is unknown; did you mean local_sgd"),
        (
            lambda: create_averaging("local_sgd", {"beta": 1}),
            "beta: not a setting of algorithm='local_sgd'; it has every",
        ),
        (
            lambda: create_averaging("sync_sgd", {"every": 1}),
            "every: not a setting of algorithm='sync_sgd'; it has no settings",
        ),
    ],
)
def test_invalid_averaging_settings_are_named_in_the_error(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message.replace("(", r"\(")):
        make()


def test_averaging_interval_must_be_a_whole_number_of_steps() -> None:
    with pytest.raises(ArgumentTypeError, match=r"every=1\.5 is a float"):
        create_averaging("elastic_averaging", {"every": 1.5})


def test_averaging_algorithms_are_found_by_name_and_others_return_none() -> None:
    found = create_averaging("block_momentum", {"every": 3})
    assert isinstance(found, BlockMomentum) and found.every == 3
    assert create_averaging("sync_sgd", {}) is None and create_averaging("async_sgd", {}) is None
