"""Tests of commits' checkpoints during an outage of the store: retries and messages."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import pytest

from hopsml.cluster.agent import held_commits
from hopsml.cluster.agent.held_commits import HeldCommits
from hopsml.cluster.driver.active_run import ActiveRun, RunRequest
from hopsml.cluster.driver.group_start import _apply_mirror_state, apply, apply_persisted
from hopsml.cluster.driver.run_state import MemberView, RunState
from hopsml.cluster.gang.events import ConcludeRun, Phase
from hopsml.cluster.gang.machine import MemberState
from hopsml.cluster.shared.protocol import Persisted, WorkerUpdate
from hopsml.cluster.shared.spec import ElasticGroup, RunSpec
from hopsml.cluster.shared.worker_events import MirrorLag
from hopsml.storage import checkpoints
from tests.unit.experiment.test_attempts import directory, formation

pytestmark = pytest.mark.fast


def test_frequent_commits_retry_an_unavailable_store_with_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_commits, "FIRST_RETRY_S", 0.1)
    monkeypatch.setattr(held_commits, "LONGEST_RETRY_S", 0.4)
    run = directory(tmp_path, "app_1", 1)
    Path(run.checkpoints).write_text("in the way")  # no directory can be made here
    reports: list[tuple[float, Persisted]] = []
    commits = 0

    def record_report(one: Persisted) -> None:
        reports.append((time.monotonic(), one))
        if len(reports) == 5:
            Path(run.checkpoints).unlink()

    async def scenario() -> None:
        nonlocal commits
        held = HeldCommits(run.run_id, tmp_path / "agent", "token", record_report)
        try:
            while not reports or reports[-1][1].problem:
                commits += 1
                slot = held.slots.find_free_slot(held.slot)
                held.slots.write(slot, commits, [b"content"])
                held.record_commit(commits, slot)
                held.persist_if_due(formation(run, checkpoint_every_s=0.001))
                await asyncio.sleep(0.002)
        finally:
            await held.close()

    (tmp_path / "agent").mkdir()
    asyncio.run(scenario())
    *failed, (_, last) = reports
    assert len(failed) == 5 and all(one.problem for _, one in failed)
    pauses = [after - before for (before, _), (after, _) in itertools.pairwise(failed)]
    assert all(pause >= least for pause, least in zip(pauses, (0.1, 0.2, 0.4, 0.4), strict=True))
    assert last.missed > 10 and commits > 50
    assert checkpoints.steps(run.checkpoints) == [last.step]


def test_commit_overwritten_before_it_is_read_is_not_reported_as_a_storage_problem(tmp_path: Path) -> None:
    """The worker is ahead of its agent's information: the newer commit becomes the checkpoint."""
    run, reports = directory(tmp_path, "app_1", 1), list[Persisted]()

    async def scenario() -> None:
        held = HeldCommits(run.run_id, tmp_path / "agent", "token", reports.append)
        try:
            held.slots.write(0, 1, [b"content"])
            held.record_commit(1, 0)
            held.slots.mark_incomplete(0)
            await held.persist_last(formation(run))
            held.slots.write(1, 2, [b"content"])
            held.record_commit(2, 1)
            held.persist_if_due(formation(run, checkpoint_every_s=0.0))
            await held.persist_last(formation(run))
        finally:
            await held.close()

    (tmp_path / "agent").mkdir()
    asyncio.run(scenario())
    assert [(one.step, one.problem, one.missed) for one in reports] == [(2, "", 0)]
    assert checkpoints.steps(run.checkpoints) == [2]


def test_lag_of_many_mirrors_is_noted_at_the_first_and_at_the_last_recovery():
    spec = ElasticGroup(size=8, min_size=1)
    run = ActiveRun(RunRequest("app_1", RunSpec(group=spec), b"", "file:///run"), RunState("app_1", 8))
    agents = [f"agent-{number}" for number in range(8)]
    run.gang.members = {agent: MemberState(rank) for rank, agent in enumerate(agents)}
    run.state.members = {rank: MemberView(rank, "host", "", ()) for rank in range(8)}

    def report_lag(agent: str, problem: str) -> None:
        apply(run, agent, WorkerUpdate("app_1", 0, MirrorLag(problem)))

    for _ in range(2):
        for agent in (*agents, *agents):
            report_lag(agent, f"mirroring is behind: {agent}")
        for agent in agents[:6]:
            report_lag(agent, "")
        lost = run.gang.members.pop(agents[7])  # it takes its word with it
        report_lag(agents[6], "")
        run.gang.members[agents[7]] = lost
        report_lag(agents[7], "")
    assert run.state.notes == ["mirroring is behind: agent-0", "mirroring is up to date again"] * 2


def test_first_failed_and_first_successful_checkpoint_are_noted():
    spec = ElasticGroup(size=2, min_size=1)
    run = ActiveRun(RunRequest("app_1", RunSpec(group=spec), b"", "file:///run"), RunState("app_1", 2))
    for step in range(1, 60):
        assert apply_persisted(run, "a", Persisted("app_1", step, problem="nobody answers")) is None
    assert apply_persisted(run, "b", Persisted("app_1", 60, problem="nobody answers")) is None  # rank 0 is elsewhere
    for step in (61, 62):
        event = apply_persisted(run, "b", Persisted("app_1", step, missed=7 if step == 61 else 0))
        assert event is not None and event.step == step  # type: ignore[union-attr]
    first, second = run.state.notes
    assert first == "checkpoints cannot be written; retrying: step 1: nobody answers"
    assert second == "checkpoints are written again; 7 were missed"


def test_notes_about_a_lasting_loss_are_repeated_with_counts_at_growing_intervals() -> None:
    spec = ElasticGroup(size=2, min_size=1, retry_s=300.0)
    run = ActiveRun(RunRequest("app_1", RunSpec(group=spec), b"", "hdfs://nn/run"), RunState("app_1", 2))
    run.gang.members = {agent: MemberState(rank) for rank, agent in enumerate("ab")}
    for second in range(0, 1000, 30):
        for number, agent in enumerate("ab"):
            _apply_mirror_state(run, agent, MirrorLag("mirroring is behind: quota", 10 + number), float(second))
        apply_persisted(run, "a", Persisted("app_1", 7, problem="quota", missed=second // 30), float(second))
    mirror = [note for note in run.state.notes if note.startswith("mirroring")]
    assert mirror[0] == "mirroring is behind: quota"
    times = ("60 s", "3 min", "7 min", "15 min")
    files = "21 files of 2 workers are not stored"
    assert mirror[1:] == [f"mirroring is behind: quota (for {lasted}; {files})" for lasted in times]
    checkpoints_ = [note for note in run.state.notes if note.startswith("checkpoints")]
    assert len(checkpoints_) == 5 and "(for 15 min; 30 were missed)" in checkpoints_[-1]
    run.gang.phase, run.gang.outcome = Phase.STOPPING, ConcludeRun(Phase.FINISHED)
    _apply_mirror_state(run, "a", MirrorLag("mirroring is behind: quota", 10), 2000.0)
    assert run.state.notes[-1].endswith("storing is retried for up to 300 s (HOPSML_STORAGE_RETRY_S)")
    for agent in "ab":
        _apply_mirror_state(run, agent, MirrorLag(""), 2001.0)
    assert run.state.notes[-1] == "mirroring is up to date again"
