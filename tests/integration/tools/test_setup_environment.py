"""Tests of ``make setup`` on a machine with missing tools: one line that names them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.clock import END_S
from tools import setup_environment

pytestmark = pytest.mark.local

ROOT = Path(__file__).resolve().parents[3]
MAKE = str(shutil.which("make"))


def make(folder: Path, path: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run make with nothing on the PATH but the programs in ``path``."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PIP", "UV", "JAVA"))
    }
    return subprocess.run(
        [MAKE, "-C", folder, *arguments],
        env={**inherited, "PATH": str(path), **more},
        capture_output=True,
        text=True,
        timeout=END_S,
    )


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """The repository as far as `make setup` needs it, without an environment."""
    for name in ("Makefile", "setup.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("requirements", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    return tmp_path


def test_setup_without_python_names_what_to_install(fresh: Path) -> None:
    done = make(fresh, fresh / "bin", "setup")
    message, of_make = done.stderr.splitlines()
    assert (
        done.returncode
        and message.startswith("setup: python3.11 is missing: install")
        and of_make.startswith("make: ***")
    )


@pytest.mark.variant
def test_setup_without_network_reports_the_failed_download(fresh: Path) -> None:
    (fresh / "bin" / "python3.11").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
    nobody = "http://127.0.0.1:9/simple"
    done = make(
        fresh, fresh / "bin", "setup", PIP_INDEX_URL=nobody, PIP_CONFIG_FILE=os.devnull, UV_DEFAULT_INDEX=nobody
    )
    message, of_make = done.stderr.splitlines()
    assert done.returncode and message.startswith("setup: packages could not be fetched: "), done.stderr
    assert "no network" in message and of_make.startswith("make: ***")
    assert (fresh / ".cache" / "setup.log").stat().st_size > 0
    assert not (fresh / ".venv" / ".complete").exists()


def test_setup_without_java_and_maven_succeeds_with_notes() -> None:
    done = make(ROOT, Path("/nowhere"), "-o", ".venv/.complete", "setup")
    assert done.returncode == 0
    java, maven = done.stderr.splitlines()
    assert java.startswith("setup: java is missing: Spark and YARN need Java 17") and "`local` works without" in java
    assert maven.startswith("setup: mvn is missing: ")
    for target in ("demo", "demo-yarn", "hadoop-up"):  # these would fail later, with less information
        refused = make(ROOT, Path("/nowhere"), "-o", ".venv/.complete", target)
        assert refused.returncode and "setup: java is missing" in refused.stderr


def test_java_home_is_searched_for_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    (tmp_path / "jdk" / "bin" / "java").touch(0o755)
    assert len(setup_environment.missing(["java", "mvn"])) == 2
    assert [line[:3] for line in setup_environment.missing(["java", "mvn"], str(tmp_path / "jdk"))] == ["mvn"]


@pytest.mark.parametrize(
    ("version", "has_pip", "words"),
    [
        ((3, 12), True, "this is Python 3.12, and requirements/ are pinned for 3.11"),
        ((3, 11), False, "python3.11-venv"),
    ],
)
def test_unsupported_python_is_refused(version: tuple[int, int], has_pip: bool, words: str) -> None:
    with pytest.raises(setup_environment.Missing, match=words):
        setup_environment.check_python(version, has_pip)
    setup_environment.check_python((3, 11), True)
