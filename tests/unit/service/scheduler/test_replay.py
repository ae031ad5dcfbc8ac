"""Tests of job logs in the scheduler: waits of a small log by hand, and those of a real cluster's days."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from benchmarks import queue_controls
from benchmarks.scheduler_replay import LoggedJob, ReplayOutcome, read, replay
from benchmarks.service import TRACE
from hopsml.service.scheduler.resources import Policy, Queue, Resources
from tests.unit.service.scheduler.clusters import FIRST_COME

DAY_S = 86400.0


def jobs(*rows: tuple[float, int, float]) -> list[LoggedJob]:
    return [LoggedJob(str(number), *row) for number, row in enumerate(rows)]


@pytest.mark.fast
def test_first_come_replay_starts_jobs_in_order_of_submission():
    outcome = replay(jobs((0, 2, 100), (10, 2, 50), (20, 1, 10)), {"a": 2}, FIRST_COME)
    assert outcome.waits_s == {"0": 0.0, "1": 90.0, "2": 130.0}
    assert (outcome.mean_s, outcome.longest_s, outcome.mean_of_large_s(2)) == (pytest.approx(220 / 3), 130.0, 45.0)


@pytest.mark.fast
def test_preemption_costs_are_part_of_the_wait():
    """The first job has used its hour when the second, of one minute, is submitted and preempts it."""
    outcome = replay(jobs((0, 1, 8000), (4000, 1, 60)), {"a": 1}, Policy(), release_s=30.0, restart_s=90.0)
    assert outcome.waits_s == {"0": 30.0 + 60.0 + 90.0, "1": 30.0}
    assert outcome.preemptions == 1


@pytest.mark.fast
def test_elastic_job_with_fewer_slots_is_proportionally_slower():
    """100 s with 4 slots, 100 s with 2 next to another job, then 4 again: 50 s longer than alone."""
    log = [LoggedJob("elastic", 0.0, 4, 1000.0, least=1), LoggedJob("other", 100.0, 2, 100.0)]
    outcome = replay(log, {"a": 4}, Policy())
    assert outcome.waits_s == {"elastic": 50.0, "other": 0.0}
    assert outcome.preemptions == 0


@pytest.mark.fast
def test_job_log_is_read_plain_or_compressed_from_a_first_second(tmp_path: Path):
    text = "job_id,submit_s,gpus,duration_s,queue\nx,5,1,0,q\ny,10,2,7,r\n"
    (tmp_path / "log.csv").write_text(text)
    with gzip.open(tmp_path / "log.csv.gz", "wt") as packed:
        packed.write(text)
    for name in ("log.csv", "log.csv.gz"):
        assert list(read(tmp_path / name, queues=True)) == [
            LoggedJob("x", 5.0, 1, 1.0, "q"),  # what took no time at all took a second
            LoggedJob("y", 10.0, 2, 7.0, "r"),
        ]
        assert [job.job_id for job in read(tmp_path / name, first_s=6.0)] == ["y"]


@pytest.mark.fast
def test_job_log_range_includes_its_first_second_and_excludes_its_last(tmp_path: Path):
    rows = "".join(f"j{at},{at},3,2.5,q\n" for at in (5, 6, 7, 8))
    (tmp_path / "log.csv").write_text("job_id,submit_s,gpus,duration_s,queue\n" + rows)
    assert list(read(tmp_path / "log.csv", first_s=6.0, last_s=8.0)) == [
        LoggedJob("j6", 6.0, 3, 2.5, "default"),
        LoggedJob("j7", 7.0, 3, 2.5, "default"),
    ]
    (tmp_path / "log.csv").write_text("job_id,submit_s,gpus,duration_s,queue\nj,0,1,1,q\n")
    assert list(read(tmp_path / "log.csv")) == [LoggedJob("j", 0.0, 1, 1.0)]


@pytest.mark.fast
def test_replay_outcome_statistics():
    outcome = ReplayOutcome({"a": 1.0, "b": 4.0, "c": 2.0, "d": 3.0}, {"a": 1, "b": 8, "c": 8, "d": 4})
    assert (outcome.mean_s, outcome.longest_s) == (2.5, 4.0)
    assert [outcome.quantile_s(share) for share in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)] == [1.0, 2.0, 3.0, 4.0, 4.0, 4.0]
    assert [outcome.mean_of_large_s(gpus) for gpus in (0, 4, 5, 8, 9)] == [2.5, 3.0, 3.0, 3.0, 0.0]
    nothing = ReplayOutcome()
    assert (nothing.mean_s, nothing.longest_s, nothing.quantile_s(0.5), nothing.mean_of_large_s(1)) == (0.0,) * 4
    assert (nothing.preemptions, nothing.events, nothing.waits_s, nothing.gpus) == (0, 0, {}, {})
    one = ReplayOutcome({"a": 0.5}, {"a": 1})
    assert (one.mean_s, one.longest_s, one.quantile_s(1.0), one.mean_of_large_s(1)) == (0.5, 0.5, 0.5, 0.5)


@pytest.mark.fast
def test_replay_handles_late_starts_and_several_nodes_and_queues():
    log = [
        LoggedJob("one", 1000.0, 3, 50.0, "a"),
        LoggedJob("two", 1010.0, 1, 20.0, "b"),
        LoggedJob("three", 1010.0, 2, 20.0, "b"),
    ]
    outcome = replay(log, {"n1": 2, "n2": 1}, FIRST_COME, queues=(Queue("a"), Queue("b")))
    assert outcome.waits_s == {"one": 0.0, "two": 40.0, "three": 40.0}
    assert outcome.gpus == {"one": 3, "two": 1, "three": 2}
    assert (outcome.preemptions, outcome.events) == (0, 6)  # each is submitted and ends
    assert replay([], {"n": 1}) == ReplayOutcome()


@pytest.mark.fast
def test_jobs_of_the_same_second_keep_the_order_of_the_log():
    log = [LoggedJob(name, 5.0, 1, 10.0) for name in ("b", "c", "a")]
    assert replay(log, {"n": 1}, FIRST_COME).waits_s == {"b": 0.0, "c": 10.0, "a": 20.0}


@pytest.mark.fast
def test_queue_limits_hold_in_a_replay():
    log = [LoggedJob(name, 0.0, 1, 10.0, "q") for name in ("a", "b")]
    outcome = replay(log, {"n": 2}, FIRST_COME, queues=(Queue("q", limit=Resources(gpus=1)),))
    assert outcome.waits_s == {"a": 0.0, "b": 10.0}


@pytest.mark.fast
def test_preempted_job_runs_its_remaining_time_plus_the_restart_cost():
    """Preempted after 3600 s, it has 400 s left, and is back 10 + 100 s later; it is preempted no second time."""
    policy = Policy(levels_s=(3600.0,), least_run_s=0.0)
    outcome = replay(jobs((0, 2, 4000), (100, 1, 100)), {"a": 2}, policy, release_s=10.0, restart_s=7.0)
    assert outcome.waits_s == {"0": 10.0 + 100.0 + 7.0, "1": 1800.0 - 100.0 + 10.0}
    assert (outcome.preemptions, outcome.gpus) == (1, {"0": 2, "1": 1})


@pytest.mark.fast
def test_all_jobs_preempted_at_once_release_their_slots():
    """After more than an hour, two jobs make way for one that needs both GPUs for a minute."""
    log = jobs((0, 1, 8000), (0, 1, 8000), (4000, 2, 60))
    outcome = replay(log, {"a": 2}, Policy(), release_s=30.0, restart_s=90.0)
    assert outcome.waits_s == {"0": 180.0, "1": 180.0, "2": 30.0} and outcome.preemptions == 2


@pytest.mark.fast
def test_preemption_without_costs_adds_only_the_time_of_the_other_job():
    outcome = replay(jobs((0, 1, 8000), (4000, 1, 60)), {"a": 1}, Policy())
    assert outcome.waits_s == {"0": 60.0, "1": 0.0} and outcome.preemptions == 1


@pytest.mark.fast
def test_elastic_job_starts_with_the_free_slots_and_grows():
    """500 s with 2 of 4, then with all of them: half of its 1000 s are left, and a quarter is lost."""
    log = [LoggedJob("other", 0.0, 2, 500.0), LoggedJob("elastic", 0.0, 4, 1000.0, least=2)]
    outcome = replay(log, {"a": 4}, FIRST_COME)
    assert outcome.waits_s == {"other": 0.0, "elastic": 250.0}
    assert outcome.events == 4


@pytest.mark.fast
def test_job_that_never_fits_has_no_wait():
    outcome = replay(jobs((0, 3, 10), (5, 1, 10)), {"a": 2}, Policy(longest_wait_s=100.0))
    assert outcome.waits_s == {"1": 0.0}


@pytest.mark.fast
def test_job_whose_level_falls_makes_way_at_that_time_without_another_event():
    """After 100 s with one GPU the first falls to the second level: nothing else happens then."""
    policy = Policy(levels_s=(100.0,), least_run_s=0.0)
    outcome = replay(jobs((0, 1, 500), (20, 1, 50)), {"a": 1}, policy)
    assert outcome.waits_s == {"0": 50.0, "1": 80.0}


@pytest.mark.variant
@pytest.mark.local
def test_mean_wait_of_a_real_cluster_is_a_quarter_of_first_come():
    """First-come waits equal those of the control for each job; the default policy has at most a quarter of their mean."""
    log = list(read(TRACE, first_s=28 * DAY_S, last_s=31 * DAY_S))
    fifo = replay(log, {"pool": 300}, FIRST_COME)
    assert sorted(fifo.waits_s.values()) == pytest.approx(sorted(queue_controls.first_come(log, 300)))
    ours = replay(log, {"pool": 300}, Policy(), restart_s=90.0)
    assert len(ours.waits_s) == len(log) == 5345
    assert ours.mean_s < 0.25 * fifo.mean_s
    assert ours.longest_s < fifo.longest_s


@pytest.mark.local
@pytest.mark.variant
def test_all_jobs_of_a_real_log_end_and_the_longest_wait_is_below_first_come():
    """82 247 jobs in 109 days: all end, and the longest wait is below that of first come, first served."""
    log = list(read(TRACE))
    ours = replay(log, {"pool": 600}, Policy(), restart_s=90.0)
    assert len(ours.waits_s) == 82247
    assert ours.longest_s < max(queue_controls.first_come(log, 600))
    print(f"{ours.events} events")
