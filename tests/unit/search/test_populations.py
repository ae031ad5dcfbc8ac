"""Tests of population based training and bandits on problems with known answers."""

import random

import numpy as np
import pytest

from hopsml.search.algorithms.gaussian_process import Posterior
from hopsml.search.algorithms.pbt import PB2, PopulationBased, TimeVaryingKernel, fit_kernel, perturbed
from hopsml.search.algorithms.random import generator
from hopsml.search.contract import End, Exploit, Outcome, Verdict
from hopsml.search.space.space import Searchspace

pytestmark = pytest.mark.fast

WEIGHTS = Searchspace(h0=("DOUBLE", [0.0, 1.0]), h1=("DOUBLE", [0.0, 1.0]))


def best_of_toy_population(make, steps=300):
    """Figure 2 of Jaderberg et al. 2017: maximise 1.2 - x^2 - y^2, of which a trial descends only what its h0 and h1 show.

    Two trials, one of which sees x alone and the other y alone; the best value that one of them comes to.
    """
    stopper = make()
    configs = [{"h0": 1.0, "h1": 0.0}, {"h0": 0.0, "h1": 1.0}]
    points = [np.array([0.9, 0.8]) for _ in configs]
    if stopper:
        for number, config in enumerate(configs):
            stopper.begin(number, config)
    for step in range(1, steps + 1):
        for number, config in enumerate(configs):
            points[number] = points[number] * (1 - 0.02 * np.array([config["h0"], config["h1"]]))
            answer = stopper.report(number, step, 1.2 - float(points[number] @ points[number])) if stopper else None
            if isinstance(answer, Exploit):
                points[number], configs[number] = points[answer.source].copy(), answer.config
    return max(1.2 - float(point @ point) for point in points)


def test_population_based_training_exceeds_any_fixed_hyperparameters():
    assert best_of_toy_population(lambda: None) < 0.6
    for seed in range(5):
        assert (
            best_of_toy_population(lambda seed=seed: PopulationBased(WEIGHTS, 2, interval=4, quantile=0.5, seed=seed))
            > 1.05
        )
    assert best_of_toy_population(lambda: PB2(WEIGHTS, 2, interval=10, quantile=0.5, seed=0)) > 1.05


def test_perturbed_configurations_follow_the_paper_and_stay_in_the_space():
    space = Searchspace(
        lr=("LOGUNIFORM", [1e-4, 1.0]), layers=("INTEGER", [1, 9]), width=("DISCRETE", [8, 16, 64]),
        act=("CATEGORICAL", ["relu", "gelu"]), slope=("DOUBLE", [0.0, 0.3], {"act": ["relu"]}),
    )  # fmt: skip
    before = {"lr": 0.01, "layers": 1, "width": 16, "act": "gelu"}
    seen = [perturbed(space, before, generator(seed), 0.0, (1.2, 0.8)) for seed in range(40)]
    assert {round(config["lr"], 6) for config in seen} == {0.012, 0.008}
    assert {config["layers"] for config in seen} == {1, 2} and {config["width"] for config in seen} == {8, 64}
    assert {config["act"] for config in seen} == {"gelu"}
    drawn = [perturbed(space, before, generator(seed), 0.5, (1.2, 0.8)) for seed in range(40)]
    assert all(space.contains(config) for config in drawn)
    assert {"slope" in config for config in drawn} == {True, False}  # there by the change of the category
    assert (
        max(perturbed(space, {**before, "lr": 1.0}, generator(seed), 0.0, (1.2, 0.8))["lr"] for seed in range(20))
        == 1.0
    )


def test_failed_trial_is_no_exploit_source():
    stopper = PopulationBased(WEIGHTS, 4, interval=1, seed=1)
    for number in range(4):
        stopper.begin(number, {"h0": number / 4, "h1": 0.5})
    for number in (1, 2, 3):
        assert stopper.report(number, 1, float(number)) is Verdict.CONTINUE
    stopper.end(3, Outcome(End.FAILED))
    answer = stopper.report(0, 1, 0.0)
    assert isinstance(answer, Exploit) and answer.source == 2


def test_pb2_suggestions_approach_the_highest_gain():
    """Gains are highest at 0.7 on a scale; chance would be 0.25 away in the mean."""
    space = Searchspace(x=("DOUBLE", [0.0, 1.0]), act=("CATEGORICAL", ["relu", "gelu"]))
    away = []
    for seed in range(10):
        rng = random.Random(seed)
        stopper = PB2(space, 8, interval=1, quantile=0.5, seed=seed, resample_probability=0.0)
        configs = {n: {"x": rng.random(), "act": "relu"} for n in range(8)}
        totals = dict.fromkeys(configs, 0.0)
        for number, config in configs.items():
            stopper.begin(number, config)
        for step in range(1, 13):
            for number in configs:
                totals[number] += 1.0 - (configs[number]["x"] - 0.7) ** 2
                answer = stopper.report(number, step, totals[number])
                if isinstance(answer, Exploit):
                    configs[number], totals[number] = answer.config, totals[answer.source]
                    assert answer.config["act"] == "relu" and space.contains(answer.config)
                    if step > 1:
                        away.append(abs(answer.config["x"] - 0.7))
    assert len(away) > 20 and np.median(away) < 0.12, (len(away), np.median(away))


def test_old_observations_have_less_weight_in_the_time_varying_kernel():
    """Older observations predict less, and the likelihood tells a changing objective from a constant one."""
    kernel = TimeVaryingKernel(1.0, (0.3,), 0.01, forgetting=0.3)
    posterior = Posterior(kernel, np.array([[0.0, 0.5]]), np.array([1.0]))
    mean, deviation = posterior.at(np.array([[0.0, 0.5], [5.0, 0.5], [20.0, 0.5]]))
    assert mean[0] > mean[1] > mean[2] > 0 and deviation[0] < deviation[1] < deviation[2]

    draw = np.random.default_rng(1)
    rows = np.column_stack([np.repeat(np.arange(10.0), 6), draw.random(60)])
    still = np.sin(5 * rows[:, 1])
    turning = np.sin(5 * rows[:, 1] + 2.0 * rows[:, 0])
    assert fit_kernel(rows, still - still.mean()).forgetting < fit_kernel(rows, turning - turning.mean()).forgetting


def test_synchronous_population_compares_equal_amounts_of_training():
    """Everybody waits for the slowest; the worst take over from the best, whoever came first."""
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        stopper = PopulationBased(WEIGHTS, 4, interval=2, seed=1, synchronous=True)
        for number in range(4):
            stopper.begin(number, {"h0": number / 4, "h1": 0.5})
        answers = {}
        for number in order:
            assert stopper.report(number, 1, 100.0 - number) is Verdict.CONTINUE  # of the middle: it does not count
            answers[number] = stopper.report(number, 2, float(number))
            assert number == order[-1] or stopper.resume() is None
        late = answers.pop(order[-1])
        assert set(answers.values()) == {Verdict.PAUSE}
        assert [stopper.resume() for _ in range(4)] == [*sorted(answers), None]
        early = {number: stopper.report(number, 3, 0.0) for number in range(4) if number != order[-1]}
        all_answers = {**early, order[-1]: late}
        exploits = {number: answer for number, answer in all_answers.items() if isinstance(answer, Exploit)}
        assert {number: answer.source for number, answer in exploits.items()} == {0: 3}
        assert all(all_answers[number] is Verdict.CONTINUE for number in (1, 2, 3))


def test_synchronous_population_does_not_wait_for_a_failed_member():
    stopper = PopulationBased(WEIGHTS, 3, interval=1, seed=1, synchronous=True)
    for number in range(3):
        stopper.begin(number, {"h0": 0.5, "h1": 0.5})
    assert [stopper.report(number, 1, float(number)) for number in (0, 1)] == [Verdict.PAUSE] * 2
    assert stopper.resume() is None
    stopper.end(2, Outcome(End.FAILED))
    assert [stopper.resume() for _ in range(3)] == [0, 1, None]
