"""Tests of recorded code: real git repositories, a real IPython, and a git that does not answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hopsml.tracking import provenance
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[3]


def run_git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Anna", "-c", "user.email=anna@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    run_git(folder, "init", "-q", "-b", "work")
    (folder / "train.py").write_text("lr = 0.1\n")
    run_git(folder, "add", ".")
    run_git(folder, "commit", "-q", "-m", "first")
    return folder


def test_clean_repository_is_recorded_without_remote_password(repository: Path) -> None:
    run_git(repository, "remote", "add", "origin", "https://anna:abc@example.org/r.git")
    facts, diff = provenance.git_state(repository)
    assert facts["commit"] == run_git(repository, "rev-parse", "HEAD")
    assert (facts["branch"], facts["dirty"], facts["untracked"], diff) == ("work", False, [], b"")
    assert "abc" not in facts["remote"] and facts["remote"].endswith("@example.org/r.git")


def test_recorded_diff_can_be_applied_to_the_commit(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("lr = 0.2\n")
    (repository / "notes.txt").write_text("new")
    facts, diff = provenance.git_state(repository)
    assert facts["dirty"] is True and facts["untracked"] == ["notes.txt"] and not facts["diff_is_cut"]
    run_git(tmp_path, "clone", "-q", str(repository), "copy")
    (tmp_path / "git.diff").write_bytes(diff + b"\n" * (not diff.endswith(b"\n")))
    run_git(tmp_path / "copy", "apply", str(tmp_path / "git.diff"))
    assert (tmp_path / "copy" / "train.py").read_text() == "lr = 0.2\n"


def test_large_diff_is_truncated(repository: Path) -> None:
    (repository / "train.py").write_text("x = 1\n" * provenance.LIMIT_BYTES)
    facts, diff = provenance.git_state(repository)
    assert facts["diff_is_cut"] and len(diff) == provenance.LIMIT_BYTES


def test_folder_without_repository_or_commit_has_no_git_facts(tmp_path: Path) -> None:
    assert provenance.git_state(tmp_path) == ({}, b"")
    run_git(tmp_path, "init", "-q")
    assert provenance.git_state(tmp_path) == ({}, b"")


def test_missing_git_gives_no_git_facts(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.git_state(repository) == ({}, b"")


def test_hanging_git_is_abandoned_at_the_deadline(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The deadline is forced once git hangs: how soon it does depends on the machine."""
    hangs = tmp_path / "hangs"
    script = f'#!/bin/bash\ncase "$*" in *rev-parse*) echo abc;; *) touch {hangs}; exec sleep 600;; esac\n'
    (tmp_path / "git").write_text(script)
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    class WhenItHangs(threading.Timer):
        def run(self) -> None:
            while not hangs.exists() and not self.finished.wait(0.01):
                pass
            super().run()

        def __init__(self, interval: float, function: Callable[[], None]) -> None:
            assert 0 <= interval <= provenance.GIT_TIMEOUT_S  # 0: git hung before the time that is left was looked at
            super().__init__(0.0, function)

    late = SimpleNamespace(monotonic=lambda: time.monotonic() + provenance.GIT_TIMEOUT_S * hangs.exists())
    monkeypatch.setattr(provenance, "GIT_TIMEOUT_S", 600.0)
    monkeypatch.setattr(provenance, "time", late)
    monkeypatch.setattr(provenance.threading, "Timer", WhenItHangs)
    facts, diff = provenance.git_state(repository)
    assert (facts["commit"], facts["dirty"], diff) == ("abc", None, b"")


def collected_by(arguments: list[str], folder: Path) -> dict[str, dict[str, str]]:
    """Return what ``code.collect`` finds in another process, with files as text."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder / "ipython")}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True, timeout=END_S
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    found: dict[str, dict[str, str]] = json.loads(line.removeprefix("FOUND "))
    return found


COLLECT = (
    "import json; from hopsml.tracking import provenance; found = provenance.collect_code(); "
    "print('FOUND ' + json.dumps({'facts': found.facts, 'files': {n: c.decode() for n, c in found.files.items()}}))"
)


def test_script_in_a_repository_is_recorded_with_its_diff(repository: Path) -> None:
    text = f"# my script\n{COLLECT}\n"
    (repository / "train.py").write_text(text)
    found = collected_by(["train.py"], repository)
    assert found["files"]["script.py"] == text
    assert "+# my script" in found["files"]["git.diff"]
    assert found["facts"]["script"]["path"] == str(repository / "train.py")
    assert found["facts"]["git"]["dirty"]


def test_interactive_console_has_no_recorded_code(tmp_path: Path) -> None:
    assert collected_by(["-c", COLLECT], tmp_path) == {"facts": {}, "files": {}}


def test_notebook_cells_are_recorded(repository: Path) -> None:
    cells = ["x = 41", "def train():\n    return x + 1\n", COLLECT]
    lines = [
        "from IPython.core.interactiveshell import InteractiveShell",
        "shell = InteractiveShell.instance(history_length=0)",
        f"for cell in {cells!r}: shell.run_cell(cell, store_history=True)",
    ]
    (repository / "kernel.py").write_text("\n".join(lines))
    found = collected_by(["kernel.py"], repository)
    assert "script" not in found["facts"]
    assert "# In [1]\nx = 41" in found["files"]["cells.py"]
    assert "# In [2]\ndef train():\n    return x + 1" in found["files"]["cells.py"]
    assert "kernel.py" in found["facts"]["git"]["untracked"]


def test_recorded_code_contains_no_secrets() -> None:
    diff = (
        "diff --git a/train.py b/train.py\n+PASSWORD = 's3cr3t-1'\n+login(password=password)\n"
        "diff --git a/.env b/.env\n+DB_PASSWORD=s3cr3t-2\n+export API_KEY='s3cr3t-3'\n"
        "diff --git a/conf.yaml b/conf.yaml\n+  password: s3cr3t-4\n+  url: https://anna:s3cr3t-5@host/x\n"
    )
    cleaned = provenance.mask_code_secrets("git.diff", diff.encode() + b"\xff").decode(errors="surrogateescape")
    assert "s3cr3t" not in cleaned
    assert "login(password=password)" in cleaned and cleaned.count("diff --git") == 3 and cleaned.endswith("\udcff")
    assert b"s3cr3t" not in provenance.mask_code_secrets("script.py", b"token = 's3cr3t'\n")


def test_secret_files_are_omitted_from_the_diff(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *name, *arguments], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "sub").mkdir()
    for name in ("server.pem", "sub/id_rsa", "train.py", "sub/data.bin"):
        (tmp_path / name).write_bytes(b"one\n" if name == "train.py" else b"one\0\n")
    git("add", "-A")
    git("commit", "-q", "-m", "one")
    for name in ("server.pem", "sub/id_rsa", "train.py", "sub/data.bin"):
        (tmp_path / name).write_bytes(b"s3cr3t\0\n" if name != "train.py" else b"two\n")
    facts, diff = provenance.git_state(tmp_path / "sub")
    assert facts["dirty"] and b"two" in diff and b"data.bin" in diff
    assert b"s3cr3t" not in diff and b"pem" not in diff and b"id_rsa" not in diff and b"literal" not in diff
