"""Tests of the data for pages: single runs, comparisons, searches, files, and changes."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopsml.errors import ArgumentError, PathNotFound, PermissionRefused
from hopsml.service.browse import files
from hopsml.service.browse import project as browsed_project
from hopsml.service.browse.compare import compare_runs
from hopsml.service.browse.project import Changes, Project, ReaderCache
from hopsml.service.browse.run_detail import improvements
from hopsml.storage.filesystem import for_url
from tests.helpers.service.project import ProjectOnDisk

pytestmark = pytest.mark.local


def test_run_detail_has_state_cause_step_arguments_and_source(project: ProjectOnDisk) -> None:
    cause = "rank 1 on node2: ValueError: no"
    run = project.run(
        "app_1", state="FAILED", cause=cause, arguments={"lr": 0.1, "data": {"url": "x"}}, source="def f(): ..."
    )
    run.report(7, loss=1.0)
    detail = Project(project.url).detail("app_1")
    assert (detail.row.state, detail.row.cause, detail.step, detail.newest) == ("FAILED", cause, 7, {"loss": 1.0})
    assert dict(detail.sections)["Arguments"] == [("lr", 0.1), ("data.url", "x")]
    assert detail.source == "def f(): ..." and detail.workers == []


@pytest.mark.parametrize(
    ("cause", "states", "failed"),
    [
        ("rank 1 on node2: ValueError: no", ["FAILED", "FAILED"], 1),
        ("Spark has ended", ["LOST", "FAILED"], 1),
        ("Spark has ended", ["LOST", "LOST"], 0),
        ("it was cancelled", ["STOPPED", "STOPPED"], None),
    ],
)
def test_failed_rank_is_the_one_that_the_cause_names(
    project: ProjectOnDisk, cause: str, states: list[str], failed: int | None
) -> None:
    workers = [{"rank": rank, "state": state} for rank, state in enumerate(states)]
    project.run("app_1").write("status.json", {"state": "FAILED", "cause": cause, "workers": workers})
    assert Project(project.url).detail("app_1").failed_rank == failed


def test_workers_of_a_running_run_are_derived_from_its_logs(project: ProjectOnDisk) -> None:
    project.run("app_1", state=None).print(1, "hello")
    assert Project(project.url).detail("app_1").workers == [{"rank": 1, "state": "RUNNING"}]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../app_1", "a\\b", "a\x00b", "x" * 256])
def test_run_id_that_is_a_path_is_refused(project: ProjectOnDisk, name: str) -> None:
    with pytest.raises(ArgumentError):
        Project(project.url).directory(name)


def test_missing_run_or_trial_is_an_error(project: ProjectOnDisk) -> None:
    project.run("app_1")
    with pytest.raises(PathNotFound):
        Project(project.url).detail("app_2")
    with pytest.raises(PathNotFound):
        Project(project.url).detail("app_1", "abc")
    with pytest.raises(ArgumentError, match="no search"):
        Project(project.url).search("app_1")


@pytest.mark.parametrize("path", ["..", "../app_2", "logs/../../app_2/run.json", "/etc/passwd/..", "logs//x", "a\x00"])
def test_path_outside_a_run_is_refused(project: ProjectOnDisk, path: str) -> None:
    project.run("app_1")
    project.run("app_2")
    with pytest.raises(ArgumentError):
        Project(project.url).files("app_1", path)


def test_link_out_of_a_run_is_refused_and_one_within_is_followed(project: ProjectOnDisk) -> None:
    run = project.run("app_1")
    os.symlink("/etc", run.folder / "etc")
    os.symlink(run.folder / "run.json", run.folder / "same")
    browsed = Project(project.url)
    with pytest.raises(PermissionRefused, match="a link that leads out"):
        browsed.files("app_1", "etc/passwd")
    url, entries = browsed.files("app_1", "same")
    assert entries == [] and files.file_length(url) == (run.folder / "run.json").stat().st_size
    assert [entry.name for entry in browsed.files("app_1", "")[1]] == ["logs", "run.json", "same", "status.json"]


def test_link_created_after_the_path_check_is_refused(project: ProjectOnDisk, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the server's own")
    run = project.run("app_1")
    (run.folder / "notes.txt").write_text("harmless")
    browsed = Project(project.url)
    url, _ = browsed.files("app_1", "notes.txt")
    (run.folder / "notes.txt").unlink()
    os.symlink(secret, run.folder / "notes.txt")
    with pytest.raises(PermissionRefused, match="a link that leads out"):
        list(files.read_pieces(url, 0, 100))


def test_linked_run_directory_is_not_shown(project: ProjectOnDisk, tmp_path: Path) -> None:
    ProjectOnDisk(tmp_path / "private").run("app_2").print(0, "secret")
    project.run("app_1")
    os.symlink(tmp_path / "private" / "Experiments" / "app_2", project.folder / "Experiments" / "app_2")
    os.symlink(project.folder / "Experiments" / "app_1", project.folder / "Experiments" / "app_3")
    browsed = Project(project.url)
    browsed.runs.refresh()
    assert list(browsed.runs.rows()) == ["app_1"]
    for name in ("app_2", "app_3"):
        with pytest.raises(PermissionRefused):
            browsed.directory(name)


def test_linked_record_is_not_shown_and_a_pipe_does_not_block(project: ProjectOnDisk, tmp_path: Path) -> None:
    other = ProjectOnDisk(tmp_path / "private").run("app_2", name="secret")
    project.run("app_1")
    linked, piped = project.run("app_3"), project.run("app_4")
    (linked.folder / "run.json").unlink()
    os.symlink(other.folder / "run.json", linked.folder / "run.json")
    os.mkfifo(piped.folder / "metrics.jsonl")
    browsed = Project(project.url)
    browsed.runs.refresh()
    assert sorted(browsed.runs.rows()) == ["app_1", "app_4"]
    with pytest.raises(PermissionRefused, match="not a regular file"):
        browsed.metrics("app_4")


def test_server_writes_do_not_follow_links(project: ProjectOnDisk, tmp_path: Path) -> None:
    project.run("app_1")
    Project(project.url)
    (tmp_path / "home").mkdir()
    os.symlink(tmp_path / "home", project.folder / "Experiments" / "app_1" / "below")
    with pytest.raises(PermissionRefused):
        for_url(project.url).write_bytes(f"{project.url}/Experiments/app_1/below/profile.json", b"{}")
    assert list((tmp_path / "home").iterdir()) == []


def test_folders_are_listed_first_and_files_are_read_in_chunks(
    project: ProjectOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHUNK", 10)
    run = project.run("app_1")
    (run.folder / "artifacts").mkdir()
    (run.folder / "artifacts" / "a.bin").write_bytes(bytes(range(100)))
    browsed = Project(project.url)
    names = [(entry.name, entry.is_folder) for entry in browsed.files("app_1", "")[1]]
    assert names == [("artifacts", True), ("logs", True), ("run.json", False), ("status.json", False)]
    url, entries = browsed.files("app_1", "artifacts/a.bin")
    assert entries == [] and b"".join(files.read_pieces(url, 5, 35)) == bytes(range(5, 35))


def test_comparison_has_differing_settings_curves_and_values_at_a_step(project: ProjectOnDisk) -> None:
    for number, rate in enumerate([0.1, 0.2, 0.2]):
        run = project.run(f"app_{number}", arguments={"lr": rate, "batch": 32}, seed=number)
        run.report_all("accuracy", [rate, 2 * rate])
    project.run("app_3", arguments={"batch": 32}, seed=0)
    found = compare_runs(Project(project.url), [f"app_{number}" for number in range(4)], step=0)
    assert {(one.section, one.name): one.values for one in found.settings} == {
        ("arguments", "lr"): [0.1, 0.2, 0.2, None],
        ("run", "seed"): [0, 1, 2, 0],
    }
    assert (found.tags, found.tag) == (["accuracy"], "accuracy")
    assert [one and one.values for one in found.curves] == [[0.1, 0.2], [0.2, 0.4], [0.2, 0.4], None]
    assert [(one.last, one.at_step) for one in found.values] == [(0.2, 0.1), (0.4, 0.2), (0.4, 0.2), (None, None)]


def test_comparison_of_no_or_too_many_runs_is_refused(project: ProjectOnDisk) -> None:
    for ids in ([], [f"app_{number}" for number in range(201)]):
        with pytest.raises(ArgumentError, match="1 to 200"):
            compare_runs(Project(project.url), ids)


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("run.json", {"spec": "x"}),
        ("run.json", {"arguments": [1]}),
        ("run.json", {"spec": {"metric_key": [1]}}),
        ("environment.json", {"packages": [1]}),
        ("environment.json", {"code": {"git": "x"}}),
        ("worker.json", {"python": [1]}),
    ],
    ids=lambda value: str(value),
)
def test_comparison_names_a_run_with_a_malformed_record(
    project: ProjectOnDisk, name: str, record: dict[str, Any]
) -> None:
    for run in ("app_1", "eve_1"):
        project.run(run, arguments={"lr": 1}, outputs={"loss": 1.0})
    (project.folder / "Experiments" / "eve_1" / name).write_text(json.dumps(record))
    for ids in (["app_1", "eve_1"], ["eve_1", "app_1"]):
        with pytest.raises(ArgumentError, match="run 'eve_1': its records are not as hopsml writes them"):
            compare_runs(Project(project.url), ids)


def test_two_hundred_runs_are_compared(project: ProjectOnDisk) -> None:
    ids = [f"app_{number}" for number in range(200)]
    for run_id in ids:
        run = project.run(run_id, arguments={"lr": len(run_id)})
        run.report_all("loss", [1 / (1 + step) for step in range(1000)])
    browsed = Project(project.url)
    found = compare_runs(browsed, ids, "loss", most=200).curves
    assert len(found) == 200 and all(one is not None and one.values[-1] == 1 / 1000 for one in found)


def test_improvements_are_the_successive_best_values() -> None:
    values = [(0, 0.5), (1, 0.4), (2, 0.6), (3, 0.6)]
    assert improvements(values, "max") == [(0, 0.5), (2, 0.6)]
    assert improvements(values, "min") == [(0, 0.5), (1, 0.4)]
    assert improvements([], "max") == []


def test_each_change_is_recorded_once_and_can_be_read_again(project: ProjectOnDisk) -> None:
    run = project.run("app_1", state=None)
    browsed = Project(project.url)
    browsed.runs.refresh()
    changes = Changes(browsed, "e")
    changes.poll()
    begin = changes.newest
    changes.poll()
    assert changes.since(begin) == []
    run.report(1, loss=1.0)
    changes.poll()
    run.write("status.json", {"state": "FINISHED"})
    project.run("app_2")
    changes.poll()
    found = [(event.kind, event.run) for event in changes.since(begin)]
    assert found[:2] == [("run", "app_1"), ("grew", "app_1")]
    assert sorted(found[2:]) == [("grew", "app_1"), ("run", "app_1"), ("run", "app_2")]
    shutil.rmtree(project.folder / "Experiments" / "app_2")
    before = changes.newest
    changes.poll()
    assert [(event.kind, event.run) for event in changes.since(before)] == [("gone", "app_2")]


@pytest.mark.parametrize("last", ["", "?", "other-1", "e-x", "e-99", "e--1"])
def test_unknown_event_id_gets_a_reset(project: ProjectOnDisk, last: str) -> None:
    changes = Changes(Project(project.url), "e")
    assert [event.kind for event in changes.since(last)] == ["reset"]


def test_event_id_that_is_too_old_gets_a_reset(project: ProjectOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsed_project, "KEPT_CHANGES", 3)
    changes = Changes(Project(project.url), "e")
    for number in range(5):
        project.run(f"app_{number}")
    changes.poll()
    assert [event.kind for event in changes.since("e-0")] == ["reset"]
    assert len(changes.since("e-2")) == 3


@dataclass
class SizedReader:
    held_bytes: int = 0


def test_least_recently_used_reader_is_dropped() -> None:
    cache = ReaderCache(2, 100)
    first = cache.get("a", SizedReader)
    cache.get("b", SizedReader)
    assert cache.get("a", SizedReader) is first
    cache.get("c", SizedReader)
    assert cache.get("a", SizedReader) is first
    assert len(cache) == 2
    cache.get("b", lambda: SizedReader(1))
    assert cache.held_bytes == 1, "the first reader of b was dropped"


def test_readers_beyond_the_memory_limit_are_dropped_except_the_newest() -> None:
    cache = ReaderCache(10, 100)
    readers = [cache.get(name, lambda: SizedReader(40)) for name in "ab"]
    readers[1].held_bytes = 90
    cache.trim()
    assert len(cache) == 1 and cache.held_bytes == 90
    readers[1].held_bytes = 500
    cache.trim()
    assert cache.get("b", SizedReader) is readers[1]
    assert cache.get("c", lambda: SizedReader(10)).held_bytes == cache.held_bytes == 10


def test_unused_reader_is_dropped_after_its_idle_time() -> None:
    now = [0.0]
    cache = ReaderCache(10, 100, idle_s=60, clock=lambda: now[0])
    cache.get("a", SizedReader)
    now[0] = 50.0
    second = cache.get("b", SizedReader)
    now[0] = 100.0
    cache.trim()
    assert len(cache) == 1 and cache.get("b", SizedReader) is second


def test_viewed_runs_stay_within_the_memory_limit_and_are_read_again(project: ProjectOnDisk) -> None:
    ids = [f"app_{number}" for number in range(12)]
    values = [float(step) for step in range(4_000)]
    for run_id in ids:
        project.run(run_id).report_all("loss", values)
    project.run("app_logs").print(0, *(f"line {number}" for number in range(100_000)))
    browsed = Project(project.url, memory_bytes=1 << 20)
    for _ in range(2):
        for run_id in ids:
            assert browsed.metrics(run_id).summary("loss") == (3999.0, 0.0, 3999.0)
            assert browsed.held_bytes <= 1 << 20
    compare = compare_runs(browsed, ids, step=1234.0)
    assert [one.at_step for one in compare.values] == [1234.0] * 12
    assert [one and one.count for one in compare.curves] == [4_000] * 12
    assert browsed.held_bytes <= 1 << 20


def test_invalid_memory_limit_for_viewed_runs_is_refused(
    project: ProjectOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_UI_MEMORY_MB", "lots")
    with pytest.raises(ArgumentError, match="HOPSML_UI_MEMORY_MB='lots'"):
        Project(project.url)


@pytest.mark.variant
def test_the_maximum_number_of_long_runs_stays_within_256_megabytes(project: ProjectOnDisk) -> None:
    values = [math.sin(step / 1000) for step in range(200_000)]
    project.run("app_0").report_all("loss", values)
    first = project.folder / "Experiments" / "app_0"
    ids = ["app_0", *(f"app_{number}" for number in range(1, 256))]
    for run_id in ids[1:]:
        shutil.copytree(first, first.with_name(run_id), copy_function=os.link)
    browsed = Project(project.url)
    before = psutil.Process().memory_info().rss
    for run_id in ids:
        assert browsed.metrics(run_id).tags() == [("loss", "chief", 200_000)]
    assert browsed.held_bytes <= 256 << 20
    assert psutil.Process().memory_info().rss - before <= 256 << 20
