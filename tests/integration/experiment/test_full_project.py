"""Tests of a project's disk that is full when a run ends: the caller gets the result and a list of missing records."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.cluster.driver.run_state import Change
from hopsml.experiment import result as records
from tests.helpers import small_disk
from tests.helpers.clock import END_S
from tests.helpers.cluster import backend_contract
from tests.helpers.local_application import local_application

pytestmark = pytest.mark.local
DISK_KB = 6_000


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project on a small disk, shared by all tests of the module."""
    folder = tmp_path_factory.mktemp("full")
    with small_disk.mounted(folder / "project", DISK_KB) as disk, local_application(folder):
        submit(lambda: None).result(END_S)
        yield disk


@pytest.fixture(autouse=True)
def _emptied(project: Path) -> Iterator[None]:
    yield
    for entry in project.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def submit(function: Any) -> Any:
    return backend_contract.submit(function, 1, keep_warm=60.0)


def filled(project: Path) -> Any:
    """A training function that leaves no room on the disk."""

    def train() -> dict[str, float]:
        small_disk.fill(project)
        return {"loss": 0.5}

    return train


def test_result_reaches_the_caller_although_nothing_can_be_recorded(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "PATIENCE_S", 0.0)
    run = submit(filled(project))
    result = run.result(END_S)
    assert result.value == {"loss": 0.5} and run.status()["state"] == "FINISHED"
    assert {".outputs.json", "status.json"} <= result.unrecorded.keys()
    assert "No space left on device" in result.unrecorded["status.json"]
    (note,) = [note for note in run.state.notes if "could not be written" in note]
    assert "has ended as FINISHED, but the result and " in note and "status.json" not in note
    assert f"{run.run_dir}: No space left on device; the disk or the quota is full; delete files" in note
    assert re.search(r"WARNING +the result and .*only this program has what the function returned", result.summary())
    assert "No space" not in result.summary(), "the reason is reported once"
    assert re.search(r"  result +not recorded", result.summary())


def test_cause_of_a_failed_write_is_reported_once_after_a_retry(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PATIENCE_S", 1.0)
    run = submit(filled(project))
    run.result(END_S)
    notes = [note for note in run.state.notes if "the result and" in note]
    assert len(notes) == 2 and "retrying" in notes[0] and "has ended as FINISHED" in notes[1]
    assert [note.count("No space left on device") for note in notes] == [1, 0]
    assert all("QuotaExceeded" not in note and ".outputs.json" not in note for note in notes)


def test_records_are_written_once_disk_space_is_available(project: Path) -> None:
    def make_room(change: Change) -> None:
        if "retrying for" in change.text:
            (project / "filler").unlink()

    run = submit(filled(project))
    run.observe(make_room)
    result = run.result(END_S)
    assert result.unrecorded == {} and run.directory.read_status()["state"] == "FINISHED"
    assert json.loads(Path(run.directory.outputs_json.removeprefix("file://")).read_text())["loss"] == 0.5


def test_artifacts_that_do_not_fit_are_left_without_affecting_the_records(project: Path) -> None:
    def train() -> dict[str, float]:
        for name in ("first.bin", "second.bin"):
            Path(name).write_bytes(bytes(3_000_000))
        return {"loss": 0.5}

    run = submit(train)
    result = run.result(END_S)
    assert result.unrecorded == {} and run.directory.read_status()["state"] == "FINISHED"
    assert [url.rpartition("/")[2] for url in result.artifacts] == ["first.bin"]
    (note,) = [note for note in run.state.notes if "could not be copied to" in note]
    assert f"{run.run_dir}/artifacts: 3.0 MB, and " in note
    found = re.search(r"they are in (\S+) on ", note)
    assert found is not None
    left = Path(found[1])
    assert sorted(path.name for path in left.iterdir()) == ["first.bin", "second.bin"]
    shutil.rmtree(left)
