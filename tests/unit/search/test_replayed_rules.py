"""Tests that ASHA, Hyperband and PBT decide like naive models of their definitions, on random histories."""

import random

import pytest

from hopsml.search.algorithms.asha import AshaStopper
from hopsml.search.algorithms.hyperband import Hyperband
from hopsml.search.algorithms.pbt import PopulationBased
from hopsml.search.contract import End, Verdict
from hopsml.search.space.space import Searchspace
from tests.unit.search.executor_pool import ExecutorPool
from tests.unit.search.naive_rules import NaiveAsha, NaiveHyperband, NaivePopulation

pytestmark = pytest.mark.fast


def score_function(rng, kind):
    """Reports of one kind: with ties, all negative, or rising with the step."""
    if kind == 0:
        return lambda trial, _: float(rng.randint(0, 3))
    if kind == 1:
        return lambda trial, _: -rng.random()
    return lambda trial, _: trial.step * ((trial.number * 7919) % 101 / 101) + rng.random()


@pytest.mark.parametrize("mode", ["promote", "stop"])
def test_asha_equals_its_naive_model_on_random_histories(mode):
    compared = 0
    for seed in range(800):
        rng = random.Random(seed)
        first, eta = rng.choice([1, 1, 2]), rng.choice([2, 3, 4])
        last = rng.choice([first, 9, 16, 27, 30])
        pool = ExecutorPool(
            AshaStopper(last, first, eta, mode=mode),
            places=rng.randint(1, 8),
            trials=rng.randint(1, 40),
            seed=seed,
            score=score_function(rng, seed % 3),
            stride=rng.choice([1, 1, 3, 12]),
            fails=rng.choice([0, 0, 0.05]),
            returns=rng.choice([0, 0.05]),
            watchers=[NaiveAsha(first, last, eta, mode)],
        )
        compared += sum(event[0] == "report" for event in pool.run())
        if mode == "stop":
            assert not any(event[0] == "resume" for event in pool.log)
    assert compared > 30_000


def test_hyperband_equals_its_naive_model_on_random_histories():
    compared = 0
    for seed in range(250):
        rng = random.Random(seed)
        eta = rng.choice([2, 3, 4])
        last = rng.choice([4, 9, 10, 16, 27])
        model = NaiveHyperband(last, eta)
        pool = ExecutorPool(
            Hyperband(last, reduction_factor=eta, overlap=rng.random() < 0.5),
            places=rng.randint(1, 12),
            trials=rng.randint(1, 60),
            seed=seed,
            score=score_function(rng, seed % 3),
            fails=rng.choice([0, 0, 0.05]),
            returns=rng.choice([0, 0.05]),
            watchers=[model],
        )
        pool.run()
        compared += model.judge()
    assert compared > 500


def test_asha_leaves_no_lane_idle_while_a_trial_is_promotable():
    """At every step of the pool either all slots are busy, or all trials have started and none is promotable."""
    for seed in range(200):
        rng = random.Random(seed)
        model = NaiveAsha(1, 27, 3, "promote")
        pool = ExecutorPool(
            AshaStopper(27, reduction_factor=3),
            places=rng.randint(2, 9),
            trials=30,
            seed=seed,
            score=score_function(rng, seed % 3),
            stride=rng.choice([1, 5]),
            fails=0.02,
            watchers=[model],
        )
        advance = pool._advance
        idle = 0

        def watched(trial, pool=pool, model=model, advance=advance):
            nonlocal idle
            if len(pool.running) < pool.places:
                idle += 1
                assert pool._begun == pool.trials and model.promotable() is None
            advance(trial)

        pool._advance = watched
        pool.run()
        assert idle  # at the end of a search there is less to do than places
        completed = [n for n, outcome in pool.over.items() if outcome.end is End.STOPPED and outcome.step >= 27]
        assert len(completed) <= 30 // 3


def test_asha_continues_a_promotable_trial_without_a_pause():
    asha = AshaStopper(9, reduction_factor=2)
    for number in range(2):
        asha.begin(number, {})
    assert asha.report(0, 1, 0.1) is Verdict.PAUSE
    assert asha.report(1, 1, 0.2) is Verdict.CONTINUE  # the better of two: no pause
    assert asha.resume() is None


def test_asha_resumes_promotable_trials_of_the_highest_rung_first():
    """Several trials are promotable because no slot requested one for a while."""
    asha = AshaStopper(16, reduction_factor=2)
    for number in range(6):
        asha.begin(number, {})
    first = [asha.report(number, 1, score) for number, score in enumerate([0.5, 0.6, 0.7, 0.1])]
    assert first == [Verdict.PAUSE, Verdict.CONTINUE, Verdict.CONTINUE, Verdict.PAUSE]
    assert [asha.report(1, 2, 0.6), asha.report(2, 2, 0.5)] == [Verdict.PAUSE] * 2
    assert [asha.report(4, 1, 0.0), asha.report(5, 1, 0.0)] == [
        Verdict.PAUSE
    ] * 2  # six have arrived: three may continue
    assert [asha.resume() for _ in range(3)] == [1, 0, None]


def test_population_based_training_equals_its_naive_model_on_random_histories():
    space = Searchspace(
        lr=("LOGUNIFORM", [1e-4, 1.0]), layers=("INTEGER", [1, 9]), act=("CATEGORICAL", ["relu", "gelu"]),
        width=("DISCRETE", [8, 16, 64]),
    )  # fmt: skip
    exploits = paused = 0
    for seed in range(250):
        rng = random.Random(seed)
        population, interval, last = rng.randint(2, 12), rng.randint(1, 5), rng.randint(5, 25)
        quantile = rng.choice([0.2, 0.25, 0.5])
        configs = space.get_random_parameter_values(24, seed=seed)
        model = NaivePopulation(space, population, interval, last, quantile, (1.2, 0.8))
        pool = ExecutorPool(
            PopulationBased(space, population, interval, last, quantile, seed=seed),
            places=rng.randint(1, 12),
            trials=rng.choice([population, population, population // 2, 2 * population]),
            seed=seed,
            score=score_function(rng, seed % 3),
            stride=rng.choice([1, 1, 3, 12]),
            fails=rng.choice([0, 0, 0.02]),
            returns=rng.choice([0, 0.02]),
            config=configs.__getitem__,
            watchers=[model],
        )
        log = pool.run()
        exploits += model.exploits
        paused += sum(event[0] == "report" and event[-1] is Verdict.PAUSE for event in log)
    assert exploits > 1_000 and paused > 1_000
