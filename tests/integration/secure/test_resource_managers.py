"""Tests with two ResourceManagers behind SPNEGO, one of which is killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hopsml.errors import ClusterError
from hopsml.submission import follower
from hopsml.yarn import ResourceManager
from tests.helpers.clock import wait_until
from tests.helpers.kerberos import running_cluster, use_ticket
from tests.integration.secure.test_web_services import submit
from tools.hadoop.kerberos import Security
from tools.hadoop.settings import Shape

pytestmark = [pytest.mark.hadoop, pytest.mark.variant]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two ResourceManagers and a NodeManager with a ticket of alice."""
    shape = Shape(datanodes=1, nodemanagers=1, resourcemanagers=2, gpus=0)
    for cluster in running_cluster("secure-failover", shape, Security(spnego=True)):
        monkeypatch.setenv("HADOOP_CONF_DIR", str(cluster.conf_dir))
        use_ticket(monkeypatch, cluster.kdc, "alice")
        yield cluster


def test_application_is_followed_and_ended_after_a_failover(cluster: Any) -> None:
    yarn = ResourceManager.from_environment()
    assert len(yarn.addresses) == 2
    application_id = submit("sleep 600")
    wait_until(lambda: yarn.application(application_id).am_log_url)
    cluster.kill("rm")
    assert isinstance(follower.observe(yarn, application_id), follower.ResourceManagerUnreachable)
    cluster.fail_over("rm2")
    wait_until(lambda: isinstance(follower.observe(yarn, application_id), follower.StateObserved))

    def nodes() -> int:
        try:
            return len(yarn.nodes())
        except ClusterError:
            return 0

    wait_until(nodes)
    assert follower.end_application(application_id, yarn=yarn).state == "KILLED"
