"""Old spellings of commands: same output and exit status as the new ones, and one line on stderr."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml.cli import RENAMED, SERVE_NAME, current_words
from hopsml.storage.run_dir import RunDir
from tests.helpers.clock import END_S
from tests.helpers.command_line import Cli

pytestmark = pytest.mark.fast

# Words behind each old spelling: a command that needs no service and starts nothing.
PLAYED = {
    "cancel": ["app_1"],
    "evaluate": ["app_9"],
    "follow": ["app_1"],
    "logs": ["app_1", "--rank", "0"],
    "metrics": ["app_1", "--json"],
    "profile": ["app_1", "--rank", "0"],
    "rerun": ["app_9", "--json"],
    "status": ["app_1", "--json"],
    "tensorboard": ["app_9", "--port", "0"],
    "tune-communication": ["absent.py", "--", "--epochs", "2"],
    "runs diff": ["app_1", "app_1"],
    "job": ["run", "absent.py"],
    "model": ["ls", "--json"],
    "schedule": ["ls"],
    "secret": ["ls"],
    "token": ["ls"],
    "serving": ["ls", "--json"],
    SERVE_NAME: ["digits", "--version", "2"],
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a project with one ended run, and no job service."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")
    monkeypatch.setenv("HOPSML_SERVER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HOPSML_SERVING_FOLDER", str(tmp_path / "serving"))
    folder = tmp_path / "Experiments" / "app_1"
    folder.joinpath("logs").mkdir(parents=True)
    folder.joinpath("logs", "g0-rank0.log").write_text("epoch 1\n")
    folder.joinpath("metrics.jsonl").write_text('{"step": 1, "time": 1.0, "loss": 0.5}\n')
    directory = RunDir(f"file://{folder}")
    directory.write_run({"verb": "distributed", "name": "digits", "workers": 1, "started": 1.0})
    directory.write_status({"state": "FINISHED", "seconds": 3.0})
    return tmp_path


def typed(spelling: str) -> list[str]:
    """Return the words of a spelling, without the placeholder of a name."""
    return spelling.removesuffix(" NAME").split()


@pytest.mark.parametrize(("old", "new"), RENAMED.items(), ids=RENAMED)
def test_old_spelling_gives_the_output_of_the_new_one_and_a_notice(project: Path, cli: Cli, old: str, new: str) -> None:
    now = cli(*typed(new), *PLAYED[old])
    before = cli(*typed(old), *PLAYED[old])
    assert "No such command" not in now.err and (now.out or now.err)
    assert (before.status, before.out) == (now.status, now.out)
    assert before.err == f"hopsml: 'hopsml {old}' is now 'hopsml {new}'\n" + now.err


def test_old_spellings_find_the_run(project: Path, cli: Cli) -> None:
    assert cli("logs", "app_1").out == "epoch 1\n"
    assert '"loss":0.5' in cli("metrics", "app_1", "--json").out.replace(" ", "")
    assert (cli("cancel", "app_1").status, cli("status", "app_1").status) == (1, 0)


@pytest.mark.parametrize("old", [old for old in RENAMED if old != SERVE_NAME])
def test_help_of_an_old_spelling_is_that_of_the_new_one(cli: Cli, old: str) -> None:
    assert cli(*old.split(), "--help").out == cli(*RENAMED[old].split(), "--help").out != ""


def test_help_lists_no_old_spelling(cli: Cli) -> None:
    listed = set(re.findall(r"^│ ([a-z-]+) {2,}", cli("--help").out, re.M))
    assert "runs" in listed and not listed & {old for old in RENAMED if old != SERVE_NAME}
    assert " diff " not in cli("runs", "--help").out


def test_only_old_spellings_are_translated() -> None:
    names = {"run", "ls", "logs"}
    for same in (["runs", "logs", "x"], ["serve", "logs", "x"], ["serve"], ["serve", "--help"], ["submit", "logs"], []):
        assert current_words(same, names) == (same, "")
    assert current_words(["serve", "--port", "0", "digits"], names)[0] == ["serve", "run", "--port", "0", "digits"]
    # A serving with the name of a command is started by its new spelling only.
    assert current_words(["serve", "run", "logs"], names) == (["serve", "run", "logs"], "")
    assert current_words(["serving", "logs", "run"], names)[0] == ["serve", "logs", "run"]


def test_shell_completes_nouns_verbs_and_options(tmp_path: Path) -> None:
    def completed(line: str) -> list[str]:
        words = {"_HOPSML_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        command = [str(Path(sys.executable).with_name("hopsml"))]
        done = subprocess.run(command, env={**os.environ, **words}, capture_output=True, text=True, timeout=END_S)
        assert done.stderr == ""
        return done.stdout.split()

    assert completed("hopsml mod") == ["models"]
    assert {"ls", "logs", "compare", "tune-communication"} <= set(completed("hopsml runs "))
    assert completed("hopsml runs rerun --ign") == ["--ignore"]
