"""Tests of the estimated remaining time of a search, with complete trials and trials that were stopped early."""

from __future__ import annotations

import random

import pytest

from hopsml.search.dispatch.journal import Lifetimes, estimate_outlook

pytestmark = pytest.mark.fast


def test_remaining_time_is_unknown_before_a_trial_has_ended() -> None:
    assert estimate_outlook([], [3.0, 4.0], waiting=10, places=2, done=0) is None


def test_remaining_time_includes_the_rest_of_running_trials() -> None:
    seen = estimate_outlook([10.0] * 4, [6.0, 6.0], waiting=2, places=2, done=4)
    assert seen is not None and seen.seconds == pytest.approx(14.0)  # 4 s of the running trials, 10 s of the last two
    assert seen.share == pytest.approx((4 + 2 * 0.6) / 8)


def test_remaining_time_of_the_last_trial_is_its_own_rest() -> None:
    seen = estimate_outlook([10.0] * 63, [1.0], waiting=0, places=64, done=63)
    assert seen is not None and seen.seconds == pytest.approx(9.0)


def test_early_short_trials_do_not_bias_the_remaining_time() -> None:
    """One of four was stopped after 1 s, three have run for 9 s: an estimate of 1 s for each other is wrong."""
    seen = estimate_outlook([1.0], [9.0, 9.0, 9.0], waiting=9, places=4, done=1)
    assert seen is not None and seen.seconds > 20


def test_expected_lifetime_includes_stopped_trials() -> None:
    lives = Lifetimes([1.0] * 9 + [11.0], [])
    assert lives.rest(0.0) == pytest.approx(2.0) and lives.rest(1.5) == pytest.approx(9.5)


def test_trial_longer_than_all_others_has_growing_remaining_time() -> None:
    ended = [10.0] * 20
    assert 0 < Lifetimes(ended, [12.0]).rest(12.0) < Lifetimes(ended, [60.0]).rest(60.0) < 60


def test_remaining_time_falls_with_more_lanes_and_grows_with_more_trials() -> None:
    ended = [4.0, 6.0]
    times = [
        estimate_outlook(ended, [], waiting=waiting, places=places, done=2)
        for waiting, places in ((8, 4), (8, 2), (5000, 2))
    ]
    found = [one.seconds for one in times if one is not None]
    assert found == [pytest.approx(10.0), pytest.approx(20.0), pytest.approx(12_500.0)]


@pytest.mark.parametrize("seed", range(5))
def test_remaining_time_in_the_middle_of_a_search_is_near_the_truth(seed: int) -> None:
    """64 trials on 8 places, a third of them stopped early; asked when half of the time is over."""
    draw = random.Random(seed)
    lengths = [draw.uniform(1, 3) if draw.random() < 0.33 else draw.uniform(8, 12) for _ in range(64)]
    begins, free = [], [0.0] * 8
    for length in lengths:
        at = min(free)
        free[free.index(at)] = at + length
        begins.append(at)
    total, now = max(free), max(free) / 2
    ended = [length for at, length in zip(begins, lengths, strict=True) if at + length <= now]
    running = [now - at for at, length in zip(begins, lengths, strict=True) if at <= now < at + length]
    seen = estimate_outlook(ended, running, waiting=64 - len(ended) - len(running), places=8, done=len(ended))
    assert seen is not None and seen.seconds == pytest.approx(total / 2, rel=0.35)
    assert seen.share == pytest.approx(0.5, abs=0.1)
