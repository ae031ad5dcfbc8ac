"""Tests of a task's copy of code: other copies are not touched, and only results remain."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.service.driver import run_task

pytestmark = pytest.mark.fast


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_was_made_or_changed_stays(tmp_path: Path) -> None:
    code, own = tmp_path / "code", tmp_path / "own"
    code.mkdir()
    own.mkdir()
    (own / "mine").write_text("mine")
    for name in ("run.sh", "data/words", "data/deep/more", "deep/only", "__pycache__/x.pyc", "changed"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    (code / "run.sh").chmod(0o700)
    before = files(code)
    with run_task.copied(code, own):
        assert (own / "run.sh").stat().st_mode & 0o100 and (own / "data/deep/more").read_text() == "data/deep/more"
        assert not (own / "__pycache__").exists()
        (own / "data" / "made").write_text("made")
        (own / "changed").write_text("CHANGED")
        (own / "data" / "words").unlink()
    assert files(own) == {"mine": "mine", "data/made": "made", "changed": "CHANGED"} and files(code) == before
    assert sorted(path.name for path in own.iterdir()) == ["changed", "data", "mine"]


def test_a_command_that_fails_leaves_its_results_alone(tmp_path: Path) -> None:
    for name in ("code", "own"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "run.sh").touch()

    def fail() -> None:
        with run_task.copied(tmp_path / "code", tmp_path / "own"):
            (tmp_path / "own" / "made").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(files(tmp_path / "own")) == ["made"]
