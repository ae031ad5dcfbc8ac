"""Tests that tracebacks show the user's frames, without those of hopsml in between."""

from __future__ import annotations

import linecache
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType

import pytest

from hopsml.core import tracebacks
from hopsml.errors import ArgumentError
from hopsml.search.space.space import Searchspace

pytestmark = pytest.mark.fast


def names(found: TracebackType | None) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(found)]


def raised_in_hopsml() -> BaseException:
    def user_code() -> None:
        Searchspace(lr=("NOTHING", [1, 2]))

    with pytest.raises(ArgumentError) as caught:
        user_code()
    return caught.value


def called_back() -> BaseException:
    """The user's code, called by ours, called by the user's."""
    from hopsml.cluster.worker.returned import plain

    class Mine:
        def item(self) -> int:
            return self.broken()

        def broken(self) -> int:
            raise KeyError("mine")

        size = 1

    def user_code() -> None:
        plain(Mine())

    with pytest.raises(KeyError) as caught:
        user_code()
    return caught.value


def test_frames_of_hopsml_after_the_users_frames_are_removed() -> None:
    error = raised_in_hopsml()
    assert len(names(error.__traceback__)) > 2
    assert names(tracebacks.user_part(error.__traceback__)) == ["raised_in_hopsml", "user_code"]


def test_user_frames_called_by_hopsml_are_retained() -> None:
    error = called_back()
    assert names(error.__traceback__) != names(tracebacks.user_part(error.__traceback__))
    assert names(tracebacks.user_part(error.__traceback__)) == ["called_back", "user_code", "item", "broken"]


def test_worker_traceback_starts_in_user_code() -> None:
    from hopsml.cluster.worker import returned

    inner = called_back().__traceback__
    assert inner is not None and inner.tb_next is not None and inner.tb_next.tb_next is not None
    ours = inner.tb_next.tb_next  # as in a worker: the first frame is ours
    assert ours.tb_frame.f_code.co_filename == returned.__file__
    assert names(tracebacks.from_first_user_frame(ours)) == ["item", "broken"]


def test_error_with_only_frames_of_hopsml_keeps_its_traceback() -> None:
    error = raised_in_hopsml()
    ours = error.__traceback__
    while ours is not None and not tracebacks.is_hopsml_file(ours.tb_frame.f_code.co_filename):
        ours = ours.tb_next
    assert (
        ours is not None
        and tracebacks.from_first_user_frame(ours) is ours
        and tracebacks.from_first_user_frame(None) is None
    )
    assert tracebacks.user_part(ours) is None


def test_source_lines_of_notebook_cells_are_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = "/tmp/ipykernel_1/2.py"
    monkeypatch.setitem(linecache.cache, cell, (9, None, ["def train():\n", "    broken()\n"], cell))
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{cell}", line 2, in train\n'
        f'  File "{__file__}", line 1, in other\n'
        f'  File "{cell}", line 1, in known\n    def train():\n'
        f'  File "{cell}", line 99, in beyond\n'
        "KeyError: 1"
    )
    linecache.cache.pop(__file__, None)
    assert tracebacks.with_source(text) == text.replace("line 2, in train\n", "line 2, in train\n    broken()\n")
    assert tracebacks.with_source("") == ""


# ------------------------------------------------------------------------------- uncaught errors of a script

SCRIPT = """
import sys
from hopsml import experiment

def train(lr):
    return lr

def main():
    how = sys.argv[1]
    if how == "misspelt":
        experiment.launch(train, num_trails=2)
    if how == "search":
        experiment.search(train, {"lr": ("DOUBLE", [1, 0])})
    if how == "captured":
        held = open(sys.argv[0])
        experiment.torch(lambda: held.read(), num_workers=1)
    if how == "own chain":
        try:
            {}["mine"]
        except KeyError:
            experiment.distributed(train, num_workers=-2)
    if how == "called":
        from hopsml.cluster.worker.calling import call
        def broken():
            raise KeyError("mine")
        call(broken, {})
    if how == "internal":
        from hopsml.experiment import verbs
        verbs.ignored_argument_notes(None)
    if how == "refused":
        experiment.train_and_evaluate
    if how == "refused module":
        from hopsml import featurestore
    if how == "unknown":
        import hopsml
        hopsml.experimentt
    if how == "thread":
        import threading
        thread = threading.Thread(target=lambda: experiment.jax(train, num_workers=-2))
        thread.start()
        thread.join()

main()
"""
OWN = f"{Path(tracebacks.__file__).parents[1]}/"


def shown(how: str, tmp_path: Path, **variables: str) -> str:
    """Return the output on stderr of a script that ends by an uncaught error."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "HOME": str(tmp_path), "HOPSML_PROJECT_URL": f"file://{tmp_path}/p", **variables}
    ended = subprocess.run([sys.executable, script, how], env=environment, capture_output=True, text=True, check=False)
    return ended.stderr


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("misspelt", "hopsml.errors.ArgumentTypeError: launch() has no argument 'num_trails'"),
        ("search", "Error: "),
        ("captured", "hopsml.errors.CaptureError: "),
        ("thread", "hopsml.errors.ArgumentError: num_workers=-2"),
        ("refused", "AttributeError: experiment.train_and_evaluate does not exist; use "),
        ("refused module", "ModuleNotFoundError: hopsml.featurestore does not exist; use "),
        ("unknown", "AttributeError: module 'hopsml' has no attribute 'experimentt'"),
    ],
)
def test_error_of_a_script_shows_user_frames_and_names_the_file_with_all_frames(
    how: str, error: str, tmp_path: Path
) -> None:
    text = shown(how, tmp_path)
    frames = re.findall('File "(.+)", line', text)
    assert frames and not [file for file in frames if OWN in file] and error in text, text
    assert text.count("Traceback (most recent call last)") == 1, "no error that is internal"
    (stored,) = tmp_path.glob(".hopsml/tracebacks/*.txt")
    assert str(stored) in text.splitlines()[-1] and "HOPSML_TRACEBACK=full" in text.splitlines()[-1]
    assert OWN in stored.read_text() and error in stored.read_text()
    assert stored.stat().st_mode & 0o077 == 0


def test_hopsml_traceback_full_shows_all_frames(tmp_path: Path) -> None:
    text = shown("misspelt", tmp_path, HOPSML_TRACEBACK="full")
    assert f"{OWN}experiment/verbs.py" in text and not (tmp_path / ".hopsml").exists()


def test_variable_for_the_full_traceback_is_named_without_a_home_directory(tmp_path: Path) -> None:
    text = shown("misspelt", tmp_path, HOME="/dev/null")
    assert OWN not in text and text.splitlines()[-1].startswith("hopsml: HOPSML_TRACEBACK=full")


def test_error_that_the_user_was_handling_is_shown(tmp_path: Path) -> None:
    text = shown("own chain", tmp_path)
    assert "KeyError: 'mine'" in text and "During handling of the above exception" in text and OWN not in text


def test_error_of_code_called_by_hopsml_has_no_frames_of_hopsml(tmp_path: Path) -> None:
    text = shown("called", tmp_path)
    assert "in broken" in text and "KeyError: 'mine'" in text and f"{OWN}cluster" not in text


def test_internal_error_of_hopsml_keeps_its_frames(tmp_path: Path) -> None:
    assert f"{OWN}experiment/verbs.py" in shown("internal", tmp_path)


def test_worker_traceback_hides_frames_of_hopsml_and_names_the_complete_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from hopsml.cluster.worker import calling

    error = raised_in_hopsml()
    try:
        raise ValueError("within")
    except ValueError as inner:
        error.__context__ = inner.with_traceback(None)
    text = calling.report_traceback(error, tmp_path / "all.log", "hdfs:///runs/r/logs/all.log")
    assert OWN not in text and "in user_code" in text and "within" not in text and error.__context__ is not None
    assert "search/space" in (tmp_path / "all.log").read_text()
    assert "hdfs:///runs/r/logs/all.log" in capfd.readouterr().err


def test_only_the_newest_tracebacks_are_retained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".hopsml" / "tracebacks"
    folder.mkdir(parents=True)
    for number in range(30):
        (folder / f"20200101-0000{number:02}-1.txt").write_text("")
    path = tracebacks._stored("new")
    left = sorted(file.name for file in folder.iterdir())
    assert len(left) == tracebacks._KEPT and left[-1] == Path(path).name


def test_control_sequences_in_an_error_are_removed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from hopsml.cluster.worker import calling

    error = ValueError("\x1b[1mInput 0 is incompatible\x1b[0m")
    assert calling.short_error_text(error) == "ValueError: Input 0 is incompatible"
    assert "ValueError: Input 0 is incompatible\n" in calling.report_traceback(error, tmp_path / "all.log", "")
    assert "\x1b" not in capfd.readouterr().err
