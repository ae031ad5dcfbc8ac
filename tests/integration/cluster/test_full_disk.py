"""Tests of agents with a full disk: the training continues without lines of files; no agent starts without its tokens."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml.cluster.agent.agent import NEVER_JOINED
from tests.helpers import small_disk
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import submit
from tests.integration.cluster.preflight.test_runs import Lowered, lowered

pytestmark = pytest.mark.chaos
__all__ = ["lowered"]


def report_much() -> int:
    import hopsml

    for step in range(400):
        hopsml.report(step=step, loss=float(step), text="x" * 100)
    return step


@pytest.mark.parametrize("lowered", [(resource.RLIMIT_FSIZE, 20_000, 2)], indirect=True)
def test_training_continues_if_metrics_cannot_be_written(store: Path, lowered: Lowered) -> None:
    run = submit(report_much, preflight="off")
    assert run.result(END_S).value == 399
    assert run.status()["members"][0]["step"] == 399  # the driver has received all reports
    (note,) = [note for note in run.state.notes if "metrics.jsonl" in note]
    assert "rank 0: lines of metrics.jsonl were lost" in note and "File too large" in note


OF_RUN = """
from hopsml.cluster.agent import agent, network
bootstrap = network.Bootstrap(
    request_id=1, addresses=(("127.0.0.1", 1),), token="t", certificate="", preload=(), lease_s=1.0, sys_path=(),
    has_tokens=True,
)
print(agent.run_agent(bootstrap, 0))
"""
OF_SERVING = """
from hopsml.serving.agent import AgentBootstrap, AgentResources, run_agent
try:
    run_agent(AgentBootstrap("127.0.0.1", 1, "", "t", has_tokens=True), AgentResources())
except OSError as error:
    print(f"OSError: {error}")
"""


@pytest.mark.parametrize(("program", "start"), [(OF_RUN, NEVER_JOINED), (OF_SERVING, "")])
def test_agent_that_cannot_store_its_tokens_ends_with_the_reason(tmp_path: Path, program: str, start: str) -> None:
    with small_disk.mounted(tmp_path / "disk", 100) as disk:
        (disk / "serving").mkdir(mode=0o700)
        (disk / "serving" / "places").mkdir(mode=0o700)
        small_disk.fill(disk)
        variables = {"SPARK_LOCAL_DIRS": str(disk), "HOPSML_SERVING_FOLDER": str(disk / "serving")}
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=END_S,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.startswith(f"{start}OSError: [Errno 28] No space left on device")
        left = {entry.name for folder in (disk, disk / "serving" / "places") for entry in folder.iterdir()}
        assert left == {"filler", "serving"}, "the folder is deleted"


def test_driver_that_cannot_store_its_tokens_names_the_reason(tmp_path: Path) -> None:
    program = """
import tempfile, sys
tempfile.tempdir = sys.argv[1]  # it was writable when Python chose it
from hopsml import errors, experiment
from hopsml.experiment import applications
try:
    experiment.submit(print, num_workers=1, progress=False, profile="local")
except errors.CoordinatorLost as error:
    print(error)
import threading
print([thread.name for thread in threading.enumerate()])
"""
    conf, given = tmp_path / "conf", tmp_path / "given"
    conf.mkdir()
    (conf / "core-site.xml").write_text(
        "<configuration><property><name>hadoop.security.authentication</name><value>kerberos</value></property>"
        "</configuration>"
    )
    given.write_bytes(b"HDTS\0\0\0")
    with small_disk.mounted(tmp_path / "disk", 100) as disk:
        small_disk.fill(disk)
        variables = {
            "HADOOP_CONF_DIR": str(conf),
            "HADOOP_TOKEN_FILE_LOCATION": str(given),
            "HOPSML_PROJECT_URL": f"file://{tmp_path}/project",
        }
        ended = subprocess.run(
            [sys.executable, "-c", program, str(disk)],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=END_S,
        )
    assert ended.returncode == 0, ended.stderr
    message, threads = ended.stdout.splitlines()
    assert "delegation tokens" in message and "No space left" in message
    assert "TMPDIR" in message and "hopsml-coordinator" not in threads
