"""Tests of the table of releases of Hadoop, and of the choice of releases."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from hopsml.core.versions import HADOOP, parse_version
from tools import hadoop_versions

pytestmark = pytest.mark.fast


def test_each_supported_minor_version_of_hadoop_is_run() -> None:
    pom = (hadoop_versions.ROOT / "tools" / "hadoop" / "pom.xml").read_text()
    run = {parse_version(one)[:2] for one in hadoop_versions.RELEASES}
    usual = pom.partition("<hadoop.version>")[2].partition("<")[0]
    assert run | {parse_version(usual)[:2]} == set(HADOOP.supported)
    for test in hadoop_versions.TESTS:
        assert (hadoop_versions.ROOT / test).exists()


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Page of results of a tree whose tests pass with 3.3.6 and fail with 3.4.1."""

    def run(command: list[str], stdout: Any, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[bytes]:
        good = env["HADOOP_VERSION"] == "3.3.6"
        (tmp_path / f"jars-{env['HADOOP_VERSION']}").mkdir()
        stdout.write(b"58 passed in 9 s\n" if good else b"FAILED tests/x.py::test_y\n1 failed, 57 passed in 9 s\n")
        return subprocess.CompletedProcess(command, 0 if good else 1)

    monkeypatch.setattr(hadoop_versions, "CACHE", tmp_path)
    monkeypatch.setattr(hadoop_versions, "PAGE", tmp_path / "hadoop.md")
    monkeypatch.setattr(hadoop_versions, "commit", lambda: "abc")
    monkeypatch.setattr(hadoop_versions.subprocess, "run", run)
    return tmp_path / "hadoop.md"


def test_releases_are_recorded_and_a_release_not_run_keeps_its_line(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["hadoop_versions"])
    assert hadoop_versions.main() == 1
    out = capsys.readouterr()
    assert out.out.splitlines()[-1] == '{"releases": 2, "failed": ["3.4.1"]}' and "tests/x.py::test_y" in out.err
    rows = [line for line in page.read_text().splitlines() if line.startswith("| 3.")]
    assert rows[0].startswith("| 3.3.6 | 58 passed | ") and rows[0].endswith(" | abc |")
    assert rows[1].startswith("| 3.4.1 | FAILED: 1 failed, 57 passed | ")
    assert not list(page.parent.glob("jars-*"))
    monkeypatch.setattr("sys.argv", ["hadoop_versions", "--releases", "3.3.6"])
    monkeypatch.setattr(hadoop_versions, "commit", lambda: "def")
    assert hadoop_versions.main() == 0
    again = [line for line in page.read_text().splitlines() if line.startswith("| 3.")]
    assert again[0].endswith(" | def |") and again[1] == rows[1]
