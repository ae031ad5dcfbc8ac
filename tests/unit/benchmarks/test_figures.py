"""Tests of medians, pairing, table and JSON of the benchmarks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import collective, commit, launch, search_run
from benchmarks.figures import GOALS, Figure, Report, measured, ratio_of, worst_of
from benchmarks.pairing import alternate, forgiving
from benchmarks.spread import paired_ratios, spread_of

pytestmark = pytest.mark.fast


def test_spread_has_median_and_middle_half():
    spread = spread_of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (spread.median, spread.low, spread.high, spread.n) == (3.0, 2.0, 4.0, 5)


def test_spread_of_few_values_shows_their_extremes():
    spread = spread_of([7.0, 9.0])
    assert (spread.median, spread.low, spread.high, spread.n) == (8.0, 7.0, 9.0, 2)


def test_spread_without_rounds_is_an_error():
    with pytest.raises(ValueError, match="no round was measured"):
        spread_of([])


def test_ratios_are_paired_by_round():
    """A slow round of both must not show: the medians' ratio would be 20 / 20."""
    assert paired_ratios([1.0, 20.0, 30.0], [2.0, 40.0, 20.0]) == [0.5, 0.5, 1.5]
    assert ratio_of("x", [1.0, 20.0, 30.0], [2.0, 40.0, 20.0], "peer").value == 0.5


def test_worst_of_shows_the_worst_round():
    figure = worst_of("teardown.orphans", [0.0, 0.0, 2.0, 0.0, 0.0], "processes")
    assert (figure.value, figure.n, figure.reached) == (2.0, 5, False)


def test_unequal_numbers_of_rounds_are_refused():
    with pytest.raises(ValueError, match="2 rounds of ours cannot be paired with 1"):
        paired_ratios([1.0, 2.0], [1.0])


def test_alternate_rotates_the_order_of_candidates():
    order: list[str] = []

    def turn(name: str) -> int:
        order.append(name)
        return len(order)

    results = alternate(3, {"a": lambda: turn("a"), "b": lambda: turn("b"), "c": lambda: turn("c")})
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert results == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


def test_failing_peer_is_noted_and_the_others_continue():
    report = Report()

    def fail() -> float:
        raise RuntimeError("failed before the first step:\nmany lines\nNo module named 'pandas'")

    turns = {"ours": lambda: 1.0, "theirs": forgiving(fail, report.note_of("TorchDistributor"))}
    assert alternate(2, turns) == {"ours": [1.0, 1.0], "theirs": [None, None]}
    note = "TorchDistributor failed: failed before the first step: ... No module named 'pandas'"
    assert report.notes == [note, note]


def test_report_json_has_the_fields_of_every_figure():
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
def test_report_table_shows_whether_a_goal_is_reached(value: float, word: str):
    assert GOALS["launch.cold_ratio"] == 0.95
    report = Report([Figure("launch.cold_ratio", value, "ratio", 3, value, value, "bare", value)])
    assert f"≤ 0.95 {word}" in report.table()


@pytest.mark.parametrize(
    ("name", "goal"),
    [
        ("search.local_ray_ratio", 0.62),
        ("search.ray_ratio", 1.0),
        ("search.short_trials_per_s", 19.0),
        ("search.forked_trials_per_s", 15.0),
        ("scale.heartbeat_core_share", 0.15),
        ("commit.hold_100mb_ms", 20.0),
        ("collective.gloo_ratio", 1.0),
        ("collective.tf_ratio", 0.5),
        ("collective.fp16_ratio", 0.6),
    ],
)
def test_figures_have_their_goals(name: str, goal: float):
    assert measured(name, [1.0], "ratio").goal == goal


def test_commit_cost_is_its_call_plus_the_slowdown_of_later_steps():
    """Commit by commit: the medians' difference would be 3, the slow commit's own update was slow before it, too."""
    values = {"call": [1.0, 1.0, 2.0], "steps": [5.0, 40.0, 6.0], "steps without": [2.0, 38.0, 2.0]}
    assert commit.held_up(values) == [4.0, 3.0, 6.0]


def test_collective_ratio_is_that_of_the_worst_size():
    """The ratio is computed from medians, not from a single round."""
    two = {("ours", size): [1.0, 1.0, 9.0] for size in collective.SIZES} | {
        ("theirs", size): [2.0, 2.0, 2.0] for size in collective.SIZES
    }
    four = {**two, ("ours", 1_000): [3.0, 3.0, 3.0]}
    figure = collective._worst("collective.gloo_ratio", {2: two, 4: four}, "ours", "theirs", "gloo")
    assert (figure.value, figure.n) == (1.5, 3)
    assert [collective.label(size) for size in collective.SIZES] == ["4kB", "100kB", "1MB", "10MB", "100MB"]


def facts(seconds: float, steps: int) -> dict[str, Any]:
    return {"seconds": seconds, "steps": steps}


def test_asha_report_contains_steps_and_seconds():
    report = search_run._asha_beside_ray([facts(2.0, 230), facts(3.0, 240)], [facts(4.0, 232), facts(6.0, 232)])
    found = {figure.name: figure.value for figure in report.figures}
    assert (found["search.asha_ratio"], found["search.asha_steps"], found["search.ray_asha_steps"]) == (0.5, 235, 232)
    assert found["search.asha_steps_ratio"] == pytest.approx(1.013, abs=1e-3)
    assert "ours 230, 240, Ray's 232, 232" in report.notes[0]


def test_launch_report_compares_with_default_and_our_jvm_options():
    found = {figure.name: figure.value for figure in launch._submitted([4.0], [6.0], [16.0], [8.0]).figures}
    assert found["launch.submit_ratio"] == 0.25
    assert found["launch.submit_apart_ratio"] == 0.375
    assert found["launch.submit_our_jvm_ratio"] == 0.5
    assert found["launch.submit_apart_our_jvm_ratio"] == 0.75
    assert "launch.submit_our_jvm_ratio" not in {
        one.name for one in launch._submitted([4.0], [6.0], [16.0], []).figures
    }


def test_table_lists_figures_with_a_goal_first():
    report = Report([measured("launch.cold_s", [1.0], "s"), ratio_of("launch.cold_ratio", [1.0], [2.0], "bare")])
    lines = report.table().splitlines()
    assert "launch.cold_ratio" in lines[2]
    assert "launch.cold_s" in lines[3]


def test_added_reports_are_concatenated():
    report = Report([measured("a", [1.0], "s")], ["first"])
    report.add(Report([measured("b", [1.0], "s")], ["second"]))
    assert [figure.name for figure in report.figures] == ["a", "b"]
    assert report.notes == ["first", "second"]
