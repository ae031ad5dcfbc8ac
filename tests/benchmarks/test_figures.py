"""Medians, pairing, table and JSON of the benchmarks."""

from __future__ import annotations

import json

import pytest

from benchmarks.figures import GOALS, Figure, Report, measured, ratio_of
from benchmarks.pairing import alternate
from benchmarks.spread import paired_ratios, spread_of

pytestmark = pytest.mark.fast


def test_median_and_middle_half():
    spread = spread_of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (spread.median, spread.low, spread.high, spread.n) == (3.0, 2.0, 4.0, 5)


def test_few_values_show_their_extremes():
    spread = spread_of([7.0, 9.0])
    assert (spread.median, spread.low, spread.high, spread.n) == (8.0, 7.0, 9.0, 2)


def test_no_rounds_is_an_error():
    with pytest.raises(ValueError, match="no round was measured"):
        spread_of([])


def test_ratios_are_of_the_same_round():
    """A slow round of both must not show: the medians' ratio would be 20 / 20."""
    assert paired_ratios([1.0, 20.0, 30.0], [2.0, 40.0, 20.0]) == [0.5, 0.5, 1.5]
    assert ratio_of("x", [1.0, 20.0, 30.0], [2.0, 40.0, 20.0], "peer").value == 0.5


def test_rounds_that_do_not_pair_are_refused():
    with pytest.raises(ValueError, match="2 rounds of ours cannot be paired with 1"):
        paired_ratios([1.0, 2.0], [1.0])


def test_everyone_takes_a_turn_and_nobody_is_always_first():
    order: list[str] = []

    def turn(name: str) -> int:
        order.append(name)
        return len(order)

    results = alternate(3, {"a": lambda: turn("a"), "b": lambda: turn("b"), "c": lambda: turn("c")})
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert results == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


def test_json_has_the_fields_of_every_figure():
    report = Report([measured("launch.cold_s", [2.0, 4.0], "s", "bare", [4.0, 4.0])], ["a note"], {"cores": 2})
    content = json.loads(report.as_json())
    assert content["figures"] == {
        "launch.cold_s": {
            "value": 3.0, "unit": "s", "n": 2, "low": 2.0, "high": 4.0, "peer": "bare", "ratio": 0.75
        }
    }  # fmt: skip
    assert content["notes"] == ["a note"]
    assert content["machine"] == {"cores": 2}


@pytest.mark.parametrize(("value", "word"), [(0.95, "reached"), (0.951, "MISSED")])
def test_table_says_whether_a_goal_is_reached(value: float, word: str):
    assert GOALS["launch.cold_ratio"] == 0.95
    report = Report([Figure("launch.cold_ratio", value, "ratio", 3, value, value, "bare", value)])
    assert f"≤ 0.95 {word}" in report.table()


def test_figures_with_a_goal_come_first():
    report = Report([measured("launch.cold_s", [1.0], "s"), ratio_of("launch.cold_ratio", [1.0], [2.0], "bare")])
    lines = report.table().splitlines()
    assert "launch.cold_ratio" in lines[2]
    assert "launch.cold_s" in lines[3]


def test_reports_are_joined():
    report = Report([measured("a", [1.0], "s")], ["first"])
    report.add(Report([measured("b", [1.0], "s")], ["second"]))
    assert [figure.name for figure in report.figures] == ["a", "b"]
    assert report.notes == ["first", "second"]
