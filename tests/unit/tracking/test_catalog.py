"""Tests of runs read from a store: states, listed runs, omitted details."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hopsml.errors import ArgumentError, PermissionRefused, StorageUnavailable
from hopsml.storage import filesystem
from hopsml.storage.run_dir import RunDir
from hopsml.tracking import catalog, listing, named_runs, provenance
from hopsml.tracking.catalog import LOST, RUNNING
from tests.helpers.clock_shift import DAY_S

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[3]


def make_run(project: Path, run_id: str, *, ended: str | None = "FINISHED", **record: Any) -> RunDir:
    directory = RunDir(f"file://{project}/Experiments/{run_id}")
    directory.write_run({"name": "digits", "workers": 2, "started": 1000.0, **record})
    if ended is not None:
        directory.write_status({"state": ended, "seconds": 3.5})
    return directory


def age(directory: RunDir, seconds: float) -> None:
    """Let everything in the run's directory be that old."""
    folder = Path(directory.url.removeprefix("file://"))
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (time.time() - seconds,) * 2)


def test_run_is_resolved_by_id_beginning_of_its_id_and_name(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    for number, started in enumerate([30.0, 10.0, 20.0]):
        make_run(tmp_path, f"app-1_{number}", started=started)
    other = make_run(tmp_path, "app-2_1", name="flowers", started=5.0)

    def resolved(given: Any) -> tuple[str, str]:
        directory, note = named_runs.resolve(given, url)
        return directory.run_id, note.partition(", started")[0]

    assert resolved("app-1_0") == ("app-1_0", "")
    assert resolved(other.url) == ("app-2_1", "")
    assert resolved("app-2") == ("app-2_1", "'app-2' is the beginning of the id app-2_1")
    assert resolved("flowers") == ("app-2_1", "'flowers' is the name of run app-2_1")
    assert resolved("digits") == ("app-1_0", "'digits' is the name of run app-1_0, the newest one with this name")


def test_text_that_fits_several_runs_or_none_is_refused(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    for number in range(7):
        make_run(tmp_path, f"app-1_{number}", started=float(number))
    make_run(tmp_path, "app-2_1", name="flowers")
    with pytest.raises(
        ArgumentError, match=r"it is the beginning of the id of app-1_\d \(digits, FINISHED, .*, and 2 more "
    ):
        named_runs.resolve("app-1", url)
    for unknown in ("digit", "", "app-3", f"{tmp_path}/digits"):
        with pytest.raises(ArgumentError, match=r"there is no file|has no run with this id or name"):
            named_runs.resolve(unknown, url)
    assert named_runs.resolve("flowers", url, is_exact=True)[0].run_id == "app-2_1"
    with pytest.raises(ArgumentError, match=r"the beginning of the id of app-2_1 \(flowers"):
        named_runs.resolve("app-2", url, is_exact=True)
    with pytest.raises(ArgumentError, match=r"it is the name of app-1_6 \(digits.*app-1_5.* 2 more"):
        named_runs.resolve("digits", url, is_exact=True)


def test_name_is_found_among_more_runs_than_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_runs, "_READ_AT_ONCE", 2)
    for number in range(5):
        age(make_run(tmp_path, f"app_{number}", name=f"name {number}"), 100.0 * number)
    assert named_runs.resolve("name 4", f"file://{tmp_path}")[0].run_id == "app_4"


def test_recent_runs_are_listed_newest_first_without_other_folders(tmp_path: Path) -> None:
    for number, started in enumerate([30.0, 10.0, 20.0]):
        make_run(tmp_path, f"app_{number}", started=started)
    (tmp_path / "Experiments" / "stranger").mkdir()
    (tmp_path / "Experiments" / "damaged").mkdir()
    (tmp_path / "Experiments" / "damaged" / "run.json").write_text("{")
    found = catalog.recent_runs(f"file://{tmp_path}", None)
    assert [run.run_id for run in found] == ["app_0", "app_2", "app_1"]
    assert [run.run_id for run in catalog.recent_runs(f"file://{tmp_path}", 3)][:1] == ["app_0"]


def test_missing_project_has_no_runs_and_an_unreachable_one_is_an_error(tmp_path: Path) -> None:
    assert catalog.recent_runs(f"file://{tmp_path}/nowhere", 5) == []
    with pytest.raises(StorageUnavailable):
        catalog.recent_runs("webhdfs://127.0.0.1:1/Projects/p", 5)  # no server listens there
    filesystem.close_all()


def test_run_without_an_end_is_running_while_its_driver_process_lives(tmp_path: Path) -> None:
    code = (
        "import json; from hopsml.tracking import provenance; "
        "print(json.dumps(provenance.process_identity()), flush=True); input()"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    directory = make_run(tmp_path, "app_1", ended=None, driver_process=json.loads(driver.stdout.readline()))
    age(directory, 10 * catalog.SILENT_S)  # a training that writes nothing for hours
    assert catalog.read(directory).state == RUNNING
    driver.kill()
    driver.communicate()
    assert catalog.read(directory).state == LOST


def test_reused_driver_pid_does_not_keep_a_run_running(tmp_path: Path) -> None:
    recorded = {**provenance.process_identity(), "process_started": 1}
    assert catalog.read(make_run(tmp_path, "app_1", ended=None, driver_process=recorded)).state == LOST


def test_run_of_another_host_is_lost_after_a_time_without_changes(tmp_path: Path) -> None:
    elsewhere = {**provenance.process_identity(), "pid_namespace": "another boot"}
    directory = make_run(tmp_path, "app_1", ended=None, driver_process=elsewhere)
    assert catalog.read(directory).state == RUNNING
    age(directory, catalog.SILENT_S + 60)
    assert catalog.read(directory).state == LOST
    logs = Path(directory.logs.removeprefix("file://"))
    logs.mkdir()
    (logs / "g0-rank0.log").write_text("epoch 3")
    assert catalog.read(directory).state == RUNNING


def test_run_of_another_host_is_not_lost_for_a_reader_whose_clock_is_a_day_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = {**provenance.process_identity(), "pid_namespace": "another boot"}
    directory = make_run(tmp_path, "app_1", ended=None, driver_process=elsewhere)
    real = time.time

    def state(shift_s: int) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: real() + shift_s)
            patch.setattr(catalog, "_stores_ahead", {})
            return catalog.read(directory).state

    assert state(DAY_S) == RUNNING
    age(directory, catalog.SILENT_S + 60)
    assert state(DAY_S) == LOST and state(-DAY_S) == LOST


@pytest.mark.parametrize("shift_s", [-DAY_S, 0, DAY_S])
def test_duration_of_a_running_run_is_measured_by_its_drivers_clock(tmp_path: Path, shift_s: int) -> None:
    elsewhere = {**provenance.process_identity(), "pid_namespace": "another boot"}
    began_s = time.time() + shift_s - 300
    directory = make_run(tmp_path, "app_1", ended=None, driver_process=elsewhere, started=began_s)
    directory.write_json(directory.driver_json, {"time": began_s + 300, "beat": 30})
    seconds = catalog.read(directory).seconds
    assert seconds is not None and 299 <= seconds <= 400


@pytest.mark.parametrize(
    ("lives", "quiet_s", "state"),
    [(True, 1e9, RUNNING), (False, 0.0, LOST), (None, 0.0, RUNNING), (None, catalog.SILENT_S, LOST)],
)
def test_state_without_end_depends_on_driver_and_quiet_time(lives: bool | None, quiet_s: float, state: str) -> None:
    assert catalog.infer_unended_state(lives, quiet_s) == state


def test_main_metric_is_the_named_one_or_the_first_number(tmp_path: Path) -> None:
    directory = make_run(tmp_path, "app_1", spec={"metric_key": "f1"})
    assert catalog.read(directory).main_metric is None
    directory.write_json(directory.outputs_json, {"good": True, "label": "x", "accuracy": 0.5, "f1": 0.25})
    assert catalog.read(directory).main_metric == ("f1", 0.25)
    directory.write_run({"name": "digits"})
    assert catalog.read(directory).main_metric == ("accuracy", 0.5)


def test_truncated_line_of_inputs_is_skipped(tmp_path: Path) -> None:
    directory = make_run(tmp_path, "app_1")
    Path(directory.inputs.removeprefix("file://")).write_text('{"url": "a"}\n{"url": "b')
    assert catalog.read(directory).inputs == [{"url": "a"}]


def test_unreadable_run_does_not_hide_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "app_1", started=1.0)
    make_run(tmp_path, "app_2", started=2.0)
    read = catalog.read

    def refused(directory: RunDir, brief: bool = False) -> catalog.StoredRun:
        if directory.run_id == "app_2":
            raise PermissionRefused("cannot look at it: Permission denied", directory.run_json)
        return read(directory, brief=brief)

    monkeypatch.setattr(catalog, "read", refused)
    assert [run.run_id for run in catalog.recent_runs(f"file://{tmp_path}", None)] == ["app_1"]


def test_newest_run_is_first_on_a_store_without_folder_times() -> None:
    store = filesystem.for_url("memory://young")
    for number in range(1, 8):
        folder = f"memory://young/Experiments/app_{number}"
        store.write_bytes(f"{folder}/run.json", json.dumps({"started": 1000.0 + number}).encode())
        store.write_bytes(f"{folder}/status.json", b'{"state": "FINISHED"}')
    try:
        assert [run.run_id for run in catalog.recent_runs("memory://young", 2)] == ["app_7", "app_6"]
    finally:
        store.delete("memory://young", recursive=True)


@pytest.mark.parametrize(
    "value", ["5", [], {}, float("nan"), float("inf"), 1e300, -1e300, 10**400], ids=lambda value: str(value)[:8]
)
def test_invalid_time_or_metric_of_a_run_does_not_hide_other_runs(tmp_path: Path, value: Any) -> None:
    """Another user of the project may have written it."""
    make_run(tmp_path, "app_1")
    make_run(tmp_path, "started_1", started=value)
    make_run(tmp_path, "seconds_1").write_status({"state": "FINISHED", "seconds": value})
    metric = make_run(tmp_path, "metric_1")
    metric.write_json(metric.outputs_json, {"metric": value})
    found = catalog.recent_runs(f"file://{tmp_path}", None)
    assert {"app_1", "metric_1"} <= {run.run_id for run in found}
    assert "app_1" in [listing.run_cells(run)[0] for run in found]
    assert "app_1" in [cells[0].strip() for cells in listing.fit_runs_to_width(found, 80)]
