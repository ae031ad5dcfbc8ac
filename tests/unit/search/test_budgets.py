"""Tests of searchers that try a configuration again with a greater budget."""

import json
import random
from collections import Counter

import pytest

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.asha import AshaSearcher
from hopsml.search.algorithms.hyperband import HyperbandSearcher
from hopsml.search.algorithms.random import GridSearcher
from hopsml.search.algorithms.tpe import Bohb, Tpe
from hopsml.search.contract import End, Outcome, Suggestion, Wait
from hopsml.search.space.space import Searchspace

pytestmark = pytest.mark.fast

SPACE = Searchspace(x=("DOUBLE", [0.0, 1.0]), act=("CATEGORICAL", ["relu", "gelu"]))
LISTED = Searchspace(x=("DISCRETE", list(range(6))))
SEARCHERS = {
    "asha": lambda: AshaSearcher(SPACE, seed=1, num_trials=20),
    "asha over a grid": lambda: AshaSearcher(LISTED, searcher=GridSearcher(LISTED), hand_over=True),
    "hyperband": lambda: HyperbandSearcher(SPACE, seed=1, max_budget=9, n_iterations=4),
    "bohb": lambda: HyperbandSearcher(SPACE, max_budget=9, n_iterations=4, searcher=Bohb(SPACE, seed=1)),
    "hyperband over tpe": lambda: HyperbandSearcher(
        SPACE, max_budget=4, eta=2, n_iterations=3, searcher=Tpe(SPACE, seed=1)
    ),
}
every_searcher = pytest.mark.parametrize("make", SEARCHERS.values(), ids=SEARCHERS.keys())


def search(make, places=4, seed=0, fails=0.0, taken_over=False):
    """Run until DONE and return [(number, config, parent, outcome)] in the order of the ends."""
    rng = random.Random(seed)
    searcher, running, ended, number = make(), {}, [], 0
    for _ in range(2_000):
        answer = None
        while len(running) < places and isinstance(answer := searcher.ask(number), Suggestion):
            running[number] = answer
            number += 1
        if not running:
            assert answer is Wait.DONE  # there is nothing to wait for
            return ended
        one = rng.choice(sorted(running))
        suggestion = running.pop(one)
        failed = rng.random() < fails
        score = float(suggestion.config["x"]) - suggestion.config["budget"] / 100
        outcome = Outcome(End.FAILED) if failed else Outcome(End.COMPLETED, score)
        searcher.tell(one, outcome)
        ended.append((one, suggestion.config, suggestion.parent, outcome))
        if taken_over:
            state = json.loads(json.dumps(searcher.state(), allow_nan=False))
            searcher = make()
            searcher.restore(state)
    raise AssertionError("it never ends")


@every_searcher
@pytest.mark.parametrize("places", [1, 4, 50])
def test_budget_search_ends_with_the_best_configuration_at_the_top_budget(make, places):
    ended = search(make, places)
    top = max(config["budget"] for _, config, _, _ in ended)
    assert top == {"asha": 4, "asha over a grid": 4, "hyperband": 9, "bohb": 9, "hyperband over tpe": 4}[name_of(make)]
    tried = Counter((config["x"], config.get("act")) for _, config, _, _ in ended)
    assert max(tried.values()) <= 3  # once with each budget
    best = max(config["x"] for _, config, _, _ in ended)
    if name_of(make).startswith("asha"):
        assert any(config["x"] == best and config["budget"] == top for _, config, _, _ in ended)


def name_of(make):
    return next(name for name, made in SEARCHERS.items() if made is make)


@every_searcher
@pytest.mark.parametrize("seed", range(3))
def test_restored_budget_searcher_continues_identically(make, seed):
    assert search(make, seed=seed, fails=0.1, taken_over=True) == search(make, seed=seed, fails=0.1)


@every_searcher
def test_budget_search_ends_when_all_trials_fail(make):
    ended = search(make, fails=1.0)
    assert ended and len({config["budget"] for _, config, _, _ in ended}) <= 3


@every_searcher
def test_configuration_is_retried_only_with_larger_budgets(make):
    budgets = {}
    for _, config, _, _ in search(make):
        key = (config["x"], config.get("act"))
        assert config["budget"] > budgets.get(key, 0)
        budgets[key] = config["budget"]


def test_hyperband_total_equals_the_number_of_its_trials():
    make = SEARCHERS["hyperband"]
    assert make().total == 9 + 3 + 1 + 5 + 1 + 3 + 9 + 3 + 1 == len(search(make))
    assert Counter(config["budget"] for _, config, _, _ in search(make)) == {1: 18, 3: 6 + 5, 9: 2 + 1 + 3}


def test_asha_searcher_tries_every_configuration_with_the_smallest_budget():
    ended = search(SEARCHERS["asha"])
    assert Counter(config["budget"] for _, config, _, _ in ended)[1] == 20
    promoted = [config["x"] for _, config, _, _ in ended if config["budget"] == 2]
    assert len(promoted) >= 10 and sorted(config["x"] for _, config, _, _ in ended)[-1] in promoted


def test_num_trials_counts_configurations_and_not_their_retries():
    for make in (
        lambda: AshaSearcher(SPACE, seed=1, num_trials=8),
        lambda: HyperbandSearcher(SPACE, seed=1, max_budget=4, eta=2, num_trials=8),
    ):
        assert make().counts and make().total is None
        tried = Counter((config["x"], config["act"]) for _, config, _, _ in search(make))
        assert len(tried) == 8 and tried.total() > 8
    assert not AshaSearcher(SPACE).counts
    searcher = HyperbandSearcher(SPACE, max_budget=9, n_iterations=1, num_trials=64)
    assert searcher.counts and searcher.total == 9 + 3 + 1


def test_asha_searcher_can_be_extended_by_more_configurations():
    searcher = AshaSearcher(SPACE, seed=1, num_trials=4)
    for number in range(20):
        if searcher.ask(number) is Wait.DONE:
            break
        searcher.tell(number, Outcome(End.COMPLETED, -float(number)))
    assert number > 4 and searcher.extend(2)
    assert isinstance(searcher.ask(number), Suggestion) and isinstance(searcher.ask(number + 1), Suggestion)
    restored = AshaSearcher(SPACE, seed=1, num_trials=4)
    restored.restore(json.loads(json.dumps(searcher.state())))
    assert restored.configurations == 6
    assert not AshaSearcher(SPACE).extend(2) and not GridSearcher(LISTED).extend(2)


def test_retried_configuration_has_its_previous_trial_as_parent_if_requested():
    ended = search(SEARCHERS["asha over a grid"])
    configs = {number: config for number, config, _, _ in ended}
    handed = [(number, parent) for number, _, parent, _ in ended if parent is not None]
    assert handed and all(configs[one]["x"] == configs[parent]["x"] for one, parent in handed)
    assert all(parent is None for _, _, parent, _ in search(SEARCHERS["asha"]))


def test_learned_trials_are_stored_without_their_budget():
    searcher = SEARCHERS["bohb"]()
    for place in range(12):
        searcher.learn({"x": place / 12, "act": "relu", "budget": 9}, Outcome(End.COMPLETED, place / 12))
    state = searcher.state()["searcher"]
    assert len(state["configs"]) == 12 and "budget" not in state["configs"][0][1]


@every_searcher
def test_budget_can_be_omitted_from_configurations(make):
    silent = make()
    silent.says_budget = False
    with_budget, unsaid = make().ask(0), silent.ask(0)
    assert unsaid.config == {name: value for name, value in with_budget.config.items() if name != "budget"}
    later = make()
    later.restore(json.loads(json.dumps(silent.state())))
    assert not later.says_budget


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: AshaSearcher(SPACE, num_trials=3), "num_trials=3: .* 4 trials"),
        (lambda: AshaSearcher(SPACE, reduction_factor=1), "reduction_factor=1"),
        (lambda: AshaSearcher(SPACE, resource_min=5), "resource_min=5 is above resource_max=4"),
        (lambda: AshaSearcher(Searchspace(budget=("INTEGER", [1, 4]))), "has a parameter 'budget'"),
        (lambda: HyperbandSearcher(SPACE), "max_budget is missing"),
        (lambda: HyperbandSearcher(SPACE, max_budget=9, eta=1), "eta=1"),
    ],
)
def test_invalid_budget_searcher_arguments_are_named(make, names):
    with pytest.raises(ArgumentError, match=names):
        make()
