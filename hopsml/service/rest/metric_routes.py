"""Route ``/metrics`` for Prometheus, which needs a viewer's token."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from hopsml.service import metrics
from hopsml.service.rest.job_routes import TheJobs
from hopsml.serving.metrics import text

router = APIRouter()


@router.get("/metrics", response_class=PlainTextResponse)
def told(request: Request, jobs: TheJobs) -> PlainTextResponse:
    """Return the metrics of jobs, cluster and server in Prometheus' text format."""
    manager = jobs.manager
    capacity, free = manager.capacity()
    counts = {
        **metrics.of_jobs(jobs.store.counts(), jobs.queues, time.time()),
        **metrics.of_cluster(capacity, free, manager.leads, bool(manager.problem)),
        **jobs.meter.counts,
        **request.app.state.requests.counts,
    }
    return PlainTextResponse(text(counts, metrics.FAMILIES), headers={"cache-control": "no-store"})
