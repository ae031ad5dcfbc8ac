"""Tests of the rule for retries, and of counts over a long outage."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.storage.backoff import Outage, Reminder, duration_text, pause_s

pytestmark = pytest.mark.fast


def test_pauses_double_up_to_the_longest():
    assert [pause_s(failures, 0.5, 6.0) for failures in range(7)] == [0.5, 0.5, 1.0, 2.0, 4.0, 6.0, 6.0]
    assert pause_s(10**6, 1.0, 60.0) == 60.0


@settings(deadline=None)
@given(st.integers(1, 200), st.floats(0.1, 10.0), st.floats(10.0, 600.0))
def test_pauses_never_shrink_during_consecutive_failures(failures: int, first_s: float, longest_s: float) -> None:
    assert first_s <= pause_s(failures, first_s, longest_s) <= pause_s(failures + 1, first_s, longest_s) <= longest_s


def test_long_outage_costs_few_attempts_and_is_reported_once_at_each_end():
    """Due four times a second for an hour, away from second 10 to second 3 000, every ten seconds to be done."""
    outage, tried, started, ended = Outage(1.0, 60.0), list[float](), list[float](), list[tuple[float, int]]()
    last = 0.0
    for now in itertools.takewhile(lambda now: now < 3600.0, itertools.count(0.0, 0.25)):
        if now - last < 10.0 or not outage.may_try(now, 10.0):
            continue
        tried.append(now)
        if 10.0 <= now < 3000.0:
            if outage.record_failure(now, 10.0):
                started.append(now)
            continue
        last = now
        if missed := outage.record_success():
            ended.append((now, missed))
    away = [now for now in tried if 10.0 <= now < 3000.0]
    assert started == [10.0] and len(away) < 60
    ((at, missed),) = ended
    assert 3000.0 <= at <= 3060.0
    assert abs(missed - (at - 10.0) / 10.0) <= 1.0
    assert max(after - before for before, after in itertools.pairwise(away)) <= 60.25


def test_calls_due_during_an_outage_are_counted_as_missed():
    outage = Outage(1.0, 60.0)
    assert outage.record_failure(0.0) and not outage.record_failure(0.5)
    assert not outage.may_try(0.6) and outage.missed == 3
    assert [outage.record_failure(at) for at in (2.0, 3.0)] == [False, False] and outage.retry_at == 3.0 + 8.0
    each = Outage(1.0, 60.0)
    assert [each.record_failure(at, 1.0) for at in (0.0, 1.0, 1.5)] == [True, False, False] and each.missed == 2
    assert not each.may_try(1.9, 1.0) and each.missed == 2
    assert not each.may_try(2.0, 1.0) and each.record_success() == 3


def test_second_outage_starts_with_the_first_pause():
    outage = Outage(1.0, 60.0)
    for now in (0.0, 5.0, 10.0):
        outage.record_failure(now)
    assert not outage.may_try(11.0) and outage.record_success() > 0
    assert outage.record_success() == 0 and outage.may_try(11.0)
    assert outage.record_failure(12.0) and outage.may_try(13.0)


def test_reminders_of_a_lasting_loss_become_rarer_and_begin_anew_after_its_end():
    reminder = Reminder(60.0, 3600.0)
    noted = [now for now in range(100, 20_000) if reminder.reschedule_if_due(float(now))]
    assert noted[:5] == [100, 160, 280, 520, 1000] and noted[-1] - noted[-2] == 3600
    assert reminder.lasted_s(20_000.0) == 19_900.0
    reminder.end()
    assert reminder.lasted_s(20_001.0) == 0.0 and reminder.reschedule_if_due(20_001.0)
    assert [duration_text(seconds) for seconds in (45.0, 119.0, 720.0, 12_600.0)] == [
        "45 s",
        "119 s",
        "12 min",
        "3.5 h",
    ]
