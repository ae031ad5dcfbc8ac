"""Tests of a local job's tries: working directory, logs and runs, and followers over a restart."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hopsml.client import Client
from hopsml.core.states import Lifecycle
from hopsml.engines import local_driver
from hopsml.engines.local_driver import DriverOrder
from hopsml.service import server, server_record
from hopsml.service.driver import SCRIPT
from hopsml.service.rest import server as listeners
from hopsml.service.server_record import JobServerRecord
from tests.helpers.cluster.workloads import wait_until
from tests.integration.service.test_job_parts import hopsml
from tests.integration.service.test_job_service import WAIT_S, JobService, service

pytestmark = pytest.mark.local
__all__ = ["service"]

# Fails at the first try; its files are not visible to the next one.
RUN = """#!/bin/sh
echo "try $HOPSML_APPLICATION_ATTEMPT reads $(cat data/words.txt)"
echo scribbled > data/words.txt
touch made
test "$HOPSML_APPLICATION_ATTEMPT" -gt 1
"""


def command(client: Client, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command and return its output and errors."""
    variables = {**os.environ, "HOPSML_SERVER": client._address, "HOPSML_TOKEN": client._token}
    return subprocess.run(
        [sys.executable, "-m", "hopsml", *words], env=variables, capture_output=True, text=True, timeout=WAIT_S
    )


@pytest.mark.variant  # its parts are driver/test_own_folder, test_job_routes
def test_command_starts_in_its_workspace_and_each_try_has_its_own_log_and_run(service: JobService) -> None:
    (service.code / "data").mkdir()
    (service.code / "data" / "words.txt").write_text("wolves")
    (service.code / "run.sh").write_text(RUN)
    (service.code / "run.sh").chmod(0o755)
    path = service.code / "shell.yaml"
    path.write_text("name: shell\nretries: 1\ntasks: {main: {command: [./run.sh]}}\n")
    client = service.start()
    job = client.submit(path)
    ended = client.wait(job.id, 4 * WAIT_S)
    assert (ended.state, ended.tries) == (Lifecycle.FINISHED, 2), client.log(job.id)
    runs = client.runs(job.id)
    assert [run.state for run in runs] == ["FAILED", "FINISHED"]
    logs = [(service.state / "project" / "Experiments" / run.id / "logs" / "g0-rank0.log").read_text() for run in runs]
    assert ["reads wolves" in log for log in logs] == [True, True], "what a try writes is not what the next one reads"
    assert not list((service.state / "workspaces").rglob("made"))
    artifacts = service.state / "project" / "Experiments" / runs[1].id / "artifacts"
    assert sorted(str(path.relative_to(artifacts)) for path in artifacts.rglob("*") if path.is_file()) == [
        "data/words.txt",
        "made",
    ]

    newest, first = command(client, "jobs", "logs", job.id), command(client, "jobs", "logs", job.id, "--try", "1")
    begun = [[f"{run.id}: starting workers" in done.stdout for run in runs] for done in (first, newest)]
    assert begun == [[True, False], [False, True]], (first, newest)
    assert "shell-1 was tried 2 times; this is try 2 (--try selects another one)" in newest.stderr
    assert "this is try 1" in first.stderr
    assert "".join(client.follow(job.id)) == newest.stdout
    shown = hopsml(client, "jobs", "show", job.id)
    assert all(f"run {run.id}: {run.state}" in shown for run in runs)
    service.stop()


def test_last_port_is_reused_if_it_is_free(tmp_path: Path) -> None:
    wanted = server.ServerSettings(tmp_path, port=None)
    first = server.open_listener(wanted)
    address, first_port = listeners.server_url(first), first.getsockname()[1]
    server_record.write(tmp_path, JobServerRecord(address, "token"))
    server_record.remove(tmp_path, JobServerRecord(address, "token"))
    with contextlib.closing(server.open_listener(wanted)) as other:  # another one has it
        assert other.getsockname() != first.getsockname()
    first.close()
    with contextlib.closing(server.open_listener(wanted)) as again:
        assert listeners.server_url(again) == address
    (tmp_path / "port").unlink()
    earlier = '{"address": "http://127.0.0.1:%d/", "token": "x"}'
    (tmp_path / "client.json").write_text(earlier % first_port)
    assert server_record.last_port(tmp_path) == first_port, "the record of an earlier version, which was killed"
    for text in ("[]", earlier % 99999, "no JSON"):
        (tmp_path / "client.json").write_text(text)
        with contextlib.closing(server.open_listener(wanted)) as new:
            assert new.getsockname()[1]
    for text in ("", "99999", "-1", "no number"):
        (tmp_path / "port").write_text(text)
        with contextlib.closing(server.open_listener(wanted)) as new:
            assert new.getsockname()[1]


@pytest.mark.variant
def test_follower_continues_when_the_server_is_restarted(service: JobService) -> None:
    client = service.start(cores=1)
    job = client.submit(service.job("one"))
    received: list[str] = []
    follower = threading.Thread(target=lambda: received.extend(client.follow(job.id, poll_s=0.05)))
    follower.start()
    try:
        wait_until(lambda: "running one" in "".join(received), "what it prints")
        service.kill()
        again = service.start(cores=1)
        assert again._address == client._address
        service.end("one")
        assert client.wait(job.id, WAIT_S).state == Lifecycle.FINISHED
    finally:
        follower.join(WAIT_S)
    assert not follower.is_alive() and "".join(received).count("running one") == 1
    service.stop()


@pytest.mark.parametrize("module", ["sitecustomize", "yaml"])
def test_driver_interrupted_during_its_start_prints_one_line(tmp_path: Path, module: str) -> None:
    interrupted = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"  # by itself, at this very moment
    (tmp_path / f"{module}.py").write_text(interrupted)
    folder = tmp_path / "application"
    folder.mkdir()
    path = f"PYTHONPATH={tmp_path}{os.pathsep}{Path.cwd()}"
    driver = ["/usr/bin/env", path, sys.executable, str(SCRIPT), str(tmp_path / "job.yaml"), "main"]
    local_driver.start(folder, DriverOrder(driver, dict(os.environ), masks_interrupt=True))
    wait_until((folder / local_driver.ENDED).exists, "the end of the driver", WAIT_S)
    assert (folder / "output.log").read_text() == "hopsml: this task was asked to end, and has ended\n"
    assert json.loads((folder / "ended").read_text())["status"] == 130
