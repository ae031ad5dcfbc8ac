"""Tests of a project's disk that is full when a run ends: the caller gets an error with the result and what is missing."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.cluster.driver.run_state import Change
from hopsml.errors import ResultsNotStored
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


def test_result_is_in_the_error_if_nothing_can_be_recorded(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_STORAGE_RETRY_S", "0")
    run = submit(filled(project))
    with pytest.raises(ResultsNotStored, match="the result and the final state are missing: ") as raised:
        run.result(END_S)
    result = raised.value.result
    assert result.value == {"loss": 0.5} and run.status()["state"] == "FAILED"
    assert {".outputs.json", "status.json"} <= result.unrecorded.keys()
    assert f"{run.run_dir}: No space left on device; the disk or the quota is full; delete files" in str(raised.value)
    assert re.search(r"WARNING +the result and .*only this program has what the function returned", result.summary())
    assert "No space" not in result.summary(), "the reason is reported once"
    assert re.search(r"  result +not recorded", result.summary())
    (left,) = Path(tempfile.gettempdir()).glob(f"hopsml-left-{run.run_id}-*")
    assert json.loads((left / ".outputs.json").read_text())["loss"] == 0.5
    shutil.rmtree(left)


def test_retries_of_records_are_noted_with_their_cause(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_STORAGE_RETRY_S", "1")
    run = submit(filled(project))
    assert isinstance(run.exception(END_S), ResultsNotStored)
    notes = [note for note in run.state.notes if "cannot be written" in note]
    assert [note.split(" cannot")[0] for note in notes] == ["the result", "the final state"]
    assert all(
        "retrying for 1 s (HOPSML_STORAGE_RETRY_S): " in note and "No space left on device" in note for note in notes
    )
    assert all("QuotaExceeded" not in note and ".outputs.json" not in note for note in notes)
    (left,) = Path(tempfile.gettempdir()).glob(f"hopsml-left-{run.run_id}-*")
    shutil.rmtree(left)


def test_records_are_written_once_disk_space_is_available(project: Path) -> None:
    def make_room(change: Change) -> None:
        if "cannot be written; retrying for" in change.text:
            (project / "filler").unlink()

    run = submit(filled(project))
    run.observe(make_room)
    result = run.result(END_S)
    assert result.unrecorded == {} and run.directory.read_status()["state"] == "FINISHED"
    assert json.loads(Path(run.directory.outputs_json.removeprefix("file://")).read_text())["loss"] == 0.5


def test_artifacts_that_do_not_fit_are_left_on_the_host(project: Path) -> None:
    def train() -> dict[str, float]:
        for name in ("first.bin", "second.bin"):
            Path(name).write_bytes(bytes(3_000_000))
        return {"loss": 0.5}

    run = submit(train)
    with pytest.raises(ResultsNotStored, match="1 file is missing: artifacts: ") as raised:
        run.result(END_S)
    result = raised.value.result
    assert result.unrecorded == {} and run.directory.read_status()["state"] == "FAILED"
    assert [url.rpartition("/")[2] for url in result.artifacts] == ["first.bin"]
    (note,) = [note for note in run.state.notes if "could not be copied to" in note]
    assert f"{run.run_dir}/artifacts: 3.0 MB, and " in note
    found = re.search(r"they are in (\S+) on ", note)
    assert found is not None
    left = Path(found[1])
    assert sorted(path.name for path in left.iterdir()) == ["first.bin", "second.bin"]
    shutil.rmtree(left)
