"""Applications on a Kerberized YARN that lose an executor, their driver or the KDC after their first tokens have expired."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from hopsml.storage.filesystem import for_url
from tests.helpers import scenarios
from tests.helpers.clock import wait_until
from tests.helpers.storage.token_runs import missing_bytes
from tests.secure import submitting
from tests.secure.submitting import Way

pytestmark = [pytest.mark.secure, pytest.mark.timeout(1500)]

START_S = 300.0


def processes_of(cluster: Any, *words: str) -> list[int]:
    """Return the JVMs of the cluster's containers whose command line has all these words."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace") if entry.name.isdigit() else ""
        except OSError:
            continue
        if (
            line.startswith(("/bin/java", "/usr", "java"))
            and str(cluster.home) in line
            and all(one in line for one in words)
        ):
            found.append(int(entry.name))
    return found


def let_tokens_expire(cluster: Any, job: Any) -> None:
    """Wait until no token of the submission is valid unless somebody has renewed it."""
    began = time.monotonic()
    lasts_s = 1.2 * cluster.state.security.token_renew_s
    wait_until(lambda: job.poll() is not None or time.monotonic() - began > lasts_s, "a life of tokens", 3 * lasts_s)


@pytest.mark.parametrize("credential", ["keytab", "ticket"])
def test_executor_that_replaces_a_killed_one_has_current_tokens(
    credential: str, secure_yarn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way, project = Way(credential, "client"), f"{secure_yarn.namenode_url}/user/alice/{tmp_path.name}"
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        scenarios.expect(secure_yarn, tmp_path / name, f"{project}/stored/{name}")
    submitting.use_from_here(monkeypatch, secure_yarn)
    job = submitting.submit(secure_yarn, way, project, "store_twice.py", str(tmp_path), f"{project}/stored")
    try:
        wait_until(
            lambda: job.poll() is not None or submitting.exists(f"{project}/stored/first/0-0"),
            "the first file",
            START_S,
        )
        let_tokens_expire(secure_yarn, job)
        (tmp_path / "first" / "stop").touch()
        wait_until(
            lambda: job.poll() is not None or (tmp_path / "first" / "rank-1.json").exists(), "the first run", START_S
        )
        (killed, *_) = processes_of(secure_yarn, "YarnCoarseGrainedExecutorBackend", "--executor-id")
        os.kill(killed, signal.SIGKILL)
        second = f"{project}/stored/second/0-5"
        wait_until(lambda: job.poll() is not None or submitting.exists(second), "files of the second run", START_S)
        (tmp_path / "second" / "stop").touch()
        output, _ = job.communicate(timeout=START_S)
    finally:
        job.kill()
    scenarios.show("output", output)
    found = re.search(r"application_\d+_\d+", output)
    assert job.returncode == 0 and found, output[-5000:]
    assert not sum(missing_bytes(tmp_path / name, f"{project}/stored/{name}") for name in ("first", "second"))
    assert secure_yarn.application_state(found[0]).final_status == "SUCCEEDED"


@pytest.mark.parametrize("credential", ["keytab", "ticket"])
def test_driver_that_yarn_starts_again_obtains_tokens_anew(
    credential: str, secure_yarn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way, project = Way(credential, "cluster"), f"{secure_yarn.namenode_url}/user/alice/{tmp_path.name}"
    submitting.use_from_here(monkeypatch, secure_yarn)
    scenarios.expect(secure_yarn, tmp_path, f"{project}/stored")
    attempts = {"spark.yarn.maxAppAttempts": "2"}
    arguments = (str(tmp_path), f"{project}/stored")
    job = submitting.submit(secure_yarn, way, project, "store.py", *arguments, conf=attempts)
    try:
        wait_until(
            lambda: job.poll() is not None or submitting.exists(f"{project}/stored/0-0"), "the first file", START_S
        )
        let_tokens_expire(secure_yarn, job)
        for killed in processes_of(secure_yarn, "org.apache.spark.deploy.yarn.ApplicationMaster"):
            os.kill(killed, signal.SIGKILL)
        for noted in tmp_path.glob(scenarios.WRITTEN):
            noted.unlink()
        for_url(project).delete(f"{project}/stored", recursive=True)
        wait_until(
            lambda: job.poll() is not None or submitting.exists(f"{project}/stored/0-5"),
            "files of the second attempt",
            START_S,
        )
        (tmp_path / "stop").touch()
        output, _ = job.communicate(timeout=START_S)
    finally:
        job.kill()
    scenarios.show("output", output)
    found = re.search(r"application_\d+_\d+", output)
    assert job.returncode == 0 and found, output[-5000:]
    assert secure_yarn.application_state(found[0]).final_status == "SUCCEEDED"
    assert missing_bytes(tmp_path, f"{project}/stored") == 0


@pytest.mark.parametrize("way", [Way("keytab", "client"), Way("ticket", "client")], ids=str)
def test_outage_of_the_kdc_for_longer_than_a_renewal_costs_nothing(
    way: Way, secure_yarn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = f"{secure_yarn.namenode_url}/user/alice/{tmp_path.name}"
    submitting.use_from_here(monkeypatch, secure_yarn)
    scenarios.expect(secure_yarn, tmp_path, f"{project}/stored")
    arguments = (str(tmp_path), f"{project}/stored")
    soon = {"spark.security.credentials.retryWait": "10s"}  # an hour by default, as tokens usually last for a day
    job = submitting.submit(secure_yarn, way, project, "store.py", *arguments, conf=soon)
    try:
        wait_until(
            lambda: job.poll() is not None or submitting.exists(f"{project}/stored/0-0"), "the first file", START_S
        )
        secure_yarn.kdc.halt()
        let_tokens_expire(secure_yarn, job)
        secure_yarn.kdc.run()
        let_tokens_expire(secure_yarn, job)
        (tmp_path / "stop").touch()
        output, _ = job.communicate(timeout=START_S)
    finally:
        job.kill()
        if not secure_yarn.kdc.alive:
            secure_yarn.kdc.run()
    assert job.returncode == 0, output[-5000:]  # Hadoop itself names the keytab in it, as its login has failed
    if way.credential == "keytab":  # Spark obtains new tokens when a quarter of a life is left
        assert "Spark has obtained no new delegation tokens with the keytab since" in output
        assert "executors use those of the submission until" in output
        assert "delegation tokens for HDFS are obtained again" in output
    assert missing_bytes(tmp_path, f"{project}/stored") == 0
