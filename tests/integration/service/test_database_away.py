"""Tests of database outages during jobs: reported, and no job is lost or started twice."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from hopsml.client import Client
from hopsml.core import log_stream
from hopsml.core.states import Lifecycle
from hopsml.errors import ServiceError, StoreError
from hopsml.service.rest.access import TokenMiddleware
from hopsml.service.rest.errors import HANDLERS
from tests.helpers import leaks
from tests.helpers.cluster.workloads import wait_until
from tests.integration.service import postgresql
from tests.integration.service.postgresql import PostgreSql
from tests.integration.service.test_follow import Follower
from tests.integration.service.test_job_service import WAIT_S, JobService, reaches, service

__all__ = ["service"]  # the fixture

AWAY_S = 20.0
# Prints consecutive numbers until its end file exists.
COUNTS = """
import os, sys, time
folder = sys.argv[sys.argv.index("--folder") + 1]
open(f"{folder}/counts.starts", "a").write("once\\n")
number = 0
while not os.path.exists(f"{folder}/counts.end"):
    print(number, flush=True)
    number += 1
    time.sleep(0.1)
"""


@pytest.fixture
def database() -> Iterator[PostgreSql]:
    yield from postgresql.running()


def answer_to(client: Client, path: str, method: str = "GET") -> tuple[int, dict[str, str], dict[str, Any]]:
    """Return status, headers and error of one request."""
    headers = {"Authorization": f"Bearer {client._token}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{client._address}/{path}", b"{}" if method == "POST" else None, headers, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, dict(answer.headers.items()), {}
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, {name.lower(): value for name, value in refused.headers.items()}, json.load(refused)


@pytest.mark.fast
def test_request_during_a_database_outage_is_answered_with_retry_after() -> None:
    def identify(token: str) -> object:
        raise StoreError("the database refuses: it is away; see that it runs")

    app = TokenMiddleware(
        Starlette(routes=[Route("/", lambda request: PlainTextResponse("page"))], exception_handlers=HANDLERS),
        identify,
        "x",
    )

    async def ask(headers: dict[str, str]) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as asking:
            return await asking.get("/", headers=headers)

    answer = asyncio.run(ask({"authorization": "Bearer somebody"}))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json() == {"error": "the database refuses: it is away", "remedy": "see that it runs"}
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert asyncio.run(ask({})).status_code == 401, "who has no token needs no database for that"


@pytest.mark.local
@pytest.mark.variant  # of store/test_postgresql and the one above: here all of it is together, for as long as it may take
def test_jobs_survive_a_database_outage_without_loss_or_duplicates(
    service: JobService, database: PostgreSql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_stream, "PATIENCE_S", 300.0)  # of a machine that has much to do
    service.database = database.url
    client = service.start(cores=2)
    (service.code / "counts.py").write_text(COUNTS)
    counts = service.code / "counts.yaml"
    counts.write_text(f"name: counts\ntasks: {{main: {{script: counts.py, arguments: {{folder: {service.jobs}}}}}}}\n")
    counting = client.submit(counts).id
    ends, waits = client.submit(service.job("ends")).id, client.submit(service.job("waits")).id
    wait_until(lambda: service.starts("counts") and service.starts("ends"), "both that have room")
    follower = Follower(client.follow(counting))
    wait_until(lambda: "3\n" in follower.text, "its first lines")

    database.stop()
    service.end("ends")
    _check_answers_during_outage(client, counting)
    with pytest.raises(ServiceError, match="check that it runs"):
        client.submit(service.job("late"))
    with leaks.not_of_this_test():
        database.start()

    wait_until(reaches(client, ends, Lifecycle.FINISHED), "the end of which the service has heard late", 60)
    wait_until(lambda: service.starts("waits"), "the one that has waited for that")
    assert client.job(counting).state == Lifecycle.RUNNING
    late = client.submit(service.job("late")).id
    for name in ("counts", "waits", "late"):
        service.end(name)
    for job in (counting, waits, late):
        ended = client.wait(job, WAIT_S)
        assert (ended.state, ended.tries) == (Lifecycle.FINISHED, 1), ended.cause
    assert [len(service.starts(name)) for name in ("counts", "ends", "waits", "late")] == [1, 1, 1, 1]
    assert not (service.jobs / "DOUBLED").exists() and len(client.jobs()) == 4
    numbers = [int(line) for line in follower.ended().split()]
    assert numbers == list(range(len(numbers))), "each line once, in order"
    service.stop()


def _check_answers_during_outage(client: Client, job: str) -> None:
    """Assert that every request during the outage gets an error with a remedy."""
    until = time.monotonic() + AWAY_S
    while time.monotonic() < until:
        for path, method in ((f"api/v1/jobs/{job}", "GET"), (f"api/v1/jobs/{job}/cancel", "POST"), ("", "GET")):
            status, headers, problem = answer_to(client, path, method)
            assert (status, headers.get("retry-after")) == (503, "2"), (path, status, problem)
            assert "the database" in problem["error"] and "check that it runs" in problem["remedy"]
        time.sleep(0.5)
