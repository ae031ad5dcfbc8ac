"""Tests of the objective functions, the share of good results, and one small comparison from end to end."""

from __future__ import annotations

import pytest

from benchmarks import search_quality
from benchmarks.figures import Figure, Report
from benchmarks.landscapes import ALL
from benchmarks.options import Options

pytestmark = pytest.mark.fast

LOWEST = {
    "branin": [(-3.14159265, 12.275), (3.14159265, 2.275), (9.42477796, 2.475)],
    "hartmann6": [(0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)],
    "rosenbrock2": [(1.0, 1.0)],
    "rosenbrock6": [(1.0,) * 6],
}


@pytest.mark.parametrize("name", LOWEST)
def test_objective_functions_are_lowest_where_the_literature_states(name):
    landscape = next(one for one in ALL if one.name == name)
    for point in LOWEST[name]:
        assert all(low <= value <= high for value, (low, high) in zip(point, landscape.bounds, strict=True))
        assert landscape.height(point) == pytest.approx(landscape.least, abs=2e-5)
        nudged = [value + 0.01 for value in point]
        assert landscape.height(nudged) > landscape.height(point)
    assert len(ALL) == len(LOWEST)


def test_share_counts_ties_as_good():
    assert search_quality.share([1.0, 2.0, 3.0 + 1e-15, 5.0], [1.0, 3.0, 3.0, 4.0]) == 0.75


def test_goal_can_be_a_lower_limit():
    low, high = (Figure("search.quality.tpe", value, "ratio", 80, 0.3, 0.6, "optuna") for value in (0.44, 0.45))
    assert low.goal == high.goal == 0.45
    assert not low.reached and high.reached
    assert "≥ 0.45 MISSED" in Report([low]).table() and "≥ 0.45 reached" in Report([high]).table()


def test_searcher_is_compared_with_its_reference():
    lines = []
    ours, theirs, peer = search_quality.pairs()["grid"]
    with search_quality._quiet():
        mine, others = search_quality.found(ours, 1, 5), search_quality.found(theirs, 1, 0)
    figure = search_quality.figure_of("grid", mine, others, peer, Options(say=lines.append))
    assert (figure.value, figure.low, figure.high, figure.n) == (1.0, 1.0, 1.0, 4)  # the same grid
    assert len(lines) == 4 and all("optuna GridSampler" in line for line in lines)
