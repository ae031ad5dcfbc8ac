"""Tests of ``hopsml doctor``: screen, JSON and exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopsml.cli.doctor import report_text
from hopsml.doctor import Examination, Finding, Status
from hopsml.doctor.checks import ok
from tests.helpers.command_line import Cli

pytestmark = pytest.mark.fast

NAMES = [
    "profile", "python", "java", "spark", "frameworks", "gpus", "limits", "scratch", "ports", "shared host",
    "addresses", "project store", "hdfs", "yarn", "kerberos", "clock",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME", "HOPSML_PORT_RANGE", "HOPSML_PROFILE", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")


def test_doctor_checks_this_machine_under_the_local_profile(cli: Cli) -> None:
    ended = cli("doctor", "--json")
    report = json.loads(ended.out)
    found = {check["name"]: check for check in report["checks"]}
    assert list(found) == NAMES
    assert ended.status == (1 if report["status"] == "fail" else 0)
    assert found["python"]["status"] == found["project store"]["status"] == "ok"
    assert all(bool(check["remedy"]) == (check["status"] != "ok") for check in report["checks"])


def test_doctor_compares_the_limit_of_open_files_with_the_given_group(cli: Cli) -> None:
    found = {
        check["name"]: check for check in json.loads(cli("doctor", "--workers", "1000000", "--json").out)["checks"]
    }
    assert found["limits"]["status"] == "warn" and "a group of 1000000 workers needs" in found["limits"]["summary"]


def test_doctor_of_an_unusable_profile_fails_with_remedies(cli: Cli) -> None:
    ended = cli("doctor", "--profile", "yarn")
    assert ended.status == 1
    lines = ended.out.splitlines()
    assert any(line.startswith("fail  hdfs") for line in lines) and any(line.startswith("fail  yarn") for line in lines)
    assert "set HADOOP_CONF_DIR to" in ended.out and "executors' python" in ended.out
    assert len(lines) < 50, "more than a screen"


def test_doctor_reports_an_unknown_profile(cli: Cli) -> None:
    ended = cli("doctor", "--profile", "nowhere")
    assert ended.status == 1 and "'nowhere'" in ended.out and "hopsml profiles" in ended.out


def test_doctor_fails_for_an_unreachable_project_store(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", "webhdfs://127.0.0.1:1/Projects/p")
    ended = cli("doctor")
    assert ended.status == 1 and "webhdfs://127.0.0.1:1" in ended.out


def test_doctor_screen_wraps_and_aligns() -> None:
    findings = (
        ok("python", "3.11.7"),
        Finding("project store", Status.WARN, "word " * 40, "do " * 40),
    )
    lines = report_text(Examination("local", findings, 1.25), width=80).splitlines()
    assert lines[0] == "ok    python         3.11.7"
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1] == "profile local: 1 ok, 1 warn (1.2 s)"
    assert any(line.startswith(" " * 21 + "-> do") for line in lines)
