"""Tests that workers in containers with their own hostnames are shown with the names of YARN's nodes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.core.states import Lifecycle
from hopsml.storage import filesystem
from hopsml.storage.run_dir import find_run_dir
from tests.helpers.cluster.workloads import wait_until
from tests.integration.yarn.conftest import Hadoop
from tests.integration.yarn.test_job_service import WAIT_S, YarnService, reaches, served
from tools.hadoop.settings import host

pytestmark = [
    pytest.mark.hadoop,
    pytest.mark.variant,
    pytest.mark.skipif(os.geteuid() != 0, reason="a hostname of one's own is root's to give"),
]

# Runs the Python of drivers and executors with its own hostname, as a container engine does.
CONTAINED = """#!/bin/sh
exec unshare --uts sh -c 'hostname "container-$$"; exec "$0" "$@"' {python} "$@"
"""
TRAIN = """
def main(folder):
    import os, socket, time, hopsml
    with open(f"{folder}/inside-{hopsml.distributed.rank()}", "w") as file:
        file.write(socket.gethostname())
    while not os.path.exists(f"{folder}/end"):
        time.sleep(0.05)
    return 1.0
"""
JOB = """
name: contained
tasks:
  main:
    function: contained.py:main
    framework: distributed
    count: 2
    arguments: {{folder: {folder}}}
"""


@pytest.fixture
def service(hadoop: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[YarnService]:
    python = tmp_path / "python"
    python.write_text(CONTAINED.format(python=shlex.quote(sys.executable)))
    python.chmod(0o755)
    with served(hadoop, tmp_path, monkeypatch, {"spark.yarn.appMasterEnv.PYSPARK_PYTHON": str(python)}) as made:
        yield made


def test_run_shows_yarn_node_names_regardless_of_container_hostnames(service: YarnService) -> None:
    folder, client, hadoop = service.folder, service.start(), service.hadoop
    (folder / "code" / "contained.py").write_text(TRAIN)
    (folder / "code" / "contained.yaml").write_text(JOB.format(folder=folder))
    job = client.submit(folder / "code" / "contained.yaml").id
    wait_until(lambda: len(list(folder.glob("inside-*"))) == 2, "both workers", WAIT_S)
    there = {path.name: host(path.parts[-4]) for path in hadoop.home.glob("nm*/containers/*/container_*")}
    # A node of 8 GiB has resources for one more container next to one of the job, but not next to two.
    waits = client.submit(service.job("waits", ", count: 2, resources: {cores: 1, memory: 5500m}"))
    expected = re.compile(r"needs 2 slots of .* free \(127\.0\.0\.1[12] 1\)")
    wait_until(lambda: expected.search(client.why(waits.id)), "a reason with the node's name", WAIT_S)
    client.cancel(waits.id)
    (folder / "end").touch()
    wait_until(reaches(client, job, Lifecycle.FINISHED), "its end", WAIT_S)
    inside = {path.read_text() for path in folder.glob("inside-*")}
    assert all(name.startswith("container-") for name in inside), "what the workers themselves see"
    run = find_run_dir(client.runs(job)[0].id, f"{hadoop.namenode_url}/Projects/{folder.name}")
    members = json.loads(filesystem.for_url(run.status_json).read_bytes(run.status_json))["workers"]
    assert [one["host"] for one in members] == [there[one["executor"]] for one in members]
    printed = "".join(client.follow(job))
    assert all(f"rank {one['rank']} on {one['host']} (" in printed for one in members)
    nodes = client._call("GET", "nodes")["nodes"]
    assert {one["host"] for one in members} <= {node["name"] for node in nodes}
    assert service.signal(signal.SIGTERM) == 0
