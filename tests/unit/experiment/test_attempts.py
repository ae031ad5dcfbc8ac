"""Tests of a driver that YARN restarted, and its handling of calls of the previous attempt."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hopsml.cluster.agent.held_commits import HeldCommits
from hopsml.cluster.agent.worker_files import (
    checkpoint_sources,
    fetch_checkpoint,
    fetch_later_fit_checkpoints,
    newer_stored_step,
)
from hopsml.cluster.shared.protocol import CommitSource, Formation, Persisted, Resume
from hopsml.cluster.shared.spec import ElasticGroup, RunSpec
from hopsml.errors import ArgumentError, RunError, StorageError
from hopsml.experiment import takeover
from hopsml.experiment.takeover import ContinueRun, EarlierRun, RefuseCall, StartNewRun, VerbCall, decide_takeover
from hopsml.storage import checkpoints
from hopsml.storage.run_dir import RunDir, step_name

pytestmark = pytest.mark.fast

TRAIN = VerbCall("collective_all_reduce", "train", "c0de", '{"lr": 0.1}')
OTHER = VerbCall("collective_all_reduce", "train", "c0de", '{"lr": 0.2}')


def run(number: int, call: VerbCall = TRAIN, attempt: int = 1, continues: int = 0, raised: str = "") -> EarlierRun:
    return EarlierRun(f"/p/app_{number}", call, attempt, number, f"/p/app_{continues}" if continues else "", raised)


class Script:
    """The calls of one driver, in order, as ``EarlierRuns`` would answer them."""

    def __init__(self, attempt: int, runs: list[EarlierRun]) -> None:
        self.attempt, self.runs, self.answered = attempt, runs, set[str]()

    def call(self, call: VerbCall = TRAIN) -> str:
        decision = decide_takeover(call, self.attempt, self.runs, self.answered)
        if isinstance(decision, StartNewRun):
            return "new"
        self.answered.add(decision.run.url)
        return f"{'refused' if isinstance(decision, RefuseCall) else 'goes on'} {decision.run.number}"


def test_repeated_call_continues_its_run_of_the_previous_attempt() -> None:
    assert decide_takeover(TRAIN, 2, [run(1, OTHER), run(2)]) == ContinueRun(run(2))


def test_new_call_starts_a_new_run() -> None:
    assert decide_takeover(TRAIN, 2, [run(1, OTHER)]) == StartNewRun()
    assert decide_takeover(TRAIN, 2, []) == StartNewRun()


def test_runs_of_the_same_attempt_are_not_continued() -> None:
    assert decide_takeover(TRAIN, 2, [run(1, attempt=2)]) == StartNewRun()


def test_equal_calls_continue_earlier_runs_in_order() -> None:
    script = Script(2, [run(2), run(1), run(3, OTHER)])
    assert [script.call(), script.call(OTHER), script.call(), script.call()] == [
        "goes on 1", "goes on 3", "goes on 2", "new",
    ]  # fmt: skip


def test_call_that_failed_in_user_code_is_refused_once() -> None:
    """A script that tries again after an error finds its second try."""
    script = Script(2, [run(1, raised="ValueError"), run(2)])
    assert [script.call(), script.call()] == ["refused 1", "goes on 2"]


def test_third_attempt_continues_the_runs_of_both_earlier_ones() -> None:
    script = Script(3, [run(1), run(2), run(3, attempt=2, continues=1)])
    # The second attempt had continued the first run, and died before it reached the second.
    assert [script.call(), script.call()] == ["goes on 3", "goes on 2"]


# ------------------------------------------------------------------------------------------ on a store


def record(call: VerbCall, attempt: int, **more: Any) -> dict[str, Any]:
    return {
        "verb": call.verb, "function": call.function, "code_sha256": call.code_sha256, "arguments": {"lr": 0.1},
        "attempt": attempt, **more,
    }  # fmt: skip


def directory(store: Path, name: str, attempt: int, **more: Any) -> RunDir:
    made = RunDir(str(store / "Experiments" / name))
    made.write_run(record(TRAIN, attempt, **more))
    return made


def checkpoint(run_dir: RunDir, folder: Path, step: int, content: str = "state", fit: int = 1) -> None:
    source = folder / f"source-{run_dir.run_id}-{fit}-{step}"
    source.mkdir()
    (source / "state.hopsml").write_text(content)
    checkpoints.commit(source, run_dir.checkpoints_of_fit(fit), step)


def test_each_earlier_run_is_taken_over_once(tmp_path: Path) -> None:
    first = directory(tmp_path, "app_1", 1)
    directory(tmp_path, "app_x_1", 1)
    directory(tmp_path, "other_1", 1)
    (tmp_path / "Experiments" / "app_7").mkdir()
    runs = takeover.EarlierRuns("app", 2)
    assert runs.reserve_run_to_continue(str(tmp_path), record(TRAIN, 2)) == first.url
    assert runs.reserve_run_to_continue(str(tmp_path), record(TRAIN, 2)) == ""
    assert takeover.EarlierRuns("app", 1).reserve_run_to_continue(str(tmp_path), record(TRAIN, 1)) == ""
    assert takeover.EarlierRuns("app", 2).reserve_run_to_continue(str(tmp_path / "empty"), record(TRAIN, 2)) == ""


def test_error_in_user_code_is_reported_and_not_repeated(tmp_path: Path) -> None:
    first = directory(tmp_path, "app_1", 1)
    first.write_status_once({"state": "FAILED", "error": "rank 1: KeyError: 'label'", "raised": True})
    with pytest.raises(RunError, match="KeyError: 'label'"):
        takeover.EarlierRuns("app", 2).reserve_run_to_continue(str(tmp_path), record(TRAIN, 2))


def test_error_in_user_code_is_retried_if_further_attempts_are_requested(tmp_path: Path) -> None:
    first = directory(tmp_path, "app_1", 1)
    first.write_status_once({"state": "FAILED", "error": "rank 1: KeyError: 'label'", "raised": True})
    assert (
        takeover.EarlierRuns("app", 2, forgives=True).reserve_run_to_continue(str(tmp_path), record(TRAIN, 2))
        == first.url
    )


def test_run_ended_by_the_cluster_is_continued(tmp_path: Path) -> None:
    first = directory(tmp_path, "app_1", 1)
    first.write_status_once({"state": "FAILED", "error": "rank 1: its executor is gone", "raised": False})
    assert takeover.EarlierRuns("app", 2).reserve_run_to_continue(str(tmp_path), record(TRAIN, 2)) == first.url


def test_checkpoint_is_searched_along_the_chain_of_continued_runs(tmp_path: Path) -> None:
    first, second = directory(tmp_path, "app_1", 1), directory(tmp_path, "app_2", 1)
    second.write_run(record(TRAIN, 2, continues=first.url))
    third = directory(tmp_path, "app_3", 3, continues=second.url)
    assert takeover.checkpoint_of(third.url) == ("", -1)
    checkpoint(first, tmp_path, 4)
    assert takeover.checkpoint_of(third.url) == (first.url, 4)
    checkpoint(second, tmp_path, 6)
    assert takeover.checkpoint_of(third.url) == (second.url, 6)
    assert takeover.checkpoint_of("") == ("", -1)
    (weights,) = (path for path in Path(second.checkpoints, "step-000000006").iterdir() if path.suffix != ".json")
    weights.write_bytes(b"!" * weights.stat().st_size)
    assert takeover.checkpoint_of(third.url) == (first.url, 4), "that one fails its checksum"


def test_checkpoints_of_further_fits_are_searched_along_the_chain_of_continued_runs(tmp_path: Path) -> None:
    first, second = directory(tmp_path, "app_1", 1), directory(tmp_path, "app_2", 1)
    second.write_run(record(TRAIN, 2, continues=first.url))
    third = directory(tmp_path, "app_3", 3, continues=second.url)
    assert takeover.later_fit_checkpoints(third.url) == takeover.later_fit_checkpoints("") == ()
    checkpoint(first, tmp_path, 4)
    assert takeover.later_fit_checkpoints(third.url) == ()
    for fit, step in ((2, 6), (2, 8), (3, 1)):
        checkpoint(first, tmp_path, step, fit=fit)
    assert takeover.later_fit_checkpoints(third.url) == ((first.url, 2, 8), (first.url, 3, 1))
    # The second run passed over the first two, and went on in the third.
    checkpoint(second, tmp_path, 2, fit=3)
    assert takeover.later_fit_checkpoints(third.url) == ((first.url, 2, 8), (second.url, 3, 2))
    assert takeover.checkpoint_of(third.url) == (first.url, 4)
    # The third run trained further in the first: remaining checkpoints of the second have another origin.
    checkpoint(third, tmp_path, 9)
    assert takeover.later_fit_checkpoints(third.url) == ()


def test_workers_fetch_the_checkpoints_of_further_fits(tmp_path: Path) -> None:
    first, second = directory(tmp_path, "app_1", 1), directory(tmp_path, "app_2", 2)
    checkpoint(first, tmp_path, 4, fit=2)
    checkpoint(first, tmp_path, 6, fit=2)
    begins = formation(second, fits=((first.url, 2, 4),))
    found, passed_over = fetch_later_fit_checkpoints(begins, tmp_path / "fits")
    assert [str(path.relative_to(found)) for path in Path(found).glob("*/*")] == ["fit-2/step-000000004"]
    assert not passed_over
    assert fetch_later_fit_checkpoints(formation(second), tmp_path / "none") == ("", [])
    checkpoint(second, tmp_path, 9, fit=3)
    later = formation(second, generation=1, fits=((first.url, 2, 4),))
    found, _ = fetch_later_fit_checkpoints(later, tmp_path / "later")
    assert sorted(str(path.relative_to(found)) for path in Path(found).glob("*/*")) == [
        "fit-2/step-000000004",
        "fit-3/step-000000009",
    ]


def test_first_recorded_end_of_a_run_is_not_overwritten(tmp_path: Path) -> None:
    """A driver that was taken for dead, and was not, does not undo what its successor has written."""
    first, second = directory(tmp_path, "app_1", 1), directory(tmp_path, "app_2", 2)
    first.check_not_ended()
    takeover.hand_over_run(first.url, second)
    status = first.read_status()
    assert status is not None and (status["state"], status["continued_by"]) == ("LOST", second.url)
    assert not first.write_status_once({"state": "FINISHED"})
    assert first.read_status() == status
    with pytest.raises(StorageError, match="app_2"):
        first.check_not_ended()


# ------------------------------------------------------------------------------------------ on an agent


def formation(
    run_dir: RunDir,
    generation: int = 0,
    checkpoint_every_s: float = 60.0,
    commit_step: int = -1,
    storage_timeout_s: float = 5.0,
    **resume: Any,
) -> Formation:
    group = ElasticGroup(grace_s=0.0, flush_s=0.0, checkpoint_every_s=checkpoint_every_s)
    spec = RunSpec(group=group, storage_timeout_s=storage_timeout_s)
    return Formation(
        run_id=run_dir.run_id, generation=generation, spec=spec, payload=b"", cluster_json="", leader="", world_size=1,
        run_url=run_dir.url, resume=Resume(**resume), commit=CommitSource(commit_step),
    )  # fmt: skip


def test_disconnected_agent_adds_no_checkpoint_to_a_run_continued_elsewhere(tmp_path: Path) -> None:
    first, second = directory(tmp_path, "app_1", 1), directory(tmp_path, "app_2", 2)
    reported: list[Persisted] = []

    async def life() -> None:
        held = HeldCommits(first.run_id, tmp_path / "agent", "token", reported.append)
        try:
            for step in (3, 5):
                slot = held.slots.find_free_slot(held.slot)
                held.slots.write(slot, step, [b"content"])
                held.record_commit(step, slot)
                await held.persist_last(formation(first), patience_s=60.0)  # of no use: not tried again
                takeover.hand_over_run(first.url, second)  # while it was away
        finally:
            await held.close()

    (tmp_path / "agent").mkdir()
    asyncio.run(life())
    assert checkpoints.steps(first.checkpoints) == [3]
    assert [(one.step, bool(one.problem)) for one in reported] == [(3, False), (5, True)] and "app_2" in reported[
        1
    ].problem


def test_last_checkpoint_is_retried_while_the_store_is_unavailable(tmp_path: Path) -> None:
    first = directory(tmp_path, "app_1", 1)
    Path(first.checkpoints).write_text("in the way")  # no directory can be made here
    reported: list[Persisted] = []

    def tell(one: Persisted) -> None:
        reported.append(one)
        if one.problem:
            Path(first.checkpoints).unlink()

    async def life() -> None:
        held = HeldCommits(first.run_id, tmp_path / "agent", "token", tell)
        try:
            slot = held.slots.find_free_slot(held.slot)
            held.slots.write(slot, 7, [b"content"])
            held.record_commit(7, slot)
            await held.persist_last(formation(first), patience_s=30.0)
        finally:
            await held.close()

    (tmp_path / "agent").mkdir()
    asyncio.run(life())
    assert [(one.step, bool(one.problem), one.missed) for one in reported] == [(7, True, 1), (7, False, 1)]
    assert checkpoints.steps(first.checkpoints) == [7]


def test_all_members_start_from_the_checkpoint_chosen_by_the_driver(tmp_path: Path) -> None:
    first, second = directory(tmp_path, "app_1", 1), directory(tmp_path, "app_2", 2)
    for step in (2, 4):
        checkpoint(first, tmp_path, step)
    begins = formation(second, url=first.url, step=2)  # step 4 was stored later, by an agent that was cut off
    found, passed_over = fetch_checkpoint(begins, tmp_path / "resume")
    assert Path(found).name == "step-000000002" and not passed_over


def test_commit_on_the_store_that_is_newer_than_the_drivers_is_found(tmp_path: Path) -> None:
    own = directory(tmp_path, "app_1", 1)

    def begins(stored: int, step: int = -1) -> Formation:
        source = CommitSource(step, stored=stored)
        return msgspec.structs.replace(formation(own, generation=1), commit=source)

    checkpoint(own, tmp_path, 26)
    assert newer_stored_step(begins(26)) is None
    checkpoint(own, tmp_path, 36)
    assert newer_stored_step(begins(26)) == 36 and newer_stored_step(begins(36)) is None
    assert newer_stored_step(begins(26, step=30)) is None, "others hold one"
    assert newer_stored_step(begins(-1)) is None, "all take the newest"
    Path(own.checkpoints, step_name(36), "state.hopsml").rename(Path(own.checkpoints, step_name(36), "weights"))
    assert newer_stored_step(begins(26)) is None, "it is incomplete"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "weights").write_text("the user's")
    checkpoints.commit(tmp_path / "own", own.checkpoints, 40)
    assert newer_stored_step(begins(26)) is None, "it is no commit"


def test_later_generation_prefers_its_own_checkpoint_to_the_resumed_one(tmp_path: Path) -> None:
    first, second = directory(tmp_path, "app_1", 1), directory(tmp_path, "app_2", 2)
    checkpoint(first, tmp_path, 2)
    later = formation(second, generation=1, url=first.url, step=2)
    assert Path(fetch_checkpoint(later, tmp_path / "resume")[0]).name == "step-000000002"
    checkpoint(second, tmp_path, 9)
    assert Path(fetch_checkpoint(later, tmp_path / "resume")[0]).name == "step-000000009"
    assert checkpoint_sources(formation(second, generation=1, commit_step=11)) == []
    assert fetch_checkpoint(formation(second), tmp_path / "resume") == ("", [])


def test_damaged_checkpoint_is_skipped_for_the_previous_one(tmp_path: Path) -> None:
    first = directory(tmp_path, "app_1", 1)
    for step in (2, 4):
        checkpoint(first, tmp_path, step)
    damaged = Path(first.checkpoints, step_name(4), "state.hopsml")
    damaged.write_text("spoil")  # of the same length
    found, passed_over = fetch_checkpoint(formation(first, generation=1), tmp_path / "resume")
    assert Path(found).name == "step-000000002"
    assert len(passed_over) == 1 and "step-000000004" in passed_over[0] and "CRC" in passed_over[0]


@pytest.mark.parametrize("record", [{"attempt": "x"}, {"attempt": [1]}, {"spec": 3, "attempt": {}}, {"attempt": 1e999}])
def test_malformed_record_of_an_earlier_run_is_reported(tmp_path: Path, record: dict[str, Any]) -> None:
    directory = RunDir(str(tmp_path / "app_1"))
    directory.write_run(record)
    with pytest.raises(ArgumentError, match="the records of run app_1 are not as hopsml writes them"):
        takeover._read(directory)
