"""Tests of the job service during a failover of the ResourceManager: jobs continue, none runs twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.cluster.workloads import wait_until
from tests.integration.yarn.test_job_service import (
    WAIT_S,
    YarnService,
    check_no_job_is_lost_or_started_twice,
    own_cluster,
    served,
)
from tools.hadoop.settings import Shape

pytestmark = [pytest.mark.hadoop, pytest.mark.variant]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[YarnService]:
    shape = Shape(datanodes=1, nodemanagers=1, resourcemanagers=2, gpus=0, memory_mb=8192)
    with own_cluster("failover", shape) as cluster, served(cluster, tmp_path, monkeypatch) as made:
        yield made


def test_jobs_survive_a_resource_manager_failover(service: YarnService) -> None:
    def start_outage() -> None:
        service.hadoop.kill("rm")
        wait_until(lambda: service.client.cluster()["problem"], "the service to notice", WAIT_S)

    check_no_job_is_lost_or_started_twice(service, start_outage, lambda: service.hadoop.fail_over("rm2"))
