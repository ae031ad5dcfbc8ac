"""Tests of the causes with which spark-submit cannot start Spark."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from hopsml import submission
from hopsml.core import profiles
from hopsml.errors import UnsupportedVersion
from hopsml.submission import spark_start
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast

PROFILE = profiles.parse("tiny", "master: local-cluster[1,1,1024]", "tiny.yaml")


def test_submit_without_java_ends_with_cause_and_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "job.py"
    script.write_text("print(1)\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert submission.run(submission.plan(PROFILE, str(script))) != 0
    last = capfd.readouterr().err.splitlines()[-1]
    assert (
        last.startswith("hopsml: Spark cannot start with profile 'tiny': ") and "gone/bin/java (from JAVA_HOME)" in last
    )
    assert "Remedy: install Java 17" in last


def test_script_that_fails_has_no_line_about_spark() -> None:
    assert spark_start.why_submit_fails(PROFILE, dict(os.environ)) == ""


def test_java_of_an_unknown_spark_is_only_rejected_if_no_spark_supports_it(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"'\n")
    program.chmod(0o755)
    variables = {"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    assert "Java 8 at" in spark_start.why_submit_fails(PROFILE, variables)
    assert spark_start.why_submit_fails(PROFILE, {**variables, "SPARK_HOME": "/opt/spark"}) == ""


def test_java_that_is_too_old_is_refused_before_the_submission(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"'\n")
    program.chmod(0o755)
    script = tmp_path / "job.py"
    script.write_text("print(1)\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("HOPSML_ANY_VERSION", raising=False)
    refused = r"java 11 does not work.*too old for Spark 4.*Remedy: install Java 17.*HOPSML_ANY_VERSION=1 to continue"
    with pytest.raises(UnsupportedVersion, match=refused):
        submission.run(submission.plan(PROFILE, str(script)))
    assert not capfd.readouterr().err
    variables = {"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"], "SPARK_HOME": "/opt/spark"}
    spark_start.check_submission_java(variables)  # some Spark works with this Java


def test_master_that_starts_later_is_awaited() -> None:
    refused = threading.Event()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # refuses connections until it listens
        master = f"spark://127.0.0.1:{server.getsockname()[1]}"
        assert spark_start.why_master_unreachable(master, "HOPSML_SPARK_MASTER") is not None
        starter = threading.Thread(target=lambda: (refused.wait(END_S), server.listen()))
        starter.start()
        refused.set()
        assert spark_start.why_master_unreachable(master, "HOPSML_SPARK_MASTER", END_S) is None
        starter.join()


@pytest.mark.parametrize("master", ["yarn", "local[2]", "k8s://https://127.0.0.1:1"])
def test_only_standalone_masters_are_probed(master: str) -> None:
    assert spark_start.why_master_unreachable(master, "master") is None
