"""Test of one trace over service, driver and workers, at a real receiver."""

from __future__ import annotations

import pytest

from hopsml.core.states import Lifecycle
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.otlp import receiver
from tests.integration.service.test_job_service import WAIT_S, JobService, service

__all__ = ["service"]
pytestmark = pytest.mark.local

TRAIN = """
def train():
    import hopsml
    hopsml.report(step=1, loss=0.5)
    hopsml.report(step=2, loss=0.25)
"""


@pytest.mark.variant  # its parts are test_tracing
def test_job_launch_is_one_trace_from_submission_to_the_first_step(
    service: JobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    (service.code / "train.py").write_text(TRAIN)
    path = service.code / "traced.yaml"
    path.write_text("name: traced\ntasks: {main: {function: train.py:train, framework: distributed, count: 2}}\n")
    with receiver() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        monkeypatch.delenv("TRACEPARENT", raising=False)
        client = service.start(cores=3)
        job = client.submit(path)
        assert client.wait(job.id, WAIT_S).state == Lifecycle.FINISHED
        wait_until(lambda: len(received.spans) >= 8, "all spans")
        assert service.stop() == 0
    assert len({span.trace for span in received.spans}) == 1
    submit, queued, run = (received.named(name)[0] for name in ("submit", "queued", "run"))
    assert submit.parent == "" and queued.parent == run.parent == submit.id and submit.pid == queued.pid != run.pid
    assert submit.attributes["job"] == queued.attributes["job"] == job.id and run.attributes["workers"] == 2
    parts = [received.named(name)[0] for name in ("executors", "rendezvous", "first step")]
    assert {part.parent for part in parts} == {run.id} and {part.problem for part in parts} == {""}
    assert [part.end_s for part in parts[:2]] == [part.begin_s for part in parts[1:]]
    assert submit.begin_s <= queued.end_s <= run.begin_s <= parts[0].begin_s and parts[2].end_s <= run.end_s
    workers = received.named("worker's first step")
    assert {worker.attributes["rank"] for worker in workers} == {0, 1} and {one.parent for one in workers} == {run.id}
    assert len({span.pid for span in received.spans}) == 4, "the service, the driver, two workers"
    assert len(received.spans) == 8
