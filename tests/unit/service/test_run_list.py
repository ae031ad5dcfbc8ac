"""Tests of the list of runs: filters, order, pages; read again only after possible changes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tracemalloc
from typing import Any

import msgspec
import pytest

from hopsml.core import processes
from hopsml.errors import ArgumentError, HopsmlError
from hopsml.service.browse import run_list
from hopsml.service.browse.project import Project
from hopsml.service.browse.run_list import RunIndex, RunProgress, RunRow, parse_filter
from hopsml.service.rest.errors import JsonAnswer
from hopsml.tracking import catalog, provenance
from tests.helpers.service.project import ProjectOnDisk

pytestmark = pytest.mark.fast

ROW = RunRow(
    id="app_1",
    name="digits",
    state="FINISHED",
    verb="collective_all_reduce",
    is_search=False,
    metric_name="accuracy",
    metric=0.9,
    started=1000.0,
    seconds=3.5,
    workers=2,
    user="ana",
    cause="",
    arguments={"lr": 0.1, "act": "relu"},
    metrics={"accuracy": 0.9},
)


def shown(index: RunIndex, **query: Any) -> list[str]:
    return [row.id for row in index.page(**query).rows]


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("", True),
        ("DIGITS", True),
        ("digits ana", True),
        ("letters", False),
        ("state:finished", True),
        ("state:failed", False),
        ("-state:failed", True),
        ("-digits", False),
        ("lr>0.05 lr<=0.1", True),
        ("lr>0.1", False),
        ("accuracy>=0.9", True),
        ("act=relu", True),
        ("act!=relu", False),
        ("unknown>1", False),
        ("act>1", False),
        ('"digits"', True),
        ('name:"digits x"', False),
        ("user:an", True),
        ("a:b", False),
        ("<", False),
    ],
)
def test_filter_selects_matching_runs(text: str, passes: bool) -> None:
    assert parse_filter(text)(ROW) is passes


def test_overlong_filter_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at most 500"):
        parse_filter("x" * 501)


def test_runs_are_sorted_with_missing_values_last(project: ProjectOnDisk) -> None:
    for number, accuracy in enumerate([0.5, float("nan"), 0.9]):
        project.run(f"app_{number}", outputs={"accuracy": accuracy}, started=float(number), arguments={"lr": number})
    project.run("app_3", started=3.0)
    index = RunIndex(project.url)
    index.refresh()
    assert shown(index) == ["app_3", "app_2", "app_1", "app_0"]
    assert shown(index, sort="metrics.accuracy") == ["app_2", "app_0", "app_1", "app_3"]
    assert shown(index, sort="metrics.accuracy", descending=False) == ["app_0", "app_2", "app_1", "app_3"]
    assert shown(index, sort="arguments.lr", descending=False) == ["app_0", "app_1", "app_2", "app_3"]
    assert shown(index, offset=1, limit=2) == ["app_2", "app_1"]
    page = index.page(text="lr>0")
    assert (page.found, page.total, page.arguments, page.metrics) == (2, 4, ["lr"], ["accuracy"])
    assert page.states == {"FINISHED": 4}


@pytest.mark.parametrize("query", [{"sort": "password"}, {"limit": 0}, {"limit": 501}, {"offset": -1}])
def test_invalid_sort_or_page_is_refused(project: ProjectOnDisk, query: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        RunIndex(project.url).page(**query)


def test_ended_run_is_not_read_again(project: ProjectOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    project.run("ended")
    ongoing = project.run("ongoing", state=None)
    index = RunIndex(project.url)
    index.refresh()
    read: list[str] = []
    real = run_list.catalog.read

    def noted(directory: Any, **how: Any) -> Any:
        read.append(directory.run_id)
        return real(directory, **how)

    monkeypatch.setattr(run_list.catalog, "read", noted)
    index.refresh()
    assert read == ["ongoing"] and index.ongoing() == ["ongoing"]
    ongoing.write("status.json", {"state": "FAILED", "seconds": 1.0, "cause": "out of memory"})
    index.refresh()
    index.refresh()
    assert read == ["ongoing", "ongoing"] and index.rows()["ongoing"].cause == "out of memory"


def test_running_run_has_its_latest_metric(project: ProjectOnDisk) -> None:
    run = project.run("app_1", state=None)
    run.report(1, loss=2.0)
    index = RunIndex(project.url)
    index.refresh()
    run.report(2, loss=1.5)
    index.refresh()
    row = index.rows()["app_1"]
    assert (row.metric_name, row.metric) == ("loss", 1.5)


def test_folders_without_a_valid_record_are_omitted_and_deleted_runs_removed(project: ProjectOnDisk) -> None:
    run = project.run("app_1")
    (project.folder / "Experiments" / "stranger").mkdir()
    damaged = project.folder / "Experiments" / "damaged"
    damaged.mkdir()
    (damaged / "run.json").write_text("{")
    index = RunIndex(project.url)
    index.refresh()
    assert shown(index) == ["app_1"]
    shutil.rmtree(run.folder)
    index.refresh()
    assert index.page().total == 0


def test_records_with_wrong_types_are_listed(project: ProjectOnDisk) -> None:
    project.run("a", name=["no", "text"], workers="many", started="yesterday", arguments="none", outputs={"x": "y"})
    project.run("b", arguments={"deep": {"list": [1] * 1000}}, outputs={"accuracy": True})
    index = RunIndex(project.url)
    index.refresh()
    rows = index.rows()
    assert rows["a"].workers is None and rows["a"].started is None and rows["a"].arguments == {}
    assert len(rows["b"].arguments["deep"]) <= 200 and rows["b"].metric is None


def test_ten_thousand_runs_are_sorted_and_filtered(project: ProjectOnDisk) -> None:
    index = RunIndex(project.url)
    for number in range(10_000):
        row = msgspec.structs.replace(ROW, id=f"app_{number}", arguments={"lr": number % 97 / 97, "act": "relu"})
        index._keep(row.id, row)
    page = index.page(text="digits lr>0.5 state:finished", sort="arguments.lr", limit=100)
    rates = [row.arguments["lr"] for row in page.rows]
    assert page.found == sum(number % 97 / 97 > 0.5 for number in range(10_000)) and len(rates) == 100
    assert rates == sorted(rates) and min(rates) > 0.5


def test_ended_runs_are_stored_compactly_and_returned_unchanged(project: ProjectOnDisk) -> None:
    tracemalloc.start()
    try:
        index = RunIndex(project.url)
        before = tracemalloc.get_traced_memory()[0]
        for number in range(2_000):
            row = msgspec.structs.replace(
                ROW, id=f"app_{number}", arguments={f"lr{each}": number / 7 for each in range(8)}
            )
            index._keep(row.id, row)
        held_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held_bytes < 2_000 * 800
    assert index.rows("app_77")["app_77"] == msgspec.structs.replace(
        ROW, id="app_77", arguments={f"lr{each}": 11.0 for each in range(8)}
    )
    assert len(index.rows("app_77")) == 11 and index.ongoing() == []
    versions = index.versions()
    assert all(index.versions()[name] is version for name, version in versions.items())
    assert index.page().arguments == [f"lr{each}" for each in range(8)]


def test_column_names_of_a_deleted_run_are_removed(project: ProjectOnDisk) -> None:
    project.run("app_1", arguments={"lr": 1}, outputs={"loss": 1.0})
    project.run("app_2", arguments={"lr": 1, "act": "relu"}, outputs={"accuracy": 1.0})
    index = RunIndex(project.url)
    index.refresh()
    assert (index.page().arguments, index.page().metrics) == (["act", "lr"], ["accuracy", "loss"])
    shutil.rmtree(project.folder / "Experiments" / "app_2")
    index.refresh()
    assert (index.page().arguments, index.page().metrics) == (["lr"], ["loss"])


_DEEP = '{"a": %s}' % ("[" * 100_000 + "]" * 100_000)
_LARGE = "1" + "0" * 400
_RUN = '{"started": 1.0}'


@pytest.mark.parametrize(
    "records",
    [
        {"run.json": _DEEP},
        {"status.json": _DEEP},
        {".outputs.json": _DEEP, "status.json": "{}"},
        {"metrics.jsonl": _DEEP},
        {"run.json": f'{{"started": {_LARGE}}}'},
        {"run.json": f'{{"workers": {_LARGE}, "arguments": {{"a": {_LARGE}}}}}', "status.json": "{}"},
        {"status.json": f'{{"seconds": {_LARGE}}}'},
        {"status.json": "{}", ".outputs.json": f'{{"loss": {_LARGE}}}'},
        {"metrics.jsonl": f'{{"loss": {_LARGE}, "step": {_LARGE}, "time": {_LARGE}}}\n'},
        {"run.json": '{"spec": "x"}'},
        {"run.json": '{"spec": {"metric_key": {"a": 1}}}', "status.json": "{}", ".outputs.json": '{"a": 1}'},
        {"run.json": '{"search": {"metric": [1]}}', "status.json": "{}"},
        {"run.json": '{"driver_process": [1]}'},
        {"run.json": f'{{"driver_process": {{"pid": "x", "pid_namespace": "{processes.pid_namespace()}"}}}}'},
        {"run.json": r'{"name": "\ud800"}'},
        {"run.json": r'{"arguments": {"\uDFFF": 1}}', "status.json": "{}"},
        {"status.json": "{}", ".outputs.json": r'{"\ud800": 1}'},
        {"metrics.jsonl": '{"\\ud800": 1}\n'},
    ],
    ids=lambda records: "-".join(records),
)
def test_malformed_record_of_one_run_does_not_hide_others(project: ProjectOnDisk, records: dict[str, str]) -> None:
    project.run("app_1")
    folder = project.folder / "Experiments" / "eve_1"
    folder.mkdir(parents=True)
    for name, content in {"run.json": _RUN, **records}.items():
        (folder / name).write_text(content)
    known = Project(project.url)
    known.runs.refresh()
    rows = {row["id"] for row in msgspec.json.decode(JsonAnswer(known.runs.page()).body)["rows"]}
    assert "app_1" in rows and rows <= {"app_1", "eve_1"}
    assert "app_1" in [run.run_id for run in catalog.recent_runs(project.url, None)]
    for look in (known.detail, lambda run: known.metrics(run).series(["loss"], 10)):
        with contextlib.suppress(HopsmlError):
            JsonAnswer(look("eve_1"))


def test_run_with_an_undecodable_name_does_not_hide_others(project: ProjectOnDisk) -> None:
    project.run("app_1")
    folder = project.folder / "Experiments" / os.fsdecode(b"eve\xff_1")
    folder.mkdir()
    (folder / "run.json").write_text(_RUN)
    index = RunIndex(project.url)
    index.refresh()
    assert shown(index) == ["app_1"]


def test_oversized_record_files_are_not_read_completely(project: ProjectOnDisk) -> None:
    """Sparse files cost no disk space: huge records, and reports without a line end."""
    project.run("app_1")
    for name in ("run.json", "status.json", ".outputs.json", "metrics.jsonl"):
        folder = project.folder / "Experiments" / f"eve-{name.strip('.')}_1"
        folder.mkdir(parents=True)
        for record in ("run.json", "status.json"):
            (folder / record).write_text(_RUN)
        with open(folder / name, "wb") as sparse:
            sparse.truncate(1 << 42)
    known = Project(project.url)
    known.runs.refresh()
    assert {row.id for row in known.runs.page().rows} == {"app_1", "eve-metrics.jsonl_1"}
    assert known.metrics("eve-metrics.jsonl_1").tags() == []


def test_running_run_has_the_progress_its_driver_recorded(project: ProjectOnDisk) -> None:
    running = project.run("app_1", state=None, driver_process=provenance.process_identity())
    running.report(19, loss=0.5)
    over = project.run("app_2")
    over.report(19, loss=0.5)
    index = RunIndex(project.url)

    def progress() -> dict[str, object]:
        index.refresh()
        return {row.id: row.progress for row in index.page().rows}

    assert progress() == {"app_1": RunProgress(19, None, "step"), "app_2": None}
    running.write("driver.json", {"time": 1.0, "progress": {"done": 3, "total": 40, "unit": "epoch"}})
    assert progress() == {"app_1": RunProgress(3, 40, "epoch"), "app_2": None}
    running.write("driver.json", {"time": 1.0, "progress": {"done": "3", "total": None}})
    assert progress() == {"app_1": RunProgress(19, None, "step"), "app_2": None}, "of another version of hopsml"


def test_metric_of_a_running_run_is_an_epoch_metric_if_there_are_any(project: ProjectOnDisk) -> None:
    run, index = project.run("app_1", state=None), RunIndex(project.url)
    run.report(1, batch_loss=2.5)
    index.refresh()
    assert index.rows()["app_1"].metric_name == "batch_loss"
    run.report(2, loss=2.0), run.report(3, batch_loss=1.5)
    index.refresh()
    row = index.rows()["app_1"]
    assert (row.metric_name, row.metric) == ("loss", 2.0)
