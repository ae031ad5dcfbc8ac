"""``hopsml runs ls|show|compare|logs|rm`` over runs that really ran."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml import experiment
from hopsml.errors import WorkerFailed
from hopsml.storage.run_dir import RunDir
from hopsml.tracking import provenance
from tests.helpers.clock import END_S
from tests.helpers.command_line import Cli
from tests.helpers.local_application import local_application

pytestmark = pytest.mark.local

WAIT_S = 60.0


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Create a project with three runs: two finished ones that differ in one argument, and a failed one."""

    def train(lr: float) -> dict[str, float]:
        print(f"training with lr {lr}")
        return {"accuracy": 1 - lr}

    def fails() -> None:
        raise ValueError("no such file")

    with local_application(tmp_path_factory.mktemp("ran")) as project:
        for lr in (0.25, 0.5):
            run = experiment.submit(train, args={"lr": lr}, name=f"lr {lr}", num_workers=1, progress=False)
            run.result(END_S)
        with pytest.raises(WorkerFailed):
            experiment.submit(fails, name="fails", num_workers=1, progress=False).result(END_S)
        experiment.shutdown()
        yield project


@pytest.fixture
def project(ran: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the project for one test."""
    shutil.copytree(ran, tmp_path / "project")
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")
    return tmp_path / "project"


def ids(project: Path) -> list[str]:
    return sorted(path.name for path in (project / "Experiments").iterdir())


def test_ls_shows_the_newest_run_first(project: Path, cli: Cli) -> None:
    lines = cli("runs", "ls").out.splitlines()
    assert lines[0].split() == ["run", "name", "state", "workers", "started", "duration", "result"]
    assert [line.split()[0] for line in lines[1:]] == ids(project)[::-1]
    assert "FAILED" in lines[1] and "rank 0 on 127.0.0.1: ValueError: no such file" in lines[1]
    assert "accuracy=0.5" in lines[2] and "accuracy=0.75" in lines[3]
    (only,) = cli("runs", "ls", "--last", "1").out.splitlines()[1:]
    assert only.split() == lines[1].split()


def test_ls_prints_json(project: Path, cli: Cli) -> None:
    rows = json.loads(cli("runs", "ls", "--json").out)
    assert [row["state"] for row in rows] == ["FAILED", "FINISHED", "FINISHED"]
    assert [row["cause"] for row in rows] == ["rank 0 on 127.0.0.1: ValueError: no such file", "", ""]
    assert rows[1]["metric"] == {"accuracy": 0.5} and rows[1]["workers"] == 1 and rows[1]["seconds"] > 0


def test_ls_of_an_empty_project_reports_no_runs(tmp_path: Path, cli: Cli) -> None:
    ended = cli("runs", "ls", "--project", f"file://{tmp_path}")
    assert (ended.status, ended.out) == (0, "") and f"no runs in file://{tmp_path}" in ended.err
    assert cli("runs", "ls", "--project", f"file://{tmp_path}", "--json").out == "[]\n"


def test_empty_log_is_explained_with_state_and_other_ranks(project: Path, cli: Cli) -> None:
    run = ids(project)[0]
    logs = project / "Experiments" / run / "logs"
    (logs / "g0-rank1.log").touch()
    ended = cli("runs", "logs", run, "--rank", "1")
    assert (ended.status, ended.out) == (0, "")
    assert f"rank 1 of run {run} has printed nothing: file://{logs}/g0-rank1.log is empty" in ended.err
    assert "(state of the run: FINISHED); output of other ranks: 0" in ended.err
    assert cli("runs", "logs", run).err == ""
    (logs / "g0-rank0.log").write_text("")
    assert "no rank has printed anything" in cli("runs", "logs", run, "--generation", "0").err


def test_show_prints_all_recorded_facts(project: Path, cli: Cli) -> None:
    first = ids(project)[0]
    text = cli("runs", "show", first).out
    for words in (first, "FINISHED", "accuracy", "lr  0.25", "return {", "numpy==", "pid", "training"):
        assert words in text, words
    everything = json.loads(cli("runs", "show", first, "--json").out)
    assert everything["run"]["arguments"] == {"lr": 0.25} and everything["environment"]["packages"]["numpy"]
    assert "no such file" in cli("runs", "show", ids(project)[2]).out


def test_compare_names_only_differing_values(project: Path, cli: Cli) -> None:
    first, second, failed = ids(project)
    found = json.loads(cli("runs", "compare", first, second, "--json").out)["differences"]
    assert {(row["section"], row["name"]) for row in found} == {
        ("arguments", "lr"), ("result", "accuracy"), ("run", "name"), ("run", "seed"),
    }  # fmt: skip
    text = cli("runs", "compare", first, failed).out
    assert "run: state" in text and "-def train(lr: float)" in text and "+def fails()" in text
    assert "no recorded value differs" in cli("runs", "compare", first, first).out


def test_logs_are_printed(project: Path, cli: Cli) -> None:
    first = ids(project)[0]
    assert cli("runs", "logs", first).out == "training with lr 0.25\n"


def test_missing_run_is_reported_in_one_sentence(project: Path, cli: Cli) -> None:
    for arguments in (["show", "app_9"], ["compare", ids(project)[0], "app_9"], ["rm", "app_9"], ["logs", "app_9"]):
        ended = cli("runs", *arguments)
        assert ended.status == 1 and "'app_9'" in ended.err and "Traceback" not in ended.err


class TestRm:
    def test_rm_asks_before_deleting(self, project: Path, cli: Cli) -> None:
        first, *others = ids(project)
        assert cli("runs", "rm", first, answer="n\n").status == 1
        assert ids(project) == [first, *others]
        ended = cli("runs", "rm", first, answer="y\n")
        assert ended.status == 0 and f"deleted file://{project}/Experiments/{first}" in ended.out
        assert ids(project) == others

    def test_rm_refuses_without_a_terminal_and_without_yes(self, project: Path, cli: Cli) -> None:
        ended = cli("runs", "rm", ids(project)[0])
        assert ended.status == 1 and "--yes" in ended.err and len(ids(project)) == 3

    def test_rm_deletes_several_runs(self, project: Path, cli: Cli) -> None:
        first, second, third = ids(project)
        assert cli("runs", "rm", first, f"{project}/Experiments/{second}", "--yes").status == 0
        assert ids(project) == [third]

    def test_rm_deletes_nothing_if_one_of_the_runs_may_be_running(self, project: Path, cli: Cli) -> None:
        first, second, _ = ids(project)
        directory = RunDir(f"file://{project}/Experiments/{second}")
        Path(directory.status_json.removeprefix("file://")).unlink()
        directory.write_run({**directory.read_run(), "driver_process": provenance.process_identity()})
        ended = cli("runs", "rm", first, second, "--yes")
        assert (
            ended.status == 1 and second in ended.err and "--force" in ended.err and "Nothing was deleted" in ended.err
        )
        assert len(ids(project)) == 3
        assert cli("runs", "rm", first, second, "--yes", "--force").status == 0
        assert len(ids(project)) == 1

    def test_rm_deletes_a_run_whose_driver_died(self, project: Path, cli: Cli) -> None:
        first = ids(project)[0]
        directory = RunDir(f"file://{project}/Experiments/{first}")
        Path(directory.status_json.removeprefix("file://")).unlink()
        directory.write_run(
            {**directory.read_run(), "driver_process": {**provenance.process_identity(), "process_started": 1}}
        )
        assert "LOST" in cli("runs", "ls").out
        assert cli("runs", "rm", first, "--yes").status == 0
        assert len(ids(project)) == 2

    def test_rm_refuses_a_folder_that_is_no_run(self, project: Path, cli: Cli) -> None:
        ended = cli("runs", "rm", f"file://{project}/Experiments", "--yes", "--force")
        assert ended.status == 1 and len(ids(project)) == 3


def test_sync_reports_that_nothing_is_pending(project: Path, cli: Cli) -> None:
    ended = cli("runs", "sync")
    assert ended.status == 0 and ended.out == f"MLflow has all runs of file://{project}\n"
    assert cli("runs", "sync", "unknown").status == 1
