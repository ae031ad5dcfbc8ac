"""Tests of the cluster of tools/hadoop: files in HDFS, nodes in YARN, daemons that are killed and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hdfs_native import Client

from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.integration.yarn.conftest import Hadoop
from tools.hadoop import daemons
from tools.hadoop.cluster import Cluster
from tools.hadoop.errors import HadoopError
from tools.hadoop.jars import ensure_jars

pytestmark = pytest.mark.hadoop

CONTENT = os.urandom(3 << 20)


@pytest.fixture
def client(hadoop: Hadoop) -> Client:
    """Return a client of this HDFS, separate from those of other tests."""
    return Client(hadoop.namenode_url)


@pytest.fixture
def folder(client: Client) -> Iterator[str]:
    """Yield a folder in HDFS that is deleted after the test."""
    client.mkdirs("/cluster-test")
    yield "/cluster-test"
    client.delete("/cluster-test", recursive=True)


def write(client: Client, path: str, content: bytes = CONTENT) -> None:
    """Write a whole file."""
    with client.create(path) as file:
        file.write(content)


def read(client: Client, path: str) -> bytes:
    """Read a whole file."""
    with client.read(path) as file:
        return bytes(file.read())


def test_file_is_read_as_it_was_written(hadoop: Hadoop, client: Client, folder: str) -> None:
    write(client, f"{folder}/data")
    assert read(client, f"{folder}/data") == CONTENT
    assert client.get_file_info(f"{folder}/data").length == len(CONTENT)


def test_two_nodes_run_and_offer_gpus(hadoop: Hadoop) -> None:
    nodes = hadoop.resource_manager.nodes()
    running = {host: node for host, node in nodes.items() if node["state"] == "RUNNING"}
    assert set(running) == {"127.0.0.11", "127.0.0.12"}  # besides, those that a test has added and removed are listed
    for node in running.values():
        offered = node["totalResource"]["resourceInformations"]["resourceInformation"]
        assert {entry["name"]: entry["value"] for entry in offered}["yarn.io/gpu"] == 2


@pytest.mark.parametrize("name", ["nn", "dn1", "nm2", "rm"])
@pytest.mark.variant
def test_killed_daemon_restarts_at_the_same_address(hadoop: Hadoop, client: Client, folder: str, name: str) -> None:
    write(client, f"{folder}/data")
    pid, ports = hadoop.state.pids[name], dict(hadoop.state.ports[name])
    hadoop.kill(name)
    assert not hadoop.alive(name)
    hadoop.revive(name)
    assert hadoop.state.pids[name] != pid
    assert hadoop.state.ports[name] == ports
    hadoop.wait_ready(5)
    assert read(Client(hadoop.namenode_url), f"{folder}/data") == CONTENT


@pytest.mark.variant  # of the tool alone; what uses it is tested below
def test_files_are_readable_while_a_datanode_is_dead(hadoop: Hadoop, client: Client, folder: str) -> None:
    write(client, f"{folder}/data")
    hadoop.kill("dn1")
    assert read(client, f"{folder}/data") == CONTENT, "each block lies on both DataNodes"


@pytest.mark.variant  # of the tool alone; what uses it is tested below
def test_frozen_nodemanager_is_lost_and_returns(hadoop: Hadoop) -> None:
    hadoop.kill("nm1", signal.SIGSTOP)
    assert hadoop.frozen("nm1")
    host = "127.0.0.11"
    daemons.wait_until("nm1 LOST", lambda: hadoop.resource_manager.nodes()[host]["state"] == "LOST", 30)
    hadoop.revive("nm1")
    assert hadoop.resource_manager.nodes()[host]["state"] == "RUNNING"


@pytest.mark.variant  # of the tool alone; what uses it is tested below
def test_node_is_added_and_decommissioned(hadoop: Hadoop) -> None:
    assert hadoop.add_nodemanager() == "nm3"
    hadoop.decommission("nm3", 5)
    host = "127.0.0.13"
    daemons.wait_until(
        "nm3 out of service", lambda: hadoop.resource_manager.nodes()[host]["state"] == "DECOMMISSIONED", 30
    )
    hadoop.make_whole()
    assert hadoop.names("nm") == ["nm1", "nm2"]


@pytest.mark.variant  # of the tool alone; what uses it is tested below
def test_make_whole_repairs_every_kind_of_failure(hadoop: Hadoop, client: Client, folder: str) -> None:
    write(client, f"{folder}/data")
    hadoop.dfsadmin("-safemode", "enter")
    hadoop.kill("dn2")
    hadoop.kill("nm1", containers=True)
    hadoop.kill("rm", signal.SIGSTOP)
    hadoop.make_whole()
    write(client, f"{folder}/more")
    hadoop.wait_ready(5)
    assert not any(map(hadoop.frozen, hadoop.names()))


@pytest.mark.variant  # of the tool alone; what uses it is tested below
def test_make_whole_of_an_intact_cluster_is_quick(hadoop: Hadoop) -> None:
    started_s = clock.awake()
    hadoop.make_whole()
    assert clock.awake() - started_s < 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda cluster: cluster.kill("nm9"),
            "no daemon is called 'nm9'; there are dn1, dn2, nm1, nm2, nn, rm",
        ),
        (lambda cluster: cluster.application_state("application_1_0001"), "application_1_0001 not found"),
        (lambda cluster: cluster.dfsadmin("-nonsense"), "DFSAdmin -nonsense: exit status"),
        (lambda cluster: cluster.start(ensure_jars()), "already; stop it first"),
    ],
)
def test_impossible_operation_is_refused(hadoop: Hadoop, call: object, message: str) -> None:
    with pytest.raises(HadoopError, match=message):
        call(hadoop)  # type: ignore[operator]
    assert all(map(hadoop.alive, hadoop.names()))


# A cluster of its own in a process that is killed; HDFS and a ResourceManager without nodes are quick to
# start.
STARTER = """
import sys
from pathlib import Path
from tools.hadoop.cluster import Cluster
from tools.hadoop.jars import ensure_jars
from tools.hadoop.settings import Shape
cluster = Cluster(Path(sys.argv[1]))
cluster.start(ensure_jars(), Shape(datanodes=1, nodemanagers=1), guarded=True)
print("ready", flush=True)
sys.stdin.read()
cluster.stop(remove=True)
"""


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Yield a waiting process that has started a cluster in a folder."""
    home = tmp_path / "cluster"
    command = [sys.executable, "-c", STARTER, str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(daemons.processes_of(home)) == 4
        yield process, home
        process.kill()
    Cluster(home).stop(now=True)


def is_removed(home: Path) -> bool:
    """Return True if no process or file of the cluster remains."""
    return not daemons.processes_of(home) and not home.exists()


@pytest.mark.variant  # of the tool alone; what uses it is tested below
def test_cluster_ends_when_its_starter_is_killed(starter: tuple[subprocess.Popen[str], Path]) -> None:
    process, home = starter
    process.kill()
    process.wait()
    daemons.wait_until("the end of everything", lambda: is_removed(home), 10)


@pytest.mark.variant  # of the tool alone; what uses it is tested below
def test_orderly_stop_removes_processes_and_files(starter: tuple[subprocess.Popen[str], Path]) -> None:
    process, home = starter
    process.communicate("", timeout=END_S)
    assert process.returncode == 0
    assert is_removed(home)


@pytest.mark.variant  # of the tool alone; what uses it is tested below
def test_daemon_that_cannot_start_is_named_with_its_log(hadoop: Hadoop, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    with pytest.raises(HadoopError, match=r"nn -format ended with 1: (.|\n)*ClassNotFoundException"):
        cluster.start(tmp_path)  # a folder without jars
    assert not daemons.processes_of(tmp_path / "cluster")
