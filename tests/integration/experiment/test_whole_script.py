"""Tests of scripts that ``hopsml submit --framework`` runs in every worker: their file, and the files beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.clock import END_S

pytestmark = pytest.mark.local
SCRIPT = """
import json, sys
from pathlib import Path
import beside
print("config", json.loads((Path(__file__).parent / "cfg.json").read_text()), sys.argv, __name__)
"""


def submitted(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Write a script beside ``cfg.json`` and a module, and run it by the command line on one worker."""
    (folder / "cfg.json").write_text('{"lr": 0.1}')
    (folder / "beside.py").write_text("")
    (folder / "train.py").write_text(source)
    variables = {**os.environ, "HOPSML_PROJECT_URL": f"file://{folder}/project"}
    line = [sys.executable, "-m", "hopsml", "submit", "train.py", "--profile", "local", "--framework", "distributed"]
    command = [*line, "--num-workers", "1", "--", "--steps", "2"]
    return subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=END_S)


def test_script_finds_the_files_beside_it_by_its_own_path(tmp_path: Path) -> None:
    done = submitted(tmp_path, SCRIPT)
    arguments = [str(tmp_path / "train.py"), "--steps", "2"]
    assert done.returncode == 0 and f"config {{'lr': 0.1}} {arguments} __main__" in done.stderr, done.stderr


def test_error_of_a_script_names_its_file_and_the_way_to_the_files_beside_it(tmp_path: Path) -> None:
    done = submitted(tmp_path, 'def main():\n    open("cfg.json")\nmain()\n')
    assert done.returncode == 1
    assert f'File "{tmp_path}/train.py", line 2, in main' in done.stderr and "runpy" not in done.stderr, done.stderr
    assert "the file is beside the script: Path(__file__).parent / 'cfg.json')" in done.stderr
