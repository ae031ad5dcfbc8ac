"""Tests of the choice of the method of writing a commit, by measured costs; pure."""

from __future__ import annotations

import pytest

from hopsml.training.elastic.commits import CommitPace

pytestmark = pytest.mark.fast
BATCH_S, AT_ONCE_S, CALL_S, WRITING_S = 0.1, 0.015, 0.001, 0.06


def train(
    pace: CommitPace,
    commits: int,
    longer_s: float,
    *,
    writing_s: float = WRITING_S,
    every: int = 4,
    at_once_s: float = AT_ONCE_S,
) -> list[bool]:
    """Return how each commit was written; one written in the background delays the next batch by ``longer_s``."""
    methods = []
    for _ in range(commits):
        methods.append(pace.is_synchronous)
        pace.record_commit(methods[-1], at_once_s if methods[-1] else CALL_S)
        for batch in range(every):
            pace.record_batch(BATCH_S + (0.0 if methods[-1] or batch else longer_s), writing_s)
    return methods


def test_commit_pace_tries_both_write_methods_after_the_first_commits() -> None:
    assert train(CommitPace(), 8, 0.03) == [False, False, True, True, True, False, False, False]


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize(("longer_s", "expected"), [(0.027, True), (0.004, False), (0.0, False)])
def test_commit_pace_chooses_the_cheaper_write_method(longer_s: float, expected: bool, every: int) -> None:
    pace = CommitPace()
    assert set(train(pace, 30, longer_s, every=every)[8:]) == {expected}
    assert pace.cost_s == pytest.approx(AT_ONCE_S if expected else CALL_S + longer_s)


def test_commit_pace_retries_the_other_method_and_adopts_it_when_cheaper() -> None:
    pace = CommitPace()
    train(pace, 8, 0.027)
    methods = train(pace, 200, 0.0)
    assert methods[:24] == [True] * 24 and methods[24] is False  # the thirty-second commit after eight
    assert methods.count(False) > 100 and methods[-1] is False


def test_commit_pace_counts_a_training_pause_at_most_as_the_write_time() -> None:
    """A validation, a trace of the graph, a late batch: nothing of it is the commit's."""
    pace = CommitPace()
    train(pace, 8, 60.0)
    assert pace.cost_s == AT_ONCE_S
    pace = CommitPace()
    train(pace, 8, 60.0, at_once_s=1.0)
    assert pace.cost_s == pytest.approx(CALL_S + WRITING_S)


def test_commit_pace_cost_is_at_least_the_call_time_for_short_batches() -> None:
    pace = CommitPace()
    train(pace, 8, -0.05)
    assert pace.cost_s == CALL_S


def test_commit_pace_counts_all_batches_until_the_commit_is_written() -> None:
    pace = CommitPace()
    train(pace, 5, 0.0)
    for _ in range(3):
        assert pace.is_synchronous is False
        pace.record_commit(False, CALL_S)
        for writing_s in (None, None, WRITING_S):
            pace.record_batch(BATCH_S + 0.004, writing_s)
        pace.record_batch(BATCH_S, WRITING_S)
    assert pace.cost_s == pytest.approx(CALL_S + 3 * 0.004)


def test_commit_pace_counts_a_superseded_commit_with_its_known_cost() -> None:
    pace = CommitPace()
    train(pace, 5, 0.0)
    for _ in range(3):
        pace.record_commit(False, 0.04)
        pace.record_batch(BATCH_S + 0.02, None)
    pace.record_commit(False, 0.04)
    assert pace.is_synchronous is True and pace.cost_s == AT_ONCE_S


def test_commit_pace_has_no_cost_before_the_first_commit() -> None:
    pace = CommitPace()
    pace.record_batch(BATCH_S, 0.0)
    assert pace.cost_s == 0.0 and pace.is_synchronous is False
