"""Jobs of a log through the scheduler: the waits of a small log by hand, and those of a real cluster's days."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from benchmarks import queue_controls
from benchmarks.service import TRACE
from hopsml.service.scheduler.policy import Policy
from hopsml.service.scheduler.replay import LoggedJob, read, replay
from tests.service.scheduler.clusters import FIRST_COME

DAY_S = 86400.0


def jobs(*rows: tuple[float, int, float]) -> list[LoggedJob]:
    return [LoggedJob(str(number), *row) for number, row in enumerate(rows)]


@pytest.mark.fast
def test_waits_in_the_order_they_came():
    outcome = replay(jobs((0, 2, 100), (10, 2, 50), (20, 1, 10)), {"a": 2}, FIRST_COME)
    assert outcome.waits_s == {"0": 0.0, "1": 90.0, "2": 130.0}
    assert (outcome.mean_s, outcome.longest_s, outcome.mean_of_large_s(2)) == (pytest.approx(220 / 3), 130.0, 45.0)


@pytest.mark.fast
def test_what_a_preemption_costs_is_waited_for():
    """The first has had its hour when the second comes; then that one, for a minute, goes first."""
    outcome = replay(jobs((0, 1, 8000), (4000, 1, 60)), {"a": 1}, Policy(), release_s=30.0, restart_s=90.0)
    assert outcome.waits_s == {"0": 30.0 + 60.0 + 90.0, "1": 30.0}
    assert outcome.preemptions == 1


@pytest.mark.fast
def test_an_elastic_job_goes_on_with_fewer_as_much_slower():
    """Alone for 100 s with 4, then with 2 beside another for 100 s, then with 4 again: 50 s more than alone."""
    log = [LoggedJob("elastic", 0.0, 4, 1000.0, least=1), LoggedJob("other", 100.0, 2, 100.0)]
    outcome = replay(log, {"a": 4}, Policy())
    assert outcome.waits_s == {"elastic": 50.0, "other": 0.0}
    assert outcome.preemptions == 0


@pytest.mark.fast
def test_a_log_is_read_plain_or_packed_and_cut_by_time(tmp_path: Path):
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


@pytest.mark.local
def test_three_days_of_a_real_cluster():
    """Strictly in order it is what the control says, job for job; by our rules the mean is a quarter of that at most."""
    log = list(read(TRACE, first_s=28 * DAY_S, last_s=31 * DAY_S))
    fifo = replay(log, {"pool": 300}, FIRST_COME)
    assert sorted(fifo.waits_s.values()) == pytest.approx(sorted(queue_controls.first_come(log, 300)))
    ours = replay(log, {"pool": 300}, Policy(), restart_s=90.0)
    assert len(ours.waits_s) == len(log) == 5345
    assert ours.mean_s < 0.25 * fifo.mean_s
    assert ours.longest_s < fifo.longest_s


@pytest.mark.local
@pytest.mark.variant
def test_the_whole_log():
    """82 247 jobs in 109 days: all of them end, and nobody waits longer than strictly in order."""
    log = list(read(TRACE))
    ours = replay(log, {"pool": 600}, Policy(), restart_s=90.0)
    assert len(ours.waits_s) == 82247
    assert ours.longest_s < max(queue_controls.first_come(log, 600))
    print(f"{ours.events} events")
