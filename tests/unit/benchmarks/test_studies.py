"""Tests of the studies' plans and tables."""

from __future__ import annotations

import itertools
import json

import pytest

from benchmarks.studies import accuracy, algorithms, resizing, servers
from benchmarks.studies.study import Line, Study

pytestmark = pytest.mark.fast


def test_sizes_of_elastic_groups_follow_the_six_schedules_within_bounds() -> None:
    assert len(resizing.SCHEDULES) == 6
    for schedule in resizing.SCHEDULES:
        for seed in range(20):
            sizes = resizing.sizes(schedule, seed)
            assert len(sizes) == 20 and set(sizes) <= set(range(1, 9)) and sizes == resizing.sizes(schedule, seed)
    assert resizing.sizes("fixed 2", 0) == [2] * 20 and resizing.sizes("fixed 4", 0) == [4] * 20
    assert resizing.sizes("doubling", 0) == [1] * 5 + [2] * 5 + [4] * 5 + [8] * 5


@pytest.mark.parametrize(("schedule", "step", "every"), [("plus or minus 1", 1, 1), ("plus or minus 3", 3, 3)])
def test_group_gains_or_loses_so_many_workers_at_a_time(schedule: str, step: int, every: int) -> None:
    found = [resizing.sizes(schedule, seed) for seed in range(20)]
    for sizes in found:
        assert sizes[0] == 4, "the group for which the rate is tuned"
        moves = [after - before for before, after in itertools.pairwise(sizes)]
        assert {abs(move) for number, move in enumerate(moves, 1) if number % every == 0} == {step}
        assert not any(move for number, move in enumerate(moves, 1) if number % every)
    assert len({tuple(sizes) for sizes in found}) > 5, "seeds differ"


def test_settings_are_chosen_by_the_mean_over_seeds_on_the_validation_digits() -> None:
    validated = {("one", 64, 0): 90.0, ("one", 64, 1): 92.0, ("other", 64, 0): 95.0, ("other", 64, 1): 80.0}
    assert accuracy.choose(validated, ("one", "other"), 64, [0, 1]) == "one"
    assert accuracy.choose(validated, ("one", "other"), 64, [0]) == "other"
    assert accuracy.DEFAULT in accuracy.CANDIDATES, "LARS with the default of Recipe"


def test_efficiency_is_relative_to_one_worker() -> None:
    assert servers.efficiencies({"1": [90.0, 110.0], "2": [100.0, 150.0]}) == {"1": [90.0, 110.0], "2": [50.0, 75.0]}


def test_curves_have_the_seconds_and_values_of_all_seeds_at_each_epoch() -> None:
    curve = algorithms.curve("local_sgd", [[(1.0, 50.0), (2.0, 80.0)], [(1.5, 60.0), (2.5, 90.0)]])
    assert curve.epochs == [1.0, 2.0]
    assert curve.seconds == [[1.0, 1.5], [2.0, 2.5]] and curve.values == [[50.0, 60.0], [80.0, 90.0]]
    study = Study("name", "title", "axis", "unit", (Line("plain", {"1": [1.0, 3.0]}, "speed"),), curves=(curve,))
    written = json.loads(study.as_json())
    assert written["panels"] == {"speed": {"plain": {"1": [1.0, 3.0]}}}
    assert written["curves"][0]["label"] == "local_sgd"
    assert study.table().splitlines()[-1] == "| speed, plain | 2.00 ± 1.41 |"
