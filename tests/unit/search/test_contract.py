"""Contract of every searcher of the registry."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.search import registry
from hopsml.search.contract import Config, End, Outcome, Searcher, Suggestion, Wait
from hopsml.search.space.space import Searchspace
from tests.unit.search.driving import drive

pytestmark = pytest.mark.fast

# Arguments of each searcher with which few trials show its behaviour.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "sobol": {"sobol": True},
    "grid": {"points": 3},
    "tpe": {"num_warmup_trials": 4, "random_fraction": 0.1},
    "gp": {"num_warmup_trials": 4, "random_fraction": 0.1},
    "differential_evolution": {"population": 5},
}
# Their configurations are not of the space: there is none, or a budget besides.
OF_ANOTHER_KIND = ("none", "asha", "hyperband")
THERE = [
    name
    for name, place in registry.SEARCHERS.items()
    if name not in OF_ANOTHER_KIND and importlib.util.find_spec(place.split(":")[0])
]
NAMES = [*THERE, "sobol"]  # random search has two ways to draw
EVERY = pytest.mark.parametrize("name", NAMES)
LIGHT = [name for name in NAMES if name not in ("gp", "tpe", "bohb")]
WITH_MODEL = ["tpe", "gp", "cmaes", "differential_evolution"]


def make(name: str, space: Searchspace, seed: int | None = 1, **more: Any) -> Searcher:
    given_arguments = {**ARGUMENTS.get(name, {}), **more}
    return registry.searcher("random" if name == "sobol" else name, space, seed=seed, **given_arguments)


def mixed() -> Searchspace:
    """Every type, and a condition within a condition."""
    space = Searchspace(
        lr=("LOGUNIFORM", [1e-5, 1e-1]),
        depth=("INTEGER", [1, 3]),
        width=("LOGINTEGER", [1, 4]),
        batch=("DISCRETE", [16, 64]),
        act=("CATEGORICAL", ["relu", "gelu", None]),
    )
    space.add("slope", ("DOUBLE", [-1.0, 1.0]), when={"act": ["relu"], "depth": [2, 3]})
    space.add("kind", ("CATEGORICAL", [("a", 1), ("b", 2)]), when={"act": "gelu"})
    return space


def mixed_score(config: Config) -> float:
    return -abs(math.log10(config["lr"]) + 3) - abs(config["depth"] - 2) - (config["act"] != "relu")


def plane() -> Searchspace:
    return Searchspace(x=("DOUBLE", [-4.0, 6.0]), y=("DOUBLE", [-4.0, 6.0]))


def bowl(config: Config) -> float:
    return -((config["x"] - 2.3) ** 2) - 3 * (config["y"] + 1.1) ** 2


@EVERY
def test_same_seed_gives_the_same_trials(name: str) -> None:
    one, other = (drive(make(name, mixed(), seed=7), mixed_score, 12, lanes=3, seed=1) for _ in range(2))
    assert one.configs == other.configs
    assert len(one.configs) == 12
    if name != "grid":
        assert drive(make(name, mixed(), seed=8), mixed_score, 5, lanes=3, seed=1).configs != one.configs[:5]


@EVERY
@pytest.mark.parametrize("at", [0, 9])
def test_restored_searcher_continues_as_the_original(name: str, at: int) -> None:
    """The state passes JSON while trials run, after failed and stopped ones; it contains the seed."""

    def driven(**how: Any) -> list[Config]:
        searcher = make(name, mixed(), seed=3)
        return drive(searcher, mixed_score, 16, lanes=3, seed=5, failing=0.15, stopped=0.2, **how).configs

    assert driven(restore=lambda state: resumed(make(name, mixed(), seed=99), state), restore_at=at) == driven()


def resumed(searcher: Searcher, state: Any) -> Searcher:
    searcher.restore(state)
    return searcher


@EVERY
def test_seed_drawn_by_a_searcher_is_part_of_its_state(name: str) -> None:
    first = make(name, plane(), seed=None, **({"points": 30} if name == "grid" else {}))
    second = make(name, plane(), seed=None, **({"points": 30} if name == "grid" else {}))
    drive(first, bowl, 5)
    second.restore(json.loads(json.dumps(first.state())))
    assert [second.ask(number) for number in (5, 6)] == [first.ask(number) for number in (5, 6)]


SCORES: dict[str, Callable[[Config], float | None]] = {
    "all negative": lambda config: mixed_score(config) - 1e6,
    "all missing": lambda config: None,
    "some missing": lambda config: None if config["depth"] == 1 else mixed_score(config),
    "all the same": lambda config: 0.25,
    "two values": lambda config: float(config["act"] == "relu"),
    "huge": lambda config: 1e300 * mixed_score(config),
    "tiny": lambda config: 1e-300 * mixed_score(config),
}


@EVERY
@pytest.mark.filterwarnings("error")
def test_searcher_accepts_extreme_equal_and_missing_scores(name: str) -> None:
    for score in SCORES.values():
        driven = drive(make(name, mixed(), seed=2), score, 9, lanes=2, failing=0.1, stopped=0.1)
        assert len(driven.ended) == 9
        assert all(mixed().contains(config) for config in driven.configs)


@EVERY
def test_searcher_continues_when_all_trials_fail(name: str) -> None:
    driven = drive(make(name, mixed()), mixed_score, 14, lanes=3, failing=1.0)
    assert len(driven.ended) == 14


@EVERY
def test_searcher_with_many_pending_trials_answers_or_waits(name: str) -> None:
    """A searcher either answers without waiting, or waits for the ends of those that run."""
    searcher = make(name, plane(), **({"points": 12} if name == "grid" else {}))
    before = drive(searcher, bowl, 6)
    answers = []
    for number in range(6, 26):
        answer = searcher.ask(number)
        if not isinstance(answer, Suggestion):
            assert answer is Wait.LATER
            break
        answers.append(answer)
    assert answers
    assert all(plane().contains(answer.config) for answer in answers)
    different = {json.dumps(answer.config) for answer in answers}
    assert len(different) >= 0.9 * len(answers)  # agents that ask at once do not get one answer
    for number in range(6, 6 + len(answers)):
        searcher.tell(number, Outcome(End.COMPLETED, bowl(answers[number - 6].config)))
    assert isinstance(searcher.ask(6 + len(answers)), Suggestion)
    assert len(before.ended) == 6


@EVERY
def test_searcher_handles_a_space_of_one_point(name: str) -> None:
    driven = drive(make(name, Searchspace(only=("DISCRETE", [32]))), lambda config: 1.0, 8)
    assert driven.configs == [{"only": 32}] * len(driven.configs)
    assert len(driven.configs) == (8 if name in ("tpe", "gp", "cmaes", "bohb") else 1)
    assert driven.done == (len(driven.configs) == 1)


@pytest.mark.parametrize("name", ["random", "sobol", "grid", "differential_evolution"])
def test_searcher_never_repeats_a_configuration_and_ends(name: str) -> None:
    """A finite space is exhausted, completely if the algorithm continues that long."""
    space = Searchspace(a=("INTEGER", [1, 4]), b=("CATEGORICAL", ["x", "y"]), c=("DISCRETE", [1, 2, 3]))
    space.add("d", ("CATEGORICAL", [True, False]), when={"b": ["y"]})
    assert space.size() == 4 * (1 + 2) * 3
    driven = drive(make(name, space), lambda config: float(config["a"]), 1000, lanes=4, failing=0.1)
    keys = [space.key(config) for config in driven.configs]
    assert driven.done
    assert len(set(keys)) == len(keys) <= 36
    if name != "differential_evolution":  # whose population may become one before
        assert len(keys) == (27 if name == "grid" else 36)  # three points of the four that ``a`` has


@pytest.mark.parametrize("name", WITH_MODEL)
def test_model_based_searcher_is_better_than_random(name: str) -> None:
    trials = {"gp": 14, "tpe": 30}.get(name, 60)
    seeds = range({"gp": 3, "tpe": 4}.get(name, 8))

    def found(who: str) -> float:
        return sum(drive(make(who, plane(), seed=seed), bowl, trials).best for seed in seeds) / len(seeds)

    assert found(name) > 0.5 * found("random")  # half as far from the best, which is 0


@pytest.mark.parametrize("name", WITH_MODEL)
def test_learned_trials_of_other_searches_improve_the_first_suggestions(name: str) -> None:
    """Trials of an earlier search draw the first ones of this towards the best of them, also across a restore."""
    searcher, fresh = make(name, plane(), seed=4), make(name, plane(), seed=4)
    for number in range(25):
        config = {"x": -3.0 + 2.0 * (number % 5), "y": -3.0 + 2.0 * (number // 5)}
        searcher.learn(config, Outcome(End.COMPLETED, bowl(config)))
    searcher.learn({"z": 1}, Outcome(End.COMPLETED, 1e9))  # of another space: left out
    other = make(name, plane(), seed=11)
    other.restore(json.loads(json.dumps(searcher.state())))
    answers = drive(searcher, bowl, 6)
    assert answers.configs == drive(other, bowl, 6).configs
    assert sum(map(bowl, answers.configs)) > sum(map(bowl, drive(fresh, bowl, 6).configs))


@EVERY
def test_learning_does_not_count_as_a_trial(name: str) -> None:
    searcher = make(name, mixed())
    for end in (End.COMPLETED, End.STOPPED, End.FAILED):
        config = mixed().inverse_transform([0.4] * len(mixed()))
        searcher.learn(config, Outcome(end, None if end is End.FAILED else 0.5, step=3))
    assert len(drive(searcher, mixed_score, 7, lanes=2).ended) == 7


@pytest.mark.parametrize("name", LIGHT)
@settings(max_examples=8, deadline=None)
@given(lanes=st.integers(1, 12), order=st.integers(0, 10**6), failing=st.floats(0, 0.6), at=st.integers(0, 20))
def test_any_order_of_trial_ends_keeps_the_searcher_running(
    name: str, lanes: int, order: int, failing: float, at: int
) -> None:
    how: dict[str, Any] = {"lanes": lanes, "seed": order, "failing": failing, "stopped": 0.2}
    plain = drive(make(name, mixed(), seed=order), mixed_score, 25, **how)
    assert len(plain.ended) == 25  # mixed() has more, so that no searcher may return DONE
    assert all(mixed().contains(config) for config in plain.configs)
    restored = drive(
        make(name, mixed(), seed=order),
        mixed_score,
        25,
        restore=lambda state: resumed(make(name, mixed(), seed=0), state),
        restore_at=at,
        **how,
    )
    assert restored.configs == plain.configs


@EVERY
def test_searcher_refuses_an_empty_space(name: str) -> None:
    with pytest.raises(ValueError, match="the search space is empty; give it a parameter"):
        make(name, Searchspace())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "grid"])  # which has no use for one
def test_searcher_refuses_a_seed_that_is_not_a_number(name: str) -> None:
    for seed in (-1, 1.5, "7", True):
        with pytest.raises(ValueError, match=f"seed={seed!r}: it must be an integer, 0 or more, or None"):
            make(name, plane(), seed=seed)  # type: ignore[arg-type]
