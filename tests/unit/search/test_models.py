"""Tests of the mathematics of model-based searchers: likelihood, posterior, improvement, features."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import scipy  # its parts are imported by the modules that use them

from hopsml.search.algorithms.evolution import CmaEs, DifferentialEvolution
from hopsml.search.algorithms.gaussian_process import (
    FeatureEncoder,
    Kernel,
    Posterior,
    log_improvement,
    log_improvement_slope,
    log_likelihood,
)
from hopsml.search.algorithms.gp import MODELLED_AT_MOST, Gp, _kept, yeo_johnson
from hopsml.search.algorithms.random import RandomSearcher
from hopsml.search.algorithms.tpe import Tpe
from hopsml.search.contract import End, Outcome, Suggestion, Wait
from hopsml.search.space.space import Searchspace
from tests.unit.search.driving import drive

pytestmark = pytest.mark.fast

DRAW = np.random.default_rng(5)
ROWS, VALUES = DRAW.random((12, 3)), DRAW.normal(size=12)
KERNEL = Kernel(1.7, (0.4, 0.9, 2.0), 0.03)


def squares(rows: np.ndarray) -> np.ndarray:
    return (rows.T[:, :, None] - rows.T[:, None, :]) ** 2


def test_gp_likelihood_and_posterior_equal_those_of_scikit_learn() -> None:
    """Rasmussen and Williams in two implementations that share nothing."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel(1.7) * Matern([0.4, 0.9, 2.0], nu=2.5) + WhiteKernel(0.03)
    theirs = GaussianProcessRegressor(kernel, alpha=1e-9, optimizer=None).fit(ROWS, VALUES)
    logarithms = np.log([1.7, 0.4, 0.9, 2.0, 0.03])
    value, gradient = log_likelihood(logarithms, squares(ROWS), VALUES)
    expected, expected_gradient = theirs.log_marginal_likelihood(logarithms, eval_gradient=True)
    assert value == pytest.approx(expected, rel=1e-9)
    assert gradient == pytest.approx(expected_gradient, rel=1e-6)
    new = DRAW.random((5, 3))
    mean, deviation = Posterior(KERNEL, ROWS, VALUES).at(new)
    expected_mean, expected_deviation = theirs.predict(new, return_std=True)
    assert mean == pytest.approx(expected_mean, rel=1e-7)
    assert deviation**2 + 0.03 == pytest.approx(expected_deviation**2, rel=1e-6)  # theirs is that of an observation


def test_likelihood_gradient_equals_the_numeric_one() -> None:
    logarithms = np.log([1.7, 0.4, 0.9, 2.0, 0.03])
    _, gradient = log_likelihood(logarithms, squares(ROWS), VALUES)
    numeric = scipy.optimize.approx_fprime(logarithms, lambda x: log_likelihood(x, squares(ROWS), VALUES)[0], 1e-6)
    assert gradient == pytest.approx(numeric, rel=1e-4, abs=1e-5)


def test_log_improvement_equals_the_textbook_formula() -> None:
    mean, deviation = np.array([0.3, -1.0, 2.0, 0.0]), np.array([0.5, 0.4, 0.1, 3.0])
    z = (mean - 0.2) / deviation
    expected = (mean - 0.2) * scipy.stats.norm.cdf(z) + deviation * scipy.stats.norm.pdf(z)
    assert np.exp(log_improvement(mean, deviation, 0.2)) == pytest.approx(expected, rel=1e-9)


def test_log_improvement_far_from_the_best_is_finite_and_strictly_falling() -> None:
    """Where the improvement underflows, its logarithm still falls steadily."""
    values = log_improvement(-np.geomspace(0.5, 1e6, 200), np.ones(200), 0.0)
    assert np.isfinite(values).all()
    assert (np.diff(values) < 0).all()
    assert values[-1] == pytest.approx(-0.5e12, rel=1e-6)


@pytest.mark.parametrize("best", [-0.5, 1.0, 30.0])
def test_improvement_gradient_equals_the_numeric_one(best: float) -> None:
    posterior = Posterior(KERNEL, ROWS, VALUES)
    for row in DRAW.random((4, 3)):
        value, gradient = log_improvement_slope(posterior, row, best)
        assert value == pytest.approx(float(log_improvement(*posterior.at(row[None]), best)[0]), rel=1e-8)
        numeric = scipy.optimize.approx_fprime(row, lambda x: log_improvement_slope(posterior, x, best)[0], 1e-7)
        assert gradient == pytest.approx(numeric, rel=1e-3, abs=1e-3)


def test_encoded_features_of_points_equal_those_of_their_configurations() -> None:
    """Points of one configuration have one place, those of two have two; categories are equally far from each other."""
    space = Searchspace(
        kind=("CATEGORICAL", ["a", "b", "c"], {"n": [2, 3]}),
        n=("INTEGER", [1, 3]),
        w=("LOGINTEGER", [1, 64]),
        d=("DISCRETE", [10, 20], {"kind": ["b"]}),
        x=("DOUBLE", [0.0, 1.0], {"w": [1, 2, 3]}),
        y=("DOUBLE", [0.0, 1.0]),
    )
    features = FeatureEncoder(space)
    points = np.random.default_rng(1).random((400, 6))
    rows = features.of(points)
    assert rows.shape == (400, features.count) == (400, 8)
    configs = [space.inverse_transform(point.tolist()) for point in points]
    again = features.of(np.array([space.transform(config) for config in configs]))
    assert rows == pytest.approx(again, abs=1e-12)
    seen = {space.key(config): row.tobytes() for config, row in zip(configs, np.round(again, 9), strict=True)}
    assert len(set(seen.values())) == len(seen)
    three = [
        space.transform({"n": 2, "w": 9, "y": 0.5, "kind": kind} | ({"d": 10} if kind == "b" else {})) for kind in "abc"
    ]
    a, b, c = features.of(np.array(three))[:, :3]
    assert [np.linalg.norm(a - b), np.linalg.norm(b - c), np.linalg.norm(a - c)] == pytest.approx([1.0] * 3)
    assert [space.keys()[place] for place, _ in features.smooth] == ["y"]


def test_yeo_johnson_transformation_equals_that_of_scipy() -> None:
    values = np.random.default_rng(3).gamma(0.7, size=60)
    values = (values - values.mean()) / values.std()
    ours, theirs = yeo_johnson(values), scipy.stats.yeojohnson(values)[0]
    assert scipy.stats.skew(ours) == pytest.approx(scipy.stats.skew(theirs), abs=0.1)
    assert (np.argsort(ours) == np.argsort(values)).all()


def test_long_history_is_reduced_to_the_best_and_the_newest() -> None:
    scored = [({"x": number}, float(-number)) for number in range(1000)]
    retained = [config["x"] for config, _ in _kept(scored)]
    assert len(retained) == MODELLED_AT_MOST
    assert retained == [*range(150), *range(850, 1000)]
    assert _kept(scored[:300]) == scored[:300]


def test_gp_searcher_finds_the_maximum_among_categories() -> None:
    space = Searchspace(x=("DOUBLE", [0, 1]), n=("INTEGER", [0, 20]), kind=("CATEGORICAL", list("abcd")))

    def score(config: dict[str, object]) -> float:
        return -((float(config["x"]) - 0.3) ** 2) - (float(config["n"]) / 20 - 0.6) ** 2 - (config["kind"] != "c")  # type: ignore[arg-type]

    best = drive(Gp(space, seed=2, num_warmup_trials=8), score, 22).best
    assert best > -0.005


def test_tpe_does_not_change_or_use_optunas_logging(caplog: pytest.LogCaptureFixture) -> None:
    import optuna

    optuna.logging.enable_propagation()
    level = optuna.logging.get_verbosity()
    try:
        with caplog.at_level(logging.DEBUG):
            drive(Tpe(Searchspace(x=("DOUBLE", [0, 1])), seed=1, num_warmup_trials=2), lambda config: config["x"], 5)
    finally:
        optuna.logging.disable_propagation()
    assert optuna.logging.get_verbosity() == level == logging.INFO
    assert caplog.records == []


# ---------------------------------------------------------------- differential evolution


def test_differential_evolution_waits_for_the_previous_generation() -> None:
    searcher = DifferentialEvolution(
        Searchspace(x=("DOUBLE", [0, 1]), y=("DOUBLE", [0, 1])), 3, generations=2, population=4
    )
    assert searcher.total == 12
    answers = [searcher.ask(number) for number in range(4)]
    assert all(isinstance(one, Suggestion) for one in answers)
    assert searcher.ask(4) is Wait.LATER
    for number in (2, 0, 3):
        searcher.tell(number, Outcome(End.COMPLETED, 1.0))
        assert searcher.ask(4) is Wait.LATER
    searcher.tell(1, Outcome(End.FAILED))
    for number in range(4, 12):
        assert isinstance(searcher.ask(number), Suggestion)
        searcher.tell(number, Outcome(End.COMPLETED, float(number)))
    assert searcher.ask(12) is Wait.DONE
    assert [searcher.generation_of(number) for number in range(12)] == [0] * 4 + [1] * 4 + [2] * 4


def test_differential_evolution_child_is_its_base_plus_a_scaled_difference() -> None:
    """rand/1/bin (Storn and Price 1997): base + F (one - other); with crossover 1 in every place."""
    space = Searchspace(x=("DOUBLE", [0, 1]), y=("DOUBLE", [0, 1]))
    searcher = DifferentialEvolution(space, 5, population=6, mutation=0.4, crossover=1.0)
    parents = []
    for number in range(6):
        answer = searcher.ask(number)
        assert isinstance(answer, Suggestion)
        parents.append(space.transform(answer.config))
        searcher.tell(number, Outcome(End.COMPLETED, 0.0))
    inside = 0
    for number in range(6, 12):
        answer = searcher.ask(number)
        assert isinstance(answer, Suggestion)
        child = space.transform(answer.config)
        others = [parent for place, parent in enumerate(parents) if place != number - 6]
        mutants = [
            [a + 0.4 * (b - c) for a, b, c in zip(one, two, three, strict=True)]
            for one in others
            for two in others
            for three in others
            if len({id(one), id(two), id(three)}) == 3
        ]
        within = [mutant for mutant in mutants if all(0 <= value <= 1 for value in mutant)]
        inside += any(child == pytest.approx(mutant, abs=1e-9) for mutant in within)
    assert inside >= 4  # the rest left the cube and was put back


def test_differential_evolution_replaces_a_member_only_by_a_child_as_good() -> None:
    searcher = DifferentialEvolution(Searchspace(x=("DOUBLE", [0, 1])), 1, population=4)
    driven = drive(searcher, lambda config: -abs(config["x"] - 0.7), 80, lanes=4)
    assert driven.best > -1e-3
    generations = [
        [driven.ended[number].score or 0.0 for number in range(start, start + 4)] for start in range(0, 80, 4)
    ]
    assert max(generations[-1]) > max(generations[0])


# ---------------------------------------------------------------- CMA-ES


def test_cmaes_restarts_with_a_larger_population_on_a_plateau() -> None:
    """On a plateau nothing can be improved: it converges, and is restarted (IPOP)."""
    searcher = CmaEs(Searchspace(x=("DOUBLE", [0, 1]), y=("DOUBLE", [0, 1])), seed=1, population=4)
    drive(searcher, lambda config: 0.0, 300)
    assert searcher._optimizer.population_size > 4


def test_cmaes_finds_the_best_integers() -> None:
    space = Searchspace(
        n=("INTEGER", [0, 30]), d=("DISCRETE", [1, 2, 4, 8]), x=("LOGUNIFORM", [1e-3, 1.0]), w=("LOGINTEGER", [1, 1024])
    )

    def score(config: dict[str, float]) -> float:
        return -abs(config["n"] - 22) / 5 - abs(math.log2(config["d"]) - 2) - abs(math.log10(config["x"]) + 1)

    driven = drive(CmaEs(space, seed=3), score, 240, lanes=4)
    best = max(driven.ended, key=lambda number: driven.ended[number].score or -1e9)
    assert driven.configs[best]["d"] == 4
    assert abs(driven.configs[best]["n"] - 22) <= 1
    assert abs(math.log10(driven.configs[best]["x"]) + 1) < 0.1


# ---------------------------------------------------------------- random


def test_sobol_points_fill_each_axis_evenly() -> None:
    space = Searchspace(x=("DOUBLE", [0, 1]), y=("DOUBLE", [0, 1]))
    configs = drive(RandomSearcher(space, seed=4, sobol=True), lambda config: 0.0, 64).configs
    for name in ("x", "y"):
        assert sorted(int(64 * config[name]) for config in configs) == list(range(64))


def test_random_values_are_uniform_on_their_scale() -> None:
    space = Searchspace(x=("DOUBLE", [-1, 1]), u=("LOGUNIFORM", [1e-4, 1.0]))
    configs = drive(RandomSearcher(space, seed=4), lambda config: 0.0, 4000).configs
    assert scipy.stats.kstest([(config["x"] + 1) / 2 for config in configs], "uniform").pvalue > 1e-3
    assert scipy.stats.kstest([1 + math.log10(config["u"]) / 4 for config in configs], "uniform").pvalue > 1e-3


def test_random_searcher_does_not_repeat_learned_configurations() -> None:
    space = Searchspace(a=("INTEGER", [1, 6]))
    searcher = RandomSearcher(space, seed=2)
    searcher.learn({"a": 3}, Outcome(End.COMPLETED, 1.0))
    other = RandomSearcher(space, seed=9)
    other.restore(searcher.state())
    driven = drive(searcher, lambda config: 0.0, 100)
    assert sorted(config["a"] for config in driven.configs) == [1, 2, 4, 5, 6]
    assert drive(other, lambda config: 0.0, 100).configs == driven.configs


def test_random_searcher_exhausts_a_space_with_rare_configurations() -> None:
    """Half of all draws give one configuration; the others are listed when draws no longer find them."""
    space = Searchspace(kind=("CATEGORICAL", ["plain", "rich"]), n=("INTEGER", [1, 900], {"kind": ["rich"]}))
    assert space.size() == 901
    driven = drive(RandomSearcher(space, seed=1), lambda config: 0.0, 1000)
    assert driven.done and len({space.key(config) for config in driven.configs}) == len(driven.configs) == 901
