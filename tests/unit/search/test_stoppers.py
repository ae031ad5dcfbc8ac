"""Contract of every stopper, whatever its rule is."""

import json
import random

import pytest

from hopsml.errors import ArgumentError
from hopsml.search import registry
from hopsml.search.algorithms.asha import AshaStopper
from hopsml.search.algorithms.hyperband import Hyperband
from hopsml.search.algorithms.median import MedianStop
from hopsml.search.algorithms.pbt import PB2, PopulationBased
from hopsml.search.contract import End, Exploit, Outcome, Verdict
from hopsml.search.space.space import Searchspace
from tests.unit.search.executor_pool import ExecutorPool

pytestmark = pytest.mark.fast

SPACE = Searchspace(
    lr=("LOGUNIFORM", [1e-4, 1.0]),
    layers=("INTEGER", [1, 9]),
    act=("CATEGORICAL", ["relu", "gelu"]),
    slope=("DOUBLE", [0.0, 0.3], {"act": ["relu"]}),
)
CONFIGS = SPACE.get_random_parameter_values(100, seed=5)
STOPPERS = {
    "asha": lambda: AshaStopper(27, reduction_factor=3),
    "asha endless": lambda: AshaStopper(reduction_factor=2),
    "asha brackets": lambda: AshaStopper(16, reduction_factor=2, brackets=3),
    "asha stop": lambda: AshaStopper(27, reduction_factor=3, mode="stop"),
    "hyperband": lambda: Hyperband(9),
    "hyperband, one bracket after another": lambda: Hyperband(9, overlap=False),
    "hyperband, two brackets": lambda: Hyperband(9, n_iterations=2),
    "median": lambda: MedianStop(min_trials=3),
    "pbt": lambda: PopulationBased(SPACE, 8, interval=3, max_step=30, seed=1),
    "pb2": lambda: PB2(SPACE, 8, interval=10, max_step=30, seed=1),
    "pbt in step": lambda: PopulationBased(SPACE, 8, interval=3, max_step=30, seed=1, synchronous=True),
}
every_stopper = pytest.mark.parametrize("make", STOPPERS.values(), ids=STOPPERS.keys())


def rising_score(trial, rng):
    """Rises with the step, differently for each trial; exact in binary, so that adding a constant changes no difference."""
    return rng.randint(0, 64) / 64 + trial.step * (trial.number * 37 % 16)


def make_pool(make, seed=3, **changes):
    settings = {"places": 4, "trials": 20, "score": rising_score, "last_step": 40, "config": CONFIGS.__getitem__}
    return ExecutorPool(make(), seed=seed, **{**settings, **changes})


def restore_through_json(make):
    """A new stopper in the place of the old one, which knows no more than its state as JSON."""

    def taken_over(old):
        new = make()
        new.restore(json.loads(json.dumps(old.state(), allow_nan=False)))
        return new

    return taken_over


def answers(log):
    """Return the stopper's answers, without the scores."""
    return [event if event[0] != "report" else (*event[:3], event[4]) for event in log if event[0] != "end"]


@every_stopper
def test_stopper_gives_the_same_answers_to_the_same_reports(make):
    assert make_pool(make).run() == make_pool(make).run()


@every_stopper
@pytest.mark.parametrize("seed", range(2))
def test_restored_stopper_continues_identically(make, seed):
    unsteady = {"fails": 0.02, "returns": 0.02, "stride": 2, "seed": seed}
    assert make_pool(make, taken_over=restore_through_json(make), **unsteady).run() == make_pool(make, **unsteady).run()


@every_stopper
def test_stopper_treats_negative_scores_like_others(make):
    below = make_pool(make, score=lambda trial, rng: rising_score(trial, rng) - 2.0**20)
    above = make_pool(make)
    assert answers(below.run()) == answers(above.run())
    assert all(outcome.score < 0 for outcome in below.over.values() if outcome.score is not None)


@every_stopper
def test_stopper_ends_all_trials_when_scores_tie(make):
    pool = make_pool(make, score=lambda trial, rng: -1.0)
    log = pool.run()
    assert not pool.running and not pool.paused and pool.over
    if isinstance(pool.stopper, MedianStop):  # no trial is worse than the median
        assert not any(event[-1] is Verdict.STOP for event in log)
    else:  # the first at a rung, or the whole population, are good enough
        assert any(outcome.step and outcome.step >= 9 for outcome in pool.over.values())


@every_stopper
@pytest.mark.parametrize("seed", range(8))
def test_stopper_ends_every_search_with_failures_and_rare_reports(make, seed):
    """Whatever fails, returns early or reports rarely; also with fewer trials than a bracket or population has."""
    rng = random.Random(seed)
    pool = make_pool(
        make, seed, places=rng.choice([1, 3, 30]), trials=rng.choice([1, 2, 7, 40]), stride=rng.choice([1, 4, 50]),
        fails=rng.choice([0, 0.1, 0.9]), returns=rng.choice([0, 0.1]),
    )  # fmt: skip
    pool.run(most=20_000)
    assert not pool.running and not pool.paused
    limit = getattr(pool.stopper, "total", None)
    if isinstance(pool.stopper, PopulationBased):
        limit = None  # failed ones are replaced
    assert len(pool.over) == min(pool.trials, limit or pool.trials)


@every_stopper
def test_stopper_stops_each_trial_at_max_step(make):
    """Stopped at the first report at or after max_step, also if it is the only one."""
    for stride in (1, 5, 100):
        pool = make_pool(make, stride=stride, last_step=200)
        for event in pool.run():
            if event[0] == "report" and pool.stopper.max_step is not None:
                reached = event[2] >= pool.stopper.max_step
                assert event[-1] is Verdict.STOP if reached else event[-1] is not None, event


@every_stopper
def test_stopper_repeats_its_answer_for_a_report_after_it(make):
    """A trial's process learns of its end later, and reports in between."""
    stopper = make()
    running = set(range(8))
    for number in running:
        stopper.begin(number, CONFIGS[number])
    repeated = 0
    for step in range(1, 41):
        for number in sorted(running):
            answer = stopper.report(number, step, float(number))
            if answer in (Verdict.STOP, Verdict.PAUSE):
                repeated += 1
                running.discard(number)
                assert stopper.report(number, step + 1, 100.0) is answer
        if step == 2 and isinstance(stopper, MedianStop):
            for number in (5, 6, 7):
                running.discard(number)
                stopper.end(number, Outcome(End.COMPLETED, float(number), step))
            stopper.begin(8, CONFIGS[8])
            assert stopper.report(8, 1, -1.0) is stopper.report(8, 2, 100.0) is Verdict.STOP
            repeated += 1
    assert repeated


@pytest.mark.parametrize("make", [STOPPERS["pbt"], STOPPERS["pb2"]], ids=["pbt", "pb2"])
def test_population_member_never_pauses_while_every_member_has_a_lane(make):
    log = make_pool(make, places=8, trials=8).run()
    assert any(isinstance(event[-1], Exploit) for event in log)
    assert not any(event[-1] is Verdict.PAUSE for event in log)


def test_population_on_one_lane_alternates_between_members():
    pool = make_pool(STOPPERS["pbt"], places=1, trials=8, score=lambda trial, rng: -float(trial.number))
    behind = {}
    for event in pool.run():
        if event[0] == "report":
            behind[event[1]] = event[2] // 3
            assert max(behind.values()) - min(behind.get(number, 0) for number in range(8)) <= 2
    assert {outcome.step for outcome in pool.over.values()} == {30}


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: AshaStopper(0), "max_step=0"),
        (lambda: AshaStopper(4, min_step=9), "min_step=9 is above max_step=4"),
        (lambda: AshaStopper(9, reduction_factor=1), "reduction_factor=1"),
        (lambda: AshaStopper(9, reduction_factor=3, brackets=4), "brackets=4"),
        (lambda: AshaStopper(9, mode="sometimes"), "mode='sometimes'"),
        (lambda: Hyperband(), "max_step is missing"),
        (lambda: Hyperband(9, n_iterations=0), "n_iterations=0"),
        (lambda: MedianStop(min_trials=0), "min_trials=0"),
        (lambda: MedianStop(interval=1.5), r"interval=1\.5"),
        (lambda: PopulationBased(), "space is missing"),
        (lambda: PopulationBased(SPACE), "population is missing"),
        (lambda: PopulationBased(Searchspace(), 8), "search space is empty"),
        (lambda: PopulationBased(SPACE, 1), "population=1"),
        (lambda: PopulationBased(SPACE, 8, interval=0), "interval=0"),
        (lambda: PopulationBased(SPACE, 8, quantile=0.6), r"quantile=0\.6"),
        (lambda: PopulationBased(SPACE, 8, resample_probability=2), "resample_probability=2"),
        (lambda: PopulationBased(SPACE, 8, factors=(0, 1)), r"factors=\(0, 1\)"),
        (lambda: PB2(SPACE, 8, max_step=0), "max_step=0"),
    ],
)
def test_invalid_stopper_arguments_are_named(make, names):
    with pytest.raises(ArgumentError, match=names):
        make()


def test_every_stopper_is_found_by_name():
    assert isinstance(registry.stopper("ASHA", max_step=9), AshaStopper)
    assert isinstance(registry.stopper("hyperband", max_step=9), Hyperband)
    assert isinstance(registry.stopper("median"), MedianStop)
    assert isinstance(registry.stopper("PBT", space=SPACE, population=4), PopulationBased)
    assert isinstance(registry.stopper("pb2", space=SPACE, population=4), PB2)
