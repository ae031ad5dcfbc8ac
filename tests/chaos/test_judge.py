"""The judge's own arithmetic, on histories that are written by hand; and the table."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hopsml.elastic import Sampler
from hopsml.errors import RunError
from tests.chaos import table
from tests.chaos.history import Generation, generations, recovered_s, repeated_and_skipped, steps_lost
from tests.chaos.runner import Evidence, Outcome, judge, left_over, problem_of
from tests.chaos.scenarios import Scenario
from tests.cluster.elastic_workload import BATCH, EPOCHS, N_SAMPLES, expected_weight

pytestmark = pytest.mark.fast

FIRST, SECOND = Generation(0, 2, 1, 9, 100.0), Generation(1, 2, 9, 39, 103.5)


def history() -> list[list[int]]:
    """What an undisturbed training sees."""
    data, seen = Sampler(N_SAMPLES, BATCH, seed=3, epochs=EPOCHS), []
    while not data.is_exhausted:
        seen.append([int(one) for one in data.next_batch()])
    return seen


def verdict(limit: int = 3, left_over: list[str] | None = None, **changes: object) -> Outcome:
    value = {"weight": expected_weight(), "seen": history(), **changes}
    seen = Evidence([FIRST, SECOND], 101.0, limit, value, left_over=left_over or [])
    return judge(Scenario("harm", lambda trial: None), "yarn", seen)


def test_a_step_counts_once_all_members_have_finished_it(tmp_path: Path) -> None:
    shares = {(0, 1): 2, (0, 2): 2, (0, 3): 1, (1, 3): 2}
    for second, ((generation, step), ranks) in enumerate(shares.items()):
        for rank in range(ranks):
            path = tmp_path / f"{generation}-{step}-{rank}.npy"
            path.touch()
            os.utime(path, (100 + second, 100 + second + rank))
    found = generations(tmp_path)
    assert [(one.number, one.world, one.first, one.last) for one in found] == [(0, 2, 1, 2), (1, 2, 3, 3)]
    assert steps_lost(found) == 0 and recovered_s(found, 102.5) == 1.5


def test_steps_that_are_done_again_are_lost() -> None:
    assert steps_lost([FIRST, SECOND]) == 1
    assert steps_lost([FIRST, replace(SECOND, first=6)]) == 4
    assert recovered_s([FIRST], 101.0) is None


def test_a_sound_history_passes() -> None:
    found = verdict()
    assert found.passed and (found.steps_lost, found.recovered_s, found.state) == (1, 2.5, "FINISHED")


def test_other_weights_fail() -> None:
    assert "weights differ" in verdict(weight=expected_weight() * 1.000001).problem


def test_too_many_steps_fail() -> None:
    assert "1 steps were lost, at most 0" in verdict(limit=0).problem


def test_only_the_error_that_was_meant_passes() -> None:
    meant = Scenario("harm", lambda trial: None, error="the reset limit")
    assert problem_of(RunError("rank 1: killed; the reset limit of 2 is reached"), meant, []) == ""
    for other in (TimeoutError("the reset limit"), AssertionError("the reset limit"), RunError("rank 0: killed")):
        assert problem_of(other, meant, ["a note"]) == f"{type(other).__name__}: {other}; a note"
    assert problem_of(RunError("the reset limit"), replace(meant, error=""), []).startswith("RunError")
    assert (
        "expected was an error"
        in judge(meant, "yarn", Evidence([FIRST], 101.0, 3, {"weight": expected_weight(), "seen": history()})).problem
    )
    assert judge(meant, "yarn", Evidence([FIRST], 101.0, 3)).passed


def test_a_process_that_is_left_fails_and_is_named() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            (left,) = left_over([process.pid, process.pid, 2**22 + 1], within_s=0.1)
        finally:
            process.kill()
    assert left.startswith(f"{process.pid} (sleeping, ") and left.endswith(": sleep 60")
    outcome = verdict(left_over=[left])
    assert (outcome.passed, outcome.left_over) == (False, 1) and left in outcome.problem


def test_a_sample_that_is_seen_twice_or_never_fails() -> None:
    seen = history()
    seen[2] = [seen[2][1], *seen[2][1:]]
    assert repeated_and_skipped(seen) == (1, 1)
    assert not verdict(seen=seen).passed


def test_the_table_shows_the_worst_of_all_rounds() -> None:
    good = verdict()
    worse = replace(good, recovered_s=7.25, detail="used again after 8 s")
    failed = replace(good, backend="spark", passed=False, left_over=1, problem="a worker lives")
    page = table.page([good, worse, failed], "2 rounds.")
    assert "| scenario | spark | yarn |" in page
    assert "| harm | **FAILED 1 of 1** 2.50 s, 1 steps, 0 samples, 1 processes | 7.25 s, 1 steps, 0 samples, 0" in page
    assert "- harm (yarn): used again after 8 s" in page
    assert table.totals([good, failed]) == {
        "scenarios": 2, "failed": ["harm (spark)"], "left_over": 1, "samples_repeated": 0, "samples_skipped": 0,
    }  # fmt: skip
    assert "FAILED: a worker lives" in table.text([failed])[1]


def test_a_training_that_has_to_fail_is_marked() -> None:
    assert "(FAILED, as it must)" in table.page([replace(verdict(), state="FAILED")], "1 round.")
