"""Tests of tests/conftest.py through pytest: leaks, order, markers, and sessions that are ended or killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.side_by_side import LONG, SHARED, place

pytestmark = pytest.mark.local  # each is a session of pytest
ROOT = Path(__file__).resolve().parents[3]

LEAKY = """
import os, subprocess, tempfile, threading
import pytest
from tests.helpers import leaks
leaks.GRACE_S = 0.2
pytestmark = pytest.mark.fast

@pytest.fixture(scope="session")
def long_lived():
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()

@pytest.fixture
def tidy():
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()

def test_clean(long_lived, tidy, monkeypatch, tmp_path):
    monkeypatch.setenv("HOPSML_X", "1")
    (tmp_path / "file").write_text("x")

def test_leaves_a_process():
    subprocess.Popen(["sleep", "601"])

def test_leaves_a_variable():
    os.environ["HOPSML_Y"] = "1"

def test_after_it_is_clean(long_lived):
    assert "HOPSML_Y" not in os.environ

def test_leaves_a_folder():
    tempfile.mkdtemp()
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest over ``folder`` in a subprocess with this project's conftest as a plug-in."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
    ]
    command += ["--rootdir", str(folder), f"--basetemp={folder}/tmp", *arguments, str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=END_S)


def test_leaking_tests_fail_and_others_pass(tmp_path: Path) -> None:
    (tmp_path / "test_leaky.py").write_text(LEAKY)
    done = run_pytest(tmp_path, "-rA", "-W", "ignore")
    assert done.returncode == 1, done.stdout + done.stderr
    assert set(re.findall(r"^ERROR \S*::(\w+)", done.stdout, re.M)) == {
        "test_leaves_a_process",
        "test_leaves_a_variable",
        "test_leaves_a_folder",
    }
    assert re.search(r"left behind:\n\s+process \d+: sleep 601", done.stdout)
    assert "5 passed" in done.stdout


def test_test_without_a_marker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_silent.py").write_text("def test_nothing(): pass\n")
    done = run_pytest(tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_silent.py::test_nothing" in done.stdout + done.stderr


@pytest.mark.variant
def test_quick_tests_run_first(tmp_path: Path) -> None:
    markers = ("hadoop", "fast", "spark", "tensorflow")
    text = "import pytest\n" + "".join(f"@pytest.mark.{m}\ndef test_{m}(): pass\n" for m in markers)
    (tmp_path / "test_order.py").write_text(text)
    done = run_pytest(tmp_path, "-v", "-W", "ignore")
    assert re.findall(r"::test_(\w+) PASSED", done.stdout) == ["fast", "tensorflow", "spark", "hadoop"]


@pytest.mark.variant
def test_files_without_selected_tests_are_not_imported(tmp_path: Path) -> None:
    head = "import pytest\nprint('imported', __name__)\n"
    for name, marker in (("all", "fast"), ("none", "local")):
        (tmp_path / f"test_{name}.py").write_text(f"{head}pytestmark = pytest.mark.{marker}\ndef test_one(): pass\n")
    (tmp_path / "test_some.py").write_text(
        f"{head}@pytest.mark.fast\ndef test_one(): pass\n@pytest.mark.local\ndef test_two(): pass\n"
    )
    for wanted, other in (("fast", "none"), ("not fast", "all")):
        done = run_pytest(tmp_path, "-s", "-m", f"{wanted} and not variant", "-W", "ignore")
        assert "2 passed, 1 deselected" in done.stdout, done.stdout + done.stderr
        assert set(re.findall(r"imported test_(\w+)", done.stdout)) == {"all", "none", "some"} - {other}


def test_sigterm_tears_fixtures_down(tmp_path: Path) -> None:
    (tmp_path / "test_long.py").write_text(
        "import os, signal, pytest\n"
        "pytestmark = pytest.mark.fast\n"
        "@pytest.fixture(scope='session')\n"
        "def thing(tmp_path_factory):\n"
        "    yield\n"
        f"    open({str(tmp_path / 'torn-down')!r}, 'w')\n"
        "def test_long(thing):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    signal.pause()\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "torn-down").exists()


def test_killed_session_leaves_no_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "test_killed.py").write_text(
        "import os, signal, tempfile, pytest\n"
        "pytestmark = pytest.mark.fast\n"
        "def test_killed():\n"
        f"    open({str(tmp_path / 'folder')!r}, 'w').write(tempfile.gettempdir())\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert run_pytest(tmp_path).returncode == -signal.SIGKILL
    folder = Path((tmp_path / "folder").read_text())
    assert folder.name.startswith("hopsml-tests-")
    deadline = clock.awake() + 10
    while folder.exists():
        assert clock.awake() < deadline, f"{folder} is left"
        time.sleep(0.02)


@pytest.mark.variant
def test_tests_with_shared_fixtures_run_in_one_process(tmp_path: Path) -> None:
    for folder, marker in (
        ("integration/yarn", "hadoop"),
        ("chaos", "hadoop"),
        ("unit/cli", "fast"),
        ("unit/yarn", "fast"),
    ):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        name = folder.replace("/", "_")
        (tmp_path / "tests" / folder / f"test_yarn_{name}.py").write_text(
            "import os, pytest\n"
            f"@pytest.mark.{marker}\n"
            "@pytest.mark.parametrize('n', range(3))\n"
            f"def test_{name}(n): print('process', os.getpid(), {folder!r})\n"
        )
    done = run_pytest(tmp_path, "-rA", "-n", "2", "--dist", "loadgroup")
    assert "12 passed" in done.stdout, done.stdout + done.stderr
    found: dict[str, list[str]] = {}
    for process, folder in re.findall(r"^process (\d+) ([\w/]+)", done.stdout, re.M):
        found.setdefault(folder, []).append(process)
    assert all(len(set(processes)) == 1 for processes in found.values()), found
    assert found["integration/yarn"] == found["chaos"]


def test_long_groups_start_before_short_ones() -> None:
    ids = [
        f"{path}::test_it"
        for path in (
            "tests/unit/cli/test_submit.py",
            "tests/integration/test_installed.py",
            "tests/integration/tracking/test_mlflow.py",
        )
    ]
    assert sorted(ids, key=lambda test: place(test, "local")) == ids[::-1]
    assert place("tests/chaos/test_spark.py::test_it", "spark") < place(ids[2], "mlflow")
    assert [name for name in LONG if name.endswith(".py") and not (ROOT / name).exists()] == []
    assert {name for name in LONG if not name.endswith(".py")} <= set(SHARED.values())


@pytest.mark.variant
def test_hadoop_is_stopped_after_the_last_test_that_shares_it(tmp_path: Path) -> None:
    """A stoppable object replaces the cluster here: starting the real one takes half a minute."""
    tests = {
        "integration/yarn/test_first.py": (
            "hadoop",
            "from tests.integration.yarn.conftest import HADOOP\n"
            "class Shared:\n"
            "    def stop(self, **_): ENDED.touch()\n"
            "def test_it(request): request.config.stash[HADOOP] = Shared()\n",
        ),
        "chaos/test_yarn.py": ("hadoop", "def test_it(): assert not ENDED.exists()\n"),
        "unit/yarn/test_after.py": ("spark", "def test_it(): assert ENDED.exists()\n"),
    }
    for name, (marker, body) in tests.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True)
        (tmp_path / "tests" / name).write_text(
            f"import pathlib, pytest\npytestmark = pytest.mark.{marker}\n"
            f"ENDED = pathlib.Path({str(tmp_path / 'ended')!r})\n{body}"
        )
    order = [str(tmp_path / "tests" / name) for name in tests]
    done = run_pytest(tmp_path, *order, "-rA", "-n", "1", "--dist", "loadgroup")
    assert "3 passed" in done.stdout, done.stdout + done.stderr
