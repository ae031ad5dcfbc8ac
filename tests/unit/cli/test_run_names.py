"""``hopsml runs`` for runs that are given by name, or by the beginning of their id."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.notebook import magics
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
