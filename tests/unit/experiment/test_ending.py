"""Tests of the decision how a run ends, from what it promised to store and what is stored."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from hopsml.cluster.driver.run_state import UnstoredFiles
from hopsml.core.states import Lifecycle
from hopsml.errors import QuotaExceeded, ResultsNotStored, RunCancelled, StorageUnavailable
from hopsml.experiment import ending
from hopsml.experiment.ending import PROMISED, Kind, RecordWriter, Storing, decide, kind_of, storing_of
from hopsml.storage import left_files
from hopsml.storage.run_dir import RunDir

pytestmark = pytest.mark.fast
FINISHED, FAILED, CANCELLED = Lifecycle.FINISHED, Lifecycle.FAILED, Lifecycle.CANCELLED


@pytest.mark.parametrize(
    ("promised", "lost", "ended_as", "cancelled", "state", "status", "words"),
    [
        (PROMISED, {}, FINISHED, False, FINISHED, 0, ""),
        (PROMISED, {}, FINISHED, True, FINISHED, 0, ""),  # the request came too late: all is stored
        (PROMISED, {Kind.RESULT: 1}, FINISHED, False, FAILED, 1, "the result is missing"),
        (PROMISED, {Kind.STATE: 1}, FINISHED, False, FAILED, 1, "the final state is missing"),
        (PROMISED, {Kind.LOGS: 3}, FINISHED, False, FAILED, 1, "3 logs are missing"),
        (PROMISED, {Kind.CHECKPOINTS: 1}, FINISHED, False, FAILED, 1, "1 checkpoint is missing"),
        (PROMISED, {Kind.FILES: 2}, FINISHED, False, FAILED, 1, "2 files are missing"),
        (
            PROMISED,
            {Kind.RESULT: 1, Kind.CHECKPOINTS: 2, Kind.LOGS: 1},
            FINISHED,
            False,
            FAILED,
            1,
            "the result, 2 checkpoints and 1 log are missing",
        ),
        (PROMISED - {Kind.CHECKPOINTS}, {Kind.CHECKPOINTS: 1}, FINISHED, False, FINISHED, 0, ""),
        (PROMISED, {Kind.LOGS: 1}, FINISHED, True, CANCELLED, 130, "cancelled while storing was being retried"),
        (PROMISED, {Kind.LOGS: 1}, FAILED, False, FAILED, 1, ""),  # the cause is that of the training
        (PROMISED, {Kind.LOGS: 1}, CANCELLED, True, CANCELLED, 130, ""),
    ],
)
def test_ending_follows_from_promised_and_lost_files(
    promised: frozenset[Kind],
    lost: dict[Kind, int],
    ended_as: Lifecycle,
    cancelled: bool,
    state: Lifecycle,
    status: int,
    words: str,
) -> None:
    found = decide(promised, Storing(PROMISED - lost.keys(), lost, "no space"), ended_as, cancelled)
    assert (found.state, found.exit_status) == (state, status)
    assert words in found.cause and bool(found.cause) == bool(words)
    assert not words or ("results could not be stored: " in found.cause and found.cause.endswith(": no space"))


def test_only_a_run_that_has_stored_every_promised_kind_is_finished() -> None:
    for size in range(len(Kind) + 1):
        for stored in itertools.combinations(Kind, size):
            found = decide(PROMISED, Storing(frozenset(stored)), FINISHED)
            assert (found.state is FINISHED) == (set(stored) == PROMISED) == (found.exit_status == 0)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("checkpoints/step-000000120", Kind.CHECKPOINTS),
        ("fit-2/checkpoints/step-000000120", Kind.CHECKPOINTS),
        ("trials/t7/checkpoints/step-000000001", Kind.CHECKPOINTS),
        ("/disk/run_1/checkpoints/3/step-000000003", Kind.CHECKPOINTS),
        ("logs/g0-rank0.log", Kind.LOGS),
        ("trials/t7/output.log", Kind.LOGS),
        ("logs/g0-rank0.system.jsonl", None),
        ("profiles/rank-1.json", None),
        ("worker.json", None),
        ("events/events.out.tfevents.1", Kind.FILES),
        ("artifacts/model.keras", Kind.FILES),
        ("the newest files", Kind.FILES),
    ],
)
def test_files_are_counted_by_kind(path: str, kind: Kind | None) -> None:
    assert kind_of(path) is kind


def test_losses_of_workers_and_records_are_summed_with_the_places_of_copies() -> None:
    behind = {
        1: UnstoredFiles(("logs/g0-rank1.log: full", "checkpoints/step-000000001: full"), 60, "node2:/tmp/b"),
        0: UnstoredFiles(("logs/g0-rank0.system.jsonl: full",), 1, "node1:/tmp/a"),
    }
    found = storing_of(behind, {"status.json": "full", "gang.jsonl": "full"}, "node0:/tmp/c")
    assert found.lost == {Kind.LOGS: 1, Kind.CHECKPOINTS: 1, Kind.FILES: 58, Kind.STATE: 1}
    assert found.left == ("node1:/tmp/a", "node2:/tmp/b", "node0:/tmp/c") and found.reason == "full"
    assert storing_of({}, {"gang.jsonl": "full"}) == Storing()


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        (
            "checkpoints/step-000000001: [Errno 28] No space left on device",
            "Free space in .* and on the workers' disks",
        ),
        ("checkpoints/step-000000001: refused", "Make .* writable"),
    ],
)
def test_error_of_files_that_are_not_stored_has_the_remedy(tmp_path: Path, reason: str, remedy: str) -> None:
    storing = storing_of({0: UnstoredFiles((reason,), 1, "")}, {})
    with pytest.raises(ResultsNotStored, match=f"1 checkpoint is missing: .*{remedy}, and start the run again"):
        raise writer(tmp_path, []).error_of(storing, None) or AssertionError


def test_error_of_files_that_are_not_stored_says_whether_the_result_is(tmp_path: Path) -> None:
    checkpoint = storing_of({0: UnstoredFiles(("checkpoints/step-000000001: refused",), 1, "")}, {})
    assert "The result is stored (.outputs.json). " in str(writer(tmp_path, []).error_of(checkpoint, None))
    result = storing_of({}, {".outputs.json": "refused"})
    assert "The result is stored" not in str(writer(tmp_path, []).error_of(result, None))


def writer(folder: Path, notes: list[str]) -> RecordWriter:
    return RecordWriter(RunDir(str(folder)), notes.append)


def test_records_are_retried_until_the_store_accepts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_FIRST_S", 0.0)
    notes, attempts, signs = list[str](), list[int](), list[int]()

    def write() -> None:
        attempts.append(1)
        if len(attempts) < 4:
            raise StorageUnavailable("nobody answers", "url")

    records = writer(tmp_path, notes)
    records.while_waiting = lambda: signs.append(1)
    assert records.write({"status.json": write}, 1e9) == {}
    assert len(attempts) == 4 and len(signs) == 3
    assert notes == [
        "the final state cannot be written; retrying for 1e+09 s (HOPSML_STORAGE_RETRY_S): nobody answers",
        "the final state could be written at last",
    ]


def test_refused_records_fail_the_run_and_are_left_on_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_STORAGE_RETRY_S", "0")
    monkeypatch.setattr(left_files.tempfile, "tempdir", str(tmp_path))
    run = tmp_path / "run_1"

    def refuse() -> None:
        raise QuotaExceeded("the quota is used up", "url")

    (tmp_path / "file").write_text("")
    records = writer(tmp_path / "file" / "run_1", [])  # no folder can be made there
    unrecorded, error = records.close(
        {".outputs.json": refuse},
        lambda final, storing: {"state": "FINISHED" if final is None else "FAILED", "cause": str(final or "")},
        None,
        outputs={"loss": 0.5},
    )
    assert set(unrecorded) == {".outputs.json", "status.json"} and isinstance(error, ResultsNotStored)
    assert "the result and the final state are missing" in str(error) and str(tmp_path / "hopsml-left-run_1-") in str(
        error
    )
    status = left_files.read_rescued_status(records.directory.url)
    assert status is not None and status["state"] == "FAILED" and "results could not be stored" in status["cause"]
    assert left_files.read_rescued_status(str(run)) is None, "another run's"


def test_user_who_cancels_while_records_are_retried_ends_the_run_at_once(tmp_path: Path) -> None:
    notes = list[str]()
    records = writer(tmp_path, notes)
    records.tell = lambda text: (notes.append(text), records.cut.set())  # type: ignore[assignment, func-returns-value]

    def refuse() -> None:
        raise QuotaExceeded("the quota is used up", "url")

    unrecorded, error = records.close({".outputs.json": refuse}, lambda final, storing: {}, None)
    assert list(unrecorded) == [".outputs.json"] and isinstance(error, RunCancelled) and len(notes) == 1


def test_status_left_by_another_user_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_files.tempfile, "tempdir", str(tmp_path))
    left_files.rescue_records("hdfs://nn/run_1", {"status.json": b'{"state": "FAILED"}'})
    assert left_files.read_rescued_status("hdfs://nn/run_1/") == {"state": "FAILED"}
    (folder,) = tmp_path.iterdir()
    folder.chmod(0o777)
    assert left_files.read_rescued_status("hdfs://nn/run_1") is None
    with pytest.raises(PermissionError):
        left_files.rescue_records("hdfs://nn/run_1", {"status.json": b"{}"})
