"""Tests of Ray Tune's halving rule, which the ASHA benchmark applies to hopsml, too."""

from __future__ import annotations

import pickle

import pytest

from benchmarks.scripts import search_workload as work
from benchmarks.scripts.percentile_halving import PercentileHalving
from hopsml.search.contract import Verdict

pytestmark = pytest.mark.fast


def continues(rule: PercentileHalving, number: int, step: int, score: float) -> bool:
    return rule.report(number, step, score) is Verdict.CONTINUE


def test_percentile_rule_compares_a_trial_with_earlier_ones_only():
    rule = PercentileHalving(27, factor=3)
    assert continues(rule, 0, 1, 0.1)  # no earlier trial
    assert continues(rule, 1, 1, 0.1)  # as good as the percentile
    assert not continues(rule, 2, 1, 0.09)
    assert continues(rule, 3, 1, 0.2)
    # 0.09, 0.1, 0.1, 0.2: two thirds of the way are exactly the third of them
    assert continues(rule, 4, 1, 0.1)
    assert not continues(rule, 5, 1, 0.0999)


def test_percentile_is_interpolated_between_two_scores():
    rule = PercentileHalving(27, factor=3)
    for number, score in enumerate((0.0, 3.0)):
        rule.report(number, 1, score)
    assert not continues(rule, 2, 1, 1.999)  # of 0 and 3 it is 2
    other = PercentileHalving(27, factor=3)
    for number, score in enumerate((0.0, 3.0)):
        other.report(number, 1, score)
    assert continues(other, 2, 1, 2.001)


def test_percentile_rule_continues_between_rungs_and_stops_at_the_last():
    rule = PercentileHalving(27, factor=3)
    for step in range(1, 27):
        assert continues(rule, 0, step, 1.0)
    assert not continues(rule, 0, 27, 1.0)  # complete
    assert not continues(rule, 1, 1, 0.5)


def test_percentile_rule_repeats_its_verdict():
    rule = PercentileHalving(27, factor=3)
    rule.report(0, 1, 1.0)
    assert not continues(rule, 1, 1, 0.5)
    assert not continues(rule, 1, 2, 9.0)
    assert not continues(rule, 1, 3, 9.0)
    assert continues(rule, 2, 1, 1.0) and continues(rule, 2, 3, 0.1)  # trial 1 has recorded nothing at step 3


def test_report_past_several_rungs_counts_for_the_highest():
    rule = PercentileHalving(27, factor=3)
    rule.report(0, 1, 1.0)
    assert continues(rule, 1, 4, 0.1)  # the first one at 3; nothing was compared at 1


def test_pickled_percentile_rule_continues_identically():
    rule = PercentileHalving(27, factor=3)
    again = PercentileHalving(27, factor=3)
    for number, trial in enumerate(work.asha_trials()):
        verdicts = []
        for step in range(1, work.MAX_STEP + 1):
            verdicts.append(rule.report(number, step, work.value_at(step, trial["quality"])))
            assert again.report(number, step, work.value_at(step, trial["quality"])) is verdicts[-1]
            if verdicts[-1] is Verdict.STOP:
                break
        again = pickle.loads(pickle.dumps(again))


def test_percentile_rule_trains_as_many_steps_as_ray_tune():
    """Trials run one after another; Ray Tune 2.60.0 trained 232 steps on these curves."""
    rule, steps = PercentileHalving(work.MAX_STEP, factor=work.FACTOR), 0
    for number, trial in enumerate(work.asha_trials()):
        for step in range(1, work.MAX_STEP + 1):
            steps += 1
            if rule.report(number, step, work.value_at(step, trial["quality"])) is Verdict.STOP:
                break
    assert steps == 232
