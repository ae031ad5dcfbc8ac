"""Tests of the arithmetic of the scenario checks on handwritten histories, and of the table."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hopsml.errors import RunError
from tests.chaos import table
from tests.chaos.__main__ import together
from tests.chaos.history import (
    Generation,
    Mend,
    Samples,
    batches,
    generations,
    mends,
    recovered_s,
    samples,
    steps_lost,
    weight,
)
from tests.chaos.runner import Evidence, Outcome, judge, left_over, problem_of
from tests.chaos.scenarios import Scenario
from tests.helpers.cluster.elastic_workload import expected_weight

pytestmark = pytest.mark.fast

FIRST, SECOND = Generation(0, 2, 1, 9, 100.0), Generation(1, 2, 9, 39, 103.5)


def verdict(
    limit: int = 3, left_over: list[str] | None = None, changed: Sequence[Mend] = (), **changes: object
) -> Outcome:
    value = {"weight": expected_weight(), "seen": batches(), **changes}
    seen = Evidence([FIRST, SECOND], 101.0, limit, value, left_over=left_over or [], mends=list(changed))
    return judge(Scenario("harm", lambda trial: None), "yarn", seen)


def test_step_counts_once_all_members_have_finished_it(tmp_path: Path) -> None:
    shares = {(0, 1): 2, (0, 2): 2, (0, 3): 1, (1, 3): 2}
    for second, ((generation, step), ranks) in enumerate(shares.items()):
        for rank in range(ranks):
            path = tmp_path / f"{generation}-{step}-{rank}.npy"
            path.touch()
            os.utime(path, (100 + second, 100 + second + rank))
    found = generations(tmp_path)
    assert [(one.number, one.world, one.first, one.last) for one in found] == [(0, 2, 1, 2), (1, 2, 3, 3)]
    assert steps_lost(found) == 0 and recovered_s(found, 102.5) == 1.5


def test_repeated_steps_count_as_lost() -> None:
    assert steps_lost([FIRST, SECOND]) == 1
    assert steps_lost([FIRST, replace(SECOND, first=6)]) == 4
    assert recovered_s([FIRST], 101.0) is None


def test_sound_history_passes() -> None:
    found = verdict()
    assert found.passed and (found.steps_lost, found.recovered_s, found.state) == (1, 2.5, "FINISHED")


def test_different_weights_fail() -> None:
    assert "weights differ" in verdict(weight=expected_weight() * 1.000001).problem


def test_too_many_lost_steps_fail() -> None:
    assert "1 steps were lost, at most 0" in verdict(limit=0).problem


def test_only_the_expected_error_passes() -> None:
    meant = Scenario("harm", lambda trial: None, error="the reset limit")
    assert problem_of(RunError("rank 1: killed; the reset limit of 2 is reached"), meant, []) == ""
    for other in (TimeoutError("the reset limit"), AssertionError("the reset limit"), RunError("rank 0: killed")):
        assert problem_of(other, meant, ["a note"]) == f"{type(other).__name__}: {other}; a note"
    assert problem_of(RunError("the reset limit"), replace(meant, error=""), []).startswith("RunError")
    assert (
        "expected was an error"
        in judge(meant, "yarn", Evidence([FIRST], 101.0, 3, {"weight": expected_weight(), "seen": batches()})).problem
    )
    assert judge(meant, "yarn", Evidence([FIRST], 101.0, 3)).passed


def test_remaining_process_fails_and_is_named() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            (left,) = left_over([process.pid, process.pid, 2**22 + 1], within_s=0.1)
        finally:
            process.kill()
    assert left.startswith(f"{process.pid} (sleeping, ") and left.endswith(": sleep 60")
    outcome = verdict(left_over=[left])
    assert (outcome.passed, outcome.left_over) == (False, 1) and left in outcome.problem


def test_repeated_or_skipped_sample_fails() -> None:
    seen = batches()
    seen[2] = [seen[2][1], *seen[2][1:]]
    assert samples(seen) == Samples(repeated=1, skipped=1)
    found = verdict(seen=seen, weight=weight(seen))
    assert not found.passed and "1 samples were repeated, 1 were skipped" in found.problem


def test_missing_or_repeated_step_is_counted_in_samples() -> None:
    seen = batches()
    assert samples(seen[:-1]).skipped == len(seen[-1])
    assert samples([*seen, seen[-1]]).repeated == len(seen[-1])
    assert not samples([*seen[:4], seen[3], *seen[5:]]).sound


def test_lost_share_of_two_batches_may_be_given_up_after_a_reconfiguration() -> None:
    seen, lost = batches(), Mend(step=7, before=2, after=1)
    seen[6], seen[7] = seen[6][:8], seen[7][:8]
    assert samples(seen, [lost]) == Samples(given_up=16)
    found = verdict(changed=[lost], seen=seen, weight=weight(seen))
    assert found.passed and found.samples_given_up == 16
    assert "weights differ" in verdict(changed=[lost], seen=seen).problem  # it reports fewer samples than it has used
    assert samples(seen).skipped == 16
    assert samples(seen, [Mend(step=7, before=1, after=2)]).skipped == 16, "nobody was lost"


@pytest.mark.parametrize(
    ("step", "remaining"),
    [(5, 8), (9, 8), (6, 7)],
    ids=["batch before the loss", "batch long after the loss", "more than a share"],
)
def test_other_missing_samples_count_as_skipped(step: int, remaining: int) -> None:
    seen = batches()
    seen[step] = seen[step][:remaining]
    assert samples(seen, [Mend(step=7, before=2, after=1)]) == Samples(skipped=16 - remaining)


def test_third_short_batch_counts_as_skipped() -> None:
    seen = batches()
    for step in (6, 7, 8):
        seen[step] = seen[step][:11]
    assert samples(seen, [Mend(step=7, before=3, after=2)]) == Samples(given_up=10, skipped=5)


def test_change_of_members_is_in_place_if_the_chief_process_is_the_same(tmp_path: Path) -> None:
    for generation, (pid, world, first) in {0: (11, 3, 1), 2: (11, 1, 8), 3: (12, 2, 8)}.items():
        (tmp_path / f"pid-0-{generation}").write_text(str(pid))
        (tmp_path / f"world-{generation}").write_text(str(world))
        for step in (first, first + 1):
            (tmp_path / f"{generation}-{step}-0.npy").touch()
    (found,) = mends(tmp_path)
    assert found == Mend(step=8, before=3, after=1) and found.lost == 2


def test_new_result_replaces_the_earlier_one_of_the_same_scenario() -> None:
    old, other = verdict(), replace(verdict(), backend="spark")
    new = replace(old, recovered_s=9.0)
    assert together([old, other], [new]) == [other, new]


def test_table_shows_the_worst_of_all_rounds() -> None:
    good = verdict()
    worse = replace(good, recovered_s=7.25, detail="used again after 8 s")
    failed = replace(good, backend="spark", passed=False, left_over=1, problem="a worker lives")
    given_up = replace(good, over="hopsml", samples_given_up=8)
    old = replace(good, backend="local", on="2020-01-01")
    page = table.page([good, worse, failed, given_up, old], "2 rounds.")
    assert page.count("(played on 2020-01-01)") == 1
    assert "| scenario | local | Spark | YARN |" in page
    assert (
        "(played on 2020-01-01) | **FAILED 1 of 1** 2.50 s, 1 steps, 0 samples, 1 processes | 7.25 s, 1 steps, 0 samples, 0"
        in page
    )
    assert "- harm (yarn): used again after 8 s" in page
    ours, other = page.index("## Over hopsml's collective"), page.index("## By what a run chooses")
    assert ours < page.index("0 samples, 0 processes, 8 given up") < other
    assert table.totals([good, failed]) == {
        "scenarios": 2, "failed": ["harm (spark)"], "left_over": 1, "samples_repeated": 0, "samples_skipped": 0,
    }  # fmt: skip
    assert "FAILED: a worker lives" in table.text([failed])[1]


def test_expected_failure_is_marked_in_the_table() -> None:
    assert "(FAILED, as it must)" in table.page([replace(verdict(), state="FAILED")], "1 round.")
