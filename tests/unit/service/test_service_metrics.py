"""Tests of the Prometheus metrics: correct values, and a bounded number of names."""

from __future__ import annotations

import re
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hopsml.core.states import Lifecycle
from hopsml.service import metrics
from hopsml.service.store.accounts import Role
from hopsml.service.store.rows import JobCount
from tests.helpers.service.served import Served

pytestmark = pytest.mark.fast


def samples(served: Served) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return all samples, parsed by the Prometheus client."""
    answer = served.ask("GET", "../../metrics", Role.VIEWER)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def value(served: Served, name: str, **labels: str) -> float:
    return samples(served)[name, frozenset(labels.items())]


def test_metrics_count_jobs_cluster_and_leader(served: Served) -> None:
    assert value(served, "hopsml_leads") == 0
    for _ in range(3):
        served.submit()
    served.ask("POST", "jobs/1/cancel")
    with served.jobs.store.write_transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET submitted_s = submitted_s - 1000 WHERE serial = 2")
    served.jobs.manager.run_pass()
    found = samples(served)
    for state, count in (("waiting", 2), ("cancelled", 1), ("running", 0)):
        assert found["hopsml_jobs", frozenset({("queue", "default"), ("state", state)})] == count
    assert 1000 <= found["hopsml_oldest_waiting_seconds", frozenset({("queue", "default")})] < 1060
    assert found["hopsml_leads", frozenset()] == 1 and found["hopsml_engine_problem", frozenset()] == 0
    assert found["hopsml_cluster_free", frozenset({("resource", "cores")})] == 0


def test_pass_duration_is_measured_by_the_manager_thread(served: Served) -> None:
    served.jobs.start()
    deadline = time.monotonic() + 30
    while not served.jobs.meter.counts.get("hopsml_turn_seconds_count"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert value(served, "hopsml_turn_seconds_count") >= 1
    assert value(served, "hopsml_turn_seconds_bucket", le="+Inf") >= 1


def test_requests_are_counted_by_route_template_and_status(served: Served) -> None:
    served.submit()
    for job in ("1", "digits-1", "9", "<script>", "x" * 500):
        served.ask("GET", f"jobs/{job}")
    served.ask("GET", "jobs/1", headers={"authorization": "Bearer nonsense"})
    served.ask("BREW", "jobs/1")
    served.ask("GET", "../runs")
    route = {"route": "/api/v1/jobs/{job}", "method": "GET"}
    assert value(served, "hopsml_http_requests_total", **route, status="200") == 2
    assert value(served, "hopsml_http_requests_total", **route, status="404") == 3
    assert value(served, "hopsml_http_request_seconds_count", **route) == 5
    assert value(served, "hopsml_http_requests_total", route="", method="GET", status="401") == 1
    assert value(served, "hopsml_http_requests_total", route="/api/runs", method="GET", status="200") == 1
    names = served.ask("GET", "../../metrics", Role.VIEWER).text
    assert "script" not in names and "BREW" not in names and "xxx" not in names
    assert not re.search(r"digits|Bearer", names)
    assert served.ask("GET", "../../metrics", headers={"authorization": "Bearer nonsense"}).status_code == 401


def test_unconfigured_queues_are_counted_as_one() -> None:
    found = [JobCount(f"q{number}", Lifecycle.WAITING, 2, float(number)) for number in range(5)]
    counts = metrics.job_counts(found, ["q0"], 100.0)
    assert counts['hopsml_jobs{queue="q0",state="waiting"}'] == 2
    assert counts['hopsml_jobs{queue="other",state="waiting"}'] == 8
    assert counts['hopsml_oldest_waiting_seconds{queue="other"}'] == 99.0
    assert len(counts) == 2 * (1 + len(Lifecycle))
