"""Test that nodes are added to a real YARN for a gang that does not fit, drained after it, and removed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.core.states import Lifecycle
from tests.helpers.cluster.workloads import wait_until
from tests.integration.yarn import nodes_hook
from tests.integration.yarn.test_job_service import WAIT_S, YarnService, own_cluster, reaches, served
from tools.hadoop.cluster import Cluster
from tools.hadoop.settings import Shape

pytestmark = [pytest.mark.hadoop, pytest.mark.variant]

NODES = """
provider: {{command: {python} {hook} {home}}}
groups:
  small: {{node: {{cores: 4, memory: 2560m}}, max: 3, idle: 5s, boots_within: 2m}}
"""
FOUR = ", count: 4, resources: {cores: 1, memory: 1g}"


@pytest.fixture
def growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[YarnService]:
    """Yield a service on a cluster of one node, for a driver and one worker."""
    shape = Shape(datanodes=1, nodemanagers=1, gpus=0, memory_mb=2560, vcores=4)
    with own_cluster("nodes", shape) as cluster, served(cluster, tmp_path, monkeypatch) as made:
        nodes = NODES.format(python=sys.executable, hook=nodes_hook.__file__, home=cluster.home)
        (tmp_path / "nodes.yaml").write_text(nodes)
        made.options = ("--nodes", str(tmp_path / "nodes.yaml"))
        yield made


def test_gang_that_does_not_fit_gets_yarn_nodes_which_are_drained_after_it(growing: YarnService) -> None:
    home = growing.hadoop.home

    def added() -> list[str]:
        return [name for name in Cluster(home).names("nm") if name != "nm1"]

    def calls() -> list[str]:
        return [line.split()[0] for line in (home / "calls").read_text().splitlines()]

    client = growing.start()
    wait_until(lambda: client.cluster()["capacity"]["memory_mib"], "the node", WAIT_S)
    wide = client.submit(growing.job("wide", FOUR))
    assert wide.why == "waits for 2 more nodes of group 'small', about 2 min"
    wait_until(lambda: added() == ["nm2", "nm3"], "the nodes", WAIT_S)
    wait_until(lambda: (growing.folder / "wide.starts").exists(), "the workers", WAIT_S)
    growing.signal(signal.SIGKILL)
    client = growing.start()  # finds nodes and job again
    wait_until(reaches(client, wide.id, Lifecycle.RUNNING), "the job", WAIT_S)
    assert len((growing.folder / "wide.starts").read_text()) == 4
    growing.end("wide")
    assert client.wait(wide.id, WAIT_S).state == Lifecycle.FINISHED
    wait_until(lambda: not added(), "the end of the nodes", WAIT_S)
    wanted = ["drain", "drain", "launch", "terminate", "terminate"]
    wait_until(lambda: sorted(calls()) == wanted, "each call once", WAIT_S)
    states = {host: node["state"] for host, node in growing.hadoop.resource_manager.nodes().items()}
    assert [host for host, state in states.items() if state == "RUNNING"] == ["127.0.0.11"]
    assert growing.signal(signal.SIGTERM) == 0
