"""Tests of a driver without stdin, stdout or stderr, as some daemons start theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.cluster.workloads import WAIT_S

pytestmark = pytest.mark.local

SCRIPT = """
import sys
from pathlib import Path
from hopsml import experiment

def train():
    print("hello")
    return 7

value = experiment.collective_all_reduce(train, num_workers=2).value
Path(sys.argv[1]).write_text(f"{value}")
"""


@pytest.mark.parametrize("closed", [pytest.param("<&-", marks=pytest.mark.variant), "<&- >&- 2>&-"])
def test_run_succeeds_with_closed_standard_streams(tmp_path: Path, closed: str) -> None:
    (tmp_path / "driver.py").write_text(SCRIPT)
    (tmp_path / "tmp").mkdir()
    command = f'exec "{sys.executable}" driver.py value {closed}'
    environment = {**os.environ, "HOPSML_PROJECT_URL": str(tmp_path / "project"), "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, timeout=2 * WAIT_S)
    assert (tmp_path / "value").read_text() == "7"
    assert done.returncode == 0
    assert not list((tmp_path / "tmp").iterdir())
