"""Tests of the measurement of scenarios on Kerberized clusters: losses and secrets count although a test fails early."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import scenarios
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast

ROOT = Path(__file__).resolve().parents[3]
TESTS = """
import pytest
from tests.helpers import scenarios

def lose(folder):
    (folder / "written-0").write_text("0-0 6\\n0-1 6\\n")
    (folder / "stored").mkdir()
    (folder / "stored" / "0-0").write_bytes(b"worker")
    scenarios._current.stored[f"file://{folder}/stored"] = folder

def show(folder):
    (folder / "log").write_text(f"token={scenarios.PLANTED['SERVICE_TOKEN']}")

def test_early(tmp_path):
    lose(tmp_path)
    show(tmp_path)
    raise AssertionError("early")

@pytest.fixture
def failing(tmp_path):
    show(tmp_path)
    raise RuntimeError("in its set-up")

def test_not_even_begun(failing):
    pass

def test_that_would_pass(tmp_path):
    lose(tmp_path)

def test_skipped():
    pytest.skip("no Kerberos")

def test_clean(tmp_path):
    (tmp_path / "tokens").write_bytes(b"HDTS" + scenarios.PLANTED["SERVICE_TOKEN"].encode())  # the test's own
"""
MAIN = """
import sys
from pathlib import Path
from tests.secure.__main__ import main
sys.exit(main(["--rootdir", sys.argv[1]], [Path(sys.argv[1])]))
"""


def test_summary_counts_what_tests_that_fail_early_have_lost_and_shown(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.helpers.scenarios import measured\n")
    (tmp_path / "test_some.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=END_S
    )
    assert done.returncode == 1
    summary = json.loads(done.stdout.splitlines()[-1])
    names = ("early", "not_even_begun", "skipped", "that_would_pass")
    assert summary == {
        "scenarios": 5,
        "failed": [f"test_some.py::test_{name}" for name in names],
        "bytes_lost": 12,
        "secrets_found": 2,
    }


def test_losses_are_counted_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "written-1").write_text("1-0 6\n1-1 6\n1-2 5\n")
    stored = tmp_path / "stored"
    url = f"file://{stored}"
    assert scenarios.lost_bytes(tmp_path, url) == 17, "not even the folder is there"
    stored.mkdir()
    for name, content in (("1-0", b"worker"), ("1-1", b"wor")):
        (stored / name).write_bytes(content)
    assert scenarios.lost_bytes(tmp_path, url) == 11
    (tmp_path / "local").write_bytes(b"0123456789")
    for content, lost in ((b"", 10), (b"0123", 6), (b"0123x56789", 6), (b"0123456789", 0), (b"0123456789more", 0)):
        (stored / "copy").write_bytes(content)
        assert scenarios.lost_copy(tmp_path / "local", f"{url}/copy") == lost
