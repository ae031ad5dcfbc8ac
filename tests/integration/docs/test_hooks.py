"""The hooks of `.pre-commit-config.yaml` run what `make lint` runs, on a commit's files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.helpers import pages
from tests.helpers.clock import END_S
from tests.helpers.pages import ROOT

HOOKS = yaml.safe_load(pages.text(".pre-commit-config.yaml"))["repos"][0]["hooks"]


@pytest.mark.fast
def test_pre_commit_hooks_run_the_tools_of_lint() -> None:
    lint = pages.text("Makefile").partition("\nlint:")[2].partition("\n\n# ")[0]
    called = [line.partition("$(BIN)/")[2] for line in lint.splitlines() if "$(BIN)/" in line]
    hooks = [hook["entry"].removeprefix(".venv/bin/") for hook in HOOKS if hook.get("stages") != ["commit-msg"]]
    assert {tool(line) for line in called} == {tool(line) for line in hooks}


def tool(line: str) -> str:
    """Return the tool that a command line starts, with the subcommand for ruff and ``python -m``."""
    words = line.split()
    return " ".join(words[: {"ruff": 2, "python": 3}.get(words[0], 1)])


@pytest.mark.local
def test_commit_with_a_mistake_is_refused(tmp_path: Path) -> None:
    for name in (".pre-commit-config.yaml", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    (tmp_path / "tools").mkdir()
    for name in ("__init__.py", "commit_subject.py", "plain_words.py"):
        shutil.copy(ROOT / "tools" / name, tmp_path / "tools" / name)
    (tmp_path / "tools" / "unused.py").write_text("import os\n")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PRE_COMMIT"))}
    variables["PRE_COMMIT_HOME"] = str(tmp_path / "cache")

    def call(*line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(line, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=END_S)

    call("git", "init", "--quiet")
    call("git", "add", "tools", "pyproject.toml", ".pre-commit-config.yaml")
    done = call(str(Path(sys.executable).with_name("pre-commit")), "run", "--color", "never")
    assert done.returncode == 1 and "F401" in done.stdout, done.stdout + done.stderr
    (tmp_path / "tools" / "unused.py").write_text('"""A module without any content."""\n')
    call("git", "add", "tools")
    done = call(str(Path(sys.executable).with_name("pre-commit")), "run", "--color", "never")
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "message").write_text("fixed the module\n")
    stage = ("--hook-stage", "commit-msg", "--commit-msg-filename", "message")
    done = call(str(Path(sys.executable).with_name("pre-commit")), "run", "--color", "never", *stage)
    assert done.returncode == 1 and "capital letter" in done.stdout, done.stdout + done.stderr
