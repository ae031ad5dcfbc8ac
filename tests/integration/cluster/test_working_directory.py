"""Test that modules in the working directory of a driver are not imported by hopsml's processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.clock import END_S

pytestmark = pytest.mark.local
RUN = """
import hopsml.experiment
def train():
    import wave  # nothing else imports it
    return {"accuracy": 0.5}
print(hopsml.experiment.launch(train).metrics)
"""
TAKES = "import os, sys\nopen({mark!r}, 'a').write(str(sys.argv) + chr(10))\nos._exit(7)\n"


def test_modules_of_other_users_in_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    """The driver's own path has its script's folder and not the working directory, which may be /tmp."""
    evil, own, mark = tmp_path / "evil", tmp_path / "own", tmp_path / "taken"
    for name in (
        "hopsml/__init__.py",
        "msgspec/__init__.py",
        "asyncio.py",
        "json.py",
        "resource.py",
        "uuid.py",
        "wave.py",
    ):
        (evil / name).parent.mkdir(parents=True, exist_ok=True)
        (evil / name).write_text(TAKES.format(mark=str(mark)))
    own.mkdir()
    (own / "script.py").write_text(RUN)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path[1:]),
        "HOPSML_PROFILE": "local",
        "HOPSML_LOCAL_SLOTS": "1",
        "HOPSML_PROJECT_URL": f"file://{tmp_path}/project",
    }
    command = [sys.executable, str(own / "script.py")]
    done = subprocess.run(command, cwd=evil, env=environment, capture_output=True, text=True, timeout=END_S)
    assert not mark.exists(), mark.read_text()
    assert "'accuracy': 0.5" in done.stdout, done.stderr
