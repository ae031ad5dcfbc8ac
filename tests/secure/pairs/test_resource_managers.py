"""Two ResourceManagers behind SPNEGO and HTTPS, one of which is killed: applications and jobs are followed and ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.errors import ClusterError
from hopsml.submission import follower
from hopsml.yarn import ResourceManager
from tests.helpers.clock import END_S, wait_until
from tests.integration.secure.test_web_services import submit
from tests.integration.yarn.test_job_service import YarnService, check_no_job_is_lost_or_started_twice, served
from tests.secure import submitting
from tests.secure.submitting import Way
from tools.hadoop import spark

pytestmark = [pytest.mark.secure, pytest.mark.timeout(1500)]


def test_application_is_followed_and_ended_after_a_failover(secure_cluster: Any) -> None:
    yarn = ResourceManager.from_environment()
    assert (yarn.scheme, len(yarn.addresses)) == ("https", 2)
    application_id = submit("sleep 600")
    wait_until(lambda: yarn.application(application_id).am_log_url)
    active, standby = ("rm", "rm2") if is_active(secure_cluster, "rm") else ("rm2", "rm")
    secure_cluster.kill(active)
    assert isinstance(follower.observe(yarn, application_id), follower.ResourceManagerUnreachable)
    secure_cluster.fail_over(standby)
    wait_until(lambda: isinstance(follower.observe(yarn, application_id), follower.StateObserved))

    def nodes() -> int:
        try:
            return len(yarn.nodes())
        except ClusterError:
            return 0

    wait_until(nodes)
    assert follower.end_application(application_id, yarn=yarn).state == "KILLED"


def is_active(cluster: Any, name: str) -> bool:
    """Return True if this ResourceManager is the active one."""
    return bool(cluster.resource_manager.base == cluster.web.url(cluster.state.ports[name]["http"]))


class SecureYarn:
    """The cluster with what submits applications of alice to it, whose keytab their drivers use."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def spark_conf(self, **options: Any) -> dict[str, str]:
        """Return settings for a small application."""
        return submitting.secure_conf(spark.spark_conf(**options), self._cluster.kdc, "alice")

    def submit_env(self) -> dict[str, str]:
        """Return the environment of the service, which has a ticket."""
        return submitting.environment(self._cluster, Way("ticket", "cluster"), "")


@pytest.fixture
def service(secure_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[YarnService]:
    """Yield a job service on the cluster, which is not started."""
    secure_cluster.fs("-mkdir", "-p", "/Projects")
    secure_cluster.fs("-chmod", "1777", "/Projects")
    with served(SecureYarn(secure_cluster), tmp_path, monkeypatch) as made:  # type: ignore[arg-type]
        yield made


def test_jobs_survive_a_failover_while_the_service_polls(secure_cluster: Any, service: YarnService) -> None:
    active, standby = ("rm", "rm2") if is_active(secure_cluster, "rm") else ("rm2", "rm")

    def start_outage() -> None:
        secure_cluster.kill(active)
        wait_until(lambda: service.client.cluster()["problem"], "the service to notice", END_S)

    check_no_job_is_lost_or_started_twice(service, start_outage, lambda: secure_cluster.fail_over(standby))
