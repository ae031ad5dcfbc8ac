"""Tests of a Kerberized HDFS with two NameNodes: the standby takes over, with tickets and tokens alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.core import delegation_tokens as tokens
from hopsml.storage import filesystem
from hopsml.storage.filesystem import for_url
from tests.helpers import tokens as test_tokens
from tests.helpers.clock import WAIT_S, wait_until
from tests.helpers.kerberos import running_cluster, use_ticket
from tools.hadoop.kerberos import Security
from tools.hadoop.settings import Shape

pytestmark = [pytest.mark.hadoop, pytest.mark.variant]


@pytest.fixture(scope="module")
def two_namenodes() -> Iterator[Any]:
    yield from running_cluster("secure-ha", Shape(2, datanodes=2, nodemanagers=0, resourcemanagers=0), Security())


def test_standby_takes_over_for_tickets_and_tokens(
    two_namenodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(two_namenodes.conf_dir))
    use_ticket(monkeypatch, two_namenodes.kdc, "alice")
    url = f"{two_namenodes.namenode_url}/user/alice/file"
    for_url(url).write_bytes(url, b"before")
    tokens.write(tmp_path / "tokens", test_tokens.obtain(two_namenodes))
    first = two_namenodes.active_namenode
    two_namenodes.kill(first)
    assert for_url(url).read_bytes(url) == b"before"
    assert wait_until(lambda: active(two_namenodes), "another active NameNode", WAIT_S) != first
    filesystem.close_all()
    monkeypatch.setenv("KRB5CCNAME", "FILE:/nowhere/cache")
    monkeypatch.setenv(tokens.VARIABLE, str(tmp_path / "tokens"))
    for_url(url).write_bytes(url, b"after")
    assert for_url(url).read_bytes(url) == b"after"
    two_namenodes.revive(first)
    assert two_namenodes.active_namenode != first
    filesystem.close_all()


def active(cluster: Any) -> str:
    """Return the active NameNode; "" while there is none."""
    try:
        return str(cluster.active_namenode)
    except LookupError:
        return ""
