"""Tests of the detection of the rank that others wait for."""

from __future__ import annotations

import json
import random

import pytest

from hopsml.service.browse.metrics import LEAST_SAMPLES, RankMark, RankUse, slow_ranks, use_of
from tests.helpers.service.project import ProjectOnDisk
from tests.unit.service.test_rest import send_request

pytestmark = pytest.mark.fast


def rank_use(rank: int, cpu: float = 20.0, disk: float = 0.0, network: float = 0.0, silent_s: float = 0.0) -> RankUse:
    return RankUse(rank, 12, silent_s, 5.0, cpu, disk, network)


def phases(marks: list[RankMark]) -> dict[int, str]:
    return {mark.rank: mark.phase for mark in marks}


def test_rank_that_computes_while_others_wait_is_marked() -> None:
    marks = slow_ranks([rank_use(0), rank_use(1), rank_use(2, cpu=95.0), rank_use(3)])
    assert phases(marks) == {0: "waits", 1: "waits", 2: "cpu", 3: "waits"}
    assert marks[0].why == "waits for rank 2"
    assert marks[2].why == "it computes (95 % of a core) while the others wait (20 %)"
    assert phases(slow_ranks([rank_use(0, cpu=10.0), rank_use(1, cpu=99.0)])) == {0: "waits", 1: "cpu"}, (
        "of two as well"
    )


@pytest.mark.parametrize(
    "ranks",
    [
        [rank_use(0, cpu=95.0)],
        [rank_use(0, cpu=90.0), rank_use(1, cpu=99.0), rank_use(2, cpu=95.0)],
        [rank_use(0, cpu=2.0), rank_use(1, cpu=5.0), rank_use(2, cpu=3.0)],
        [rank_use(0, disk=40.0), rank_use(1, disk=38.0), rank_use(2, disk=44.0)],
        [rank_use(0, disk=4.0), rank_use(1), rank_use(2)],
        [RankUse(0, LEAST_SAMPLES - 1, 0.0, 5.0, 99.0, 0.0, 0.0), rank_use(1), rank_use(2)],
        [rank_use(0, silent_s=15.0), rank_use(1), rank_use(2)],
        [],
    ],
    ids=["alone", "all work", "all wait", "all read", "reads little", "too new", "a late sample", "no ranks"],
)
def test_no_rank_is_marked_without_a_clear_difference(ranks: list[RankUse]) -> None:
    assert slow_ranks(ranks) == []


def test_rank_that_reads_disk_network_or_is_silent_is_marked() -> None:
    assert phases(slow_ranks([rank_use(0), rank_use(1, disk=40.0), rank_use(2)])) == {1: "disk"}
    assert phases(slow_ranks([rank_use(0), rank_use(1), rank_use(2, network=90.0)])) == {2: "network"}
    idle = slow_ranks([rank_use(0, cpu=1.0), rank_use(1, silent_s=45.0), rank_use(2, cpu=1.0)])
    assert phases(idle) == {0: "waits", 1: "silent", 2: "waits"} and "no sample for 45 s" in idle[1].why
    assert phases(slow_ranks([rank_use(0, cpu=60.0), rank_use(1, silent_s=45.0)])) == {1: "silent"}, (
        "who computes does not wait"
    )


def test_single_pause_or_burst_does_not_mark_a_rank() -> None:
    times = [1000.0 + 5 * number for number in range(12)]
    steady = [(time, 80.0) for time in times]
    paused = [*steady[:5], (times[5], 0.0), *steady[6:]]
    burst = [10.0 * (number > 6) * 100 for number in range(12)]
    uses = [use_of(rank, times[-1], cpu, {}) for rank, cpu in enumerate([steady, paused, steady])]
    assert slow_ranks(uses) == []
    assert use_of(0, times[-1], steady, {"disk": burst}).disk == 0.0, "a gigabyte at once"
    assert use_of(0, times[-1], steady, {"disk": [50.0 * number for number in range(12)]}).disk == 10.0
    assert use_of(0, times[-1] + 30, steady, {}).silent_s == 30.0


def test_marks_do_not_depend_on_rank_order_and_blame_no_waiting_rank() -> None:
    chance = random.Random(7)
    for _ in range(300):
        size = chance.randint(1, 8)
        ranks = [
            rank_use(rank, chance.uniform(0, 200), chance.choice([0, 30]), 0, chance.choice([0, 0, 60]))
            for rank in range(size)
        ]
        marks = slow_ranks(ranks)
        assert marks == slow_ranks(chance.sample(ranks, size)) and len(phases(marks)) == len(marks)
        for mark in marks:
            if mark.phase == "waits":
                assert phases(marks)[int(mark.why.rpartition(" ")[2])] in ("cpu", "silent")


def test_slow_ranks_are_computed_from_the_files_of_a_run(project: ProjectOnDisk) -> None:
    run = project.run("app_1", state=None)
    for rank, cpu in enumerate([12.0, 96.0, 14.0]):
        used = {"cpu_utilization_percentage": cpu, "disk_write_megabytes": 0}
        lines = [{"time": 1000 + 5 * n, "step": n, "disk_read_megabytes": n, **used} for n in range(20)]
        (run.folder / "logs" / f"g0-rank{rank}.system.jsonl").write_text(
            "".join(json.dumps(one) + "\n" for one in lines)
        )
    marks = send_request(project, "/api/runs/app_1/slow").json()["marks"]
    assert [(one["rank"], one["phase"]) for one in marks] == [(0, "waits"), (1, "cpu"), (2, "waits")]
    assert send_request(project, "/api/runs/app_1/slow?trial=none").status_code == 404
