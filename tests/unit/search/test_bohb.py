"""Tests of BOHB's model: valid densities, and the budgets that it learns from."""

import numpy as np
import pytest

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.tpe import Bohb, Density
from hopsml.search.contract import End, Outcome
from hopsml.search.space.space import Searchspace

pytestmark = pytest.mark.fast

LINE = Searchspace(x=("DOUBLE", [0.0, 1.0]))


def test_density_integrates_to_1_over_the_whole_space():
    draw = np.random.default_rng(0)
    rows = np.column_stack([0.4 + 0.2 * draw.random(30), draw.integers(3, size=30), np.zeros(30)])
    density = Density(rows, [None, 3, 1], 1e-3)
    grid = np.linspace(-1, 2, 3001)
    total = sum(
        float(np.trapezoid(np.exp(density.log(np.column_stack([grid, np.full(3001, c), np.zeros(3001)]))), grid))
        for c in range(3)
    )
    assert total == pytest.approx(1.0, abs=1e-6)


def test_density_is_the_mean_of_the_kernels_of_its_rows():
    rows = np.array([[0.2, 0.0], [0.4, 1.0], [0.4, 1.0]])
    density = Density(rows, [None, 2], 1e-3)
    width, other = density.widths
    expected = 0.0
    for unit, category in rows:
        normal = np.exp(-0.5 * ((0.3 - unit) / width) ** 2) / width
        expected += normal * (1 - other if category == 1 else other) / 3
    assert np.exp(density.log(np.array([[0.3, 1.0]])))[0] == pytest.approx(expected / np.sqrt(2 * np.pi))


def test_density_samples_stay_in_the_cube_near_the_rows():
    rows = np.array([[0.02, 2.0], [0.05, 2.0], [0.08, 2.0]])
    points = Density(rows, [None, 4], 1e-3).sample(500, np.random.default_rng(0), 3.0)
    assert points[:, 0].min() >= 0 and points[:, 0].max() <= 0.5 and set(points[:, 1]) <= {0.0, 1.0, 2.0, 3.0}
    assert (points[:, 1] == 2).mean() > 0.8


def test_bohb_models_the_trials_with_the_largest_step():
    """After one step small values look good; after nine, which fewer have seen, large ones do."""
    bohb = Bohb(LINE, seed=1, random_fraction=0.0)
    for number in range(30):
        x = bohb.ask(number).config["x"]
        bohb.report(number, 1, -x)
        if number % 3 == 0 or x > 0.8:
            for step in range(2, 10):
                bohb.report(number, step, x if step >= 9 else -x)
            bohb.tell(number, Outcome(End.COMPLETED, x, 9))
        else:
            bohb.tell(number, Outcome(End.STOPPED, -x, 1))
    suggested = [bohb.ask(number).config["x"] for number in range(30, 50)]
    assert np.mean(suggested) > 0.6


def test_bohb_treats_failed_trials_as_bad():
    bohb = Bohb(LINE, seed=1, random_fraction=0.0)
    for number in range(40):
        x = bohb.ask(number).config["x"]
        bohb.tell(number, Outcome(End.FAILED) if x > 0.5 else Outcome(End.COMPLETED, 0.0))
    assert np.mean([bohb.ask(number).config["x"] < 0.5 for number in range(40, 60)]) > 0.7


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_points": 1},
        {"num_samples": 0},
        {"factor": 1},
        {"top_fraction": 2},
        {"random_fraction": -1},
        {"bandwidth_factor": 0},
    ],
)
def test_invalid_bohb_arguments_are_named(arguments):
    with pytest.raises(ArgumentError, match=next(iter(arguments))):
        Bohb(LINE, **arguments)
