"""Cluster of the scenarios in this folder, and what each of them starts with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.storage import filesystem
from tests.helpers.clock import END_S, wait_until
from tests.helpers.kerberos import running_cluster, use_ticket
from tests.helpers.storage import token_runs
from tools.hadoop.kerberos import Security
from tools.hadoop.settings import Shape

SHAPE = Shape(namenodes=2, datanodes=2, nodemanagers=1, resourcemanagers=2, gpus=0)
SECURITY = Security(protection="privacy", encrypt=True, spnego=True, https=True, token_renew_s=90)


@pytest.fixture(scope="package")
def pairs() -> Iterator[Any]:
    """Yield two NameNodes, DataNodes and ResourceManagers and a NodeManager, with SPNEGO, HTTPS and encryption."""
    yield from running_cluster("secure-pairs", SHAPE, SECURITY)


@pytest.fixture
def secure_cluster(pairs: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the cluster with all daemons and a ticket of alice; what the test stopped is started again afterwards."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(pairs.conf_dir))
    use_ticket(monkeypatch, pairs.kdc, "alice")
    filesystem.close_all()
    yield pairs
    filesystem.close_all()
    make_whole(pairs)


@pytest.fixture
def token_file(secure_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the token file of a local application whose project is in the cluster; there is no ticket."""
    yield from token_runs.application_with_tokens(secure_cluster, tmp_path, monkeypatch)


def make_whole(cluster: Any) -> None:
    """Start the daemons that have ended, wait until a NameNode is active, and end applications."""
    cluster.revive(*(name for name in cluster.names() if cluster.frozen(name) or not cluster.alive(name)))
    wait_until(lambda: is_whole(cluster), "a whole cluster", END_S)


def is_whole(cluster: Any) -> bool:
    """Repair the cluster; return False while no NameNode is active, or does not answer in time."""
    try:
        cluster.make_whole()
    except (LookupError, OSError, ValueError):
        return False
    return True


def active_namenode(cluster: Any) -> str:
    """Return the active NameNode; "" while there is none."""
    try:
        return str(cluster.active_namenode)
    except (LookupError, OSError, ValueError):
        return ""
