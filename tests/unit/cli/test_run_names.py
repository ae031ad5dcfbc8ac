"""``hopsml runs`` for runs that are given by name, or by the beginning of their id."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopsml import experiment
from hopsml.errors import ArgumentError
from hopsml.notebook import magics
from hopsml.storage import checkpoints
from hopsml.tracking import named_runs
from tests.helpers.command_line import Cli
from tests.unit.tracking.test_catalog import make_run

pytestmark = pytest.mark.fast


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")
    for number in (1, 2):
        make_run(tmp_path, f"app-1_{number}", started=1000.0 * number)
    make_run(tmp_path, "app-2_1", name="flowers")
    return tmp_path


@pytest.mark.parametrize("command", ["show", "status", "logs", "metrics", "cancel", "evaluate", "profile"])
def test_each_command_accepts_the_name_of_a_run_and_prints_its_id(project: Path, cli: Cli, command: str) -> None:
    done = cli("runs", command, "digits", *(["--list"] if command == "profile" else []))
    assert "'digits' is the name of run app-1_2, the newest one with this name" in done.err
    assert "there is no file" not in done.err


def test_compared_runs_are_found_by_name_and_beginning_of_the_id(project: Path, cli: Cli) -> None:
    done = cli("runs", "compare", "app-2", "digits")
    assert "beginning of the id app-2_1" in done.err and "name of run app-1_2" in done.err and done.status == 0


def test_magics_of_a_notebook_accept_the_name_of_a_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert magics.directory_of("digits").run_id == "app-1_2"
    assert "'digits' is the name of run app-1_2" in capsys.readouterr().err


def test_runs_are_deleted_by_id_or_by_a_name_of_one_run_only(project: Path, cli: Cli) -> None:
    done = cli("runs", "rm", "digits", "--yes")
    assert done.status == 1 and "the name of app-1_2 (digits, FINISHED" in done.err and "app-1_1" in done.err
    done = cli("runs", "rm", "app-2", "--yes")
    assert done.status == 1 and "the beginning of the id of app-2_1" in done.err
    assert len(list((project / "Experiments").iterdir())) == 3
    assert cli("runs", "rm", "flowers", "--yes").status == 0
    assert len(list((project / "Experiments").iterdir())) == 2


@pytest.mark.parametrize("command", ["show", "status", "logs", "metrics", "cancel", "rm", "follow", "resume"])
def test_unknown_run_is_refused_with_similar_names(project: Path, cli: Cli, command: str) -> None:
    done = cli("runs", command, "flower")
    assert done.status != 0 and "has no run with this id or name" in done.err
    assert "did you mean flowers (app-2_1)?" in done.err and "`hopsml runs ls`" in done.err


def test_unknown_run_without_a_similar_one_is_refused_with_the_newest_runs(project: Path, cli: Cli) -> None:
    done = cli("runs", "compare", "7", "digits")
    assert "run '7'" in done.err and "digits (app-1_2)" in done.err


def test_functions_accept_a_name_of_one_run_and_suggest_similar_ones(project: Path) -> None:
    assert named_runs.find("flowers", project.as_uri()).run_id == "app-2_1"
    with pytest.raises(ArgumentError, match="it is the name of app-1_2"):
        named_runs.find("digits", project.as_uri())
    for verb in (experiment.resume, experiment.rerun, experiment.continue_search, magics.directory_of):
        with pytest.raises(ArgumentError, match=r"did you mean flowers \(app-2_1\)\?"):
            verb("flower")


def test_unknown_run_of_an_empty_project_is_refused_with_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/none")
    with pytest.raises(ArgumentError, match="/none has no run with this id or name, and no other run"):
        experiment.resume("flower")


@pytest.mark.parametrize("state", ["CANCELLED", "FAILED"])
def test_status_of_an_unfinished_run_names_cause_checkpoint_and_command(tmp_path: Path, cli: Cli, state: str) -> None:
    directory = make_run(tmp_path, "app-3_1", ended=None)
    folder = tmp_path / "Experiments" / "app-3_1" / "checkpoints" / checkpoints.step_name(40)
    folder.mkdir(parents=True)
    (folder / "state").write_bytes(b"1")
    checkpoints.write_manifest(folder, 40)
    error = (
        f"run app-3_1: rank 0 failed first: ValueError: wrong\n\nIts traceback:\n...\nRun directory: {directory.url}"
    )
    directory.write_status({"state": state, "seconds": 3.5, "error": error, "cause": "rank 0 on n1: ValueError: wrong"})
    shown = cli("runs", "status", directory.url).out
    assert "rank 0 on n1: ValueError: wrong" in shown and "Its traceback" not in shown
    assert shown.count(directory.url) == 1 and "hopsml runs show app-3_1" in " ".join(shown.split())
    assert "hopsml runs resume app-3_1 (from its checkpoint of step 40)" in " ".join(shown.split())
    found = json.loads(cli("runs", "status", directory.url, "--json").out)
    assert found["error"] == error and found["checkpoint"] == 40


def test_lost_workers_of_a_run_are_shown(tmp_path: Path, cli: Cli) -> None:
    directory = make_run(tmp_path, "app-3_1", ended=None)
    loss = {"rank": 1, "step": 160, "cause": "killed", "replaced": True, "replaced_at": 185}
    directory.write_status({"state": "FINISHED", "seconds": 3.5, "losses": [loss]})
    for command in ("show", "status"):
        shown = " ".join(cli("runs", command, directory.url).out.split())
        assert "rank 1 was lost at step 160 (killed), replaced at step 185" in shown
    assert json.loads(cli("runs", "status", directory.url, "--json").out)["losses"] == [loss]


def test_status_of_an_unfinished_run_without_checkpoint_names_the_command(tmp_path: Path, cli: Cli) -> None:
    directory = make_run(tmp_path, "app-3_1", ended="CANCELLED")
    assert "hopsml runs resume app-3_1 (from its beginning)" in cli("runs", "status", directory.url).out
    finished = make_run(tmp_path, "app-3_2")
    assert "resume" not in cli("runs", "status", finished.url).out
