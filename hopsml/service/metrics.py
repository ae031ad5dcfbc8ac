"""Prometheus metrics of a job service, whose label values are bounded whatever users submit or request."""

from __future__ import annotations

from collections.abc import Iterable

from hopsml.core.metrics import Counts
from hopsml.core.states import Lifecycle
from hopsml.service.scheduler.resources import Resources
from hopsml.service.store.rows import JobCount

TURN_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
OTHER = "other"  # label of a queue that is not configured any more
FAMILIES = {
    "hopsml_jobs": ("gauge", "Jobs by queue and state, those that are over too."),
    "hopsml_oldest_waiting_seconds": ("gauge", "How long the oldest job that waits in a queue has done so."),
    "hopsml_cluster_capacity": ("gauge", "GPUs, cores and bytes of memory of all nodes."),
    "hopsml_cluster_free": ("gauge", "What of it is promised to nobody."),
    "hopsml_leads": ("gauge", "1: this server runs the jobs; 0: it only answers."),
    "hopsml_engine_problem": ("gauge", "1: the cluster could not be asked the last time."),
    "hopsml_turn_seconds": ("histogram", "What a look at all jobs and at the cluster takes."),
    "hopsml_http_requests_total": ("counter", "Requests answered, by address, method and status."),
    "hopsml_http_request_seconds": (
        "histogram",
        "From a request to the end of its answer, streams of events left out.",
    ),
    "hopsml_event_streams": ("gauge", "Streams of events that are open."),
}


def of_jobs(found: Iterable[JobCount], queues: Iterable[str], now: float) -> Counts:
    """Return the number of jobs by queue and state, and the age of the oldest waiting job of each queue.

    Every configured queue has its series, also if the number is 0.

    Args:
        found: Numbers of stored jobs.
        queues: Names of the configured queues; others are counted as "other".
        now: The time, in seconds since 1970.
    """
    counts: Counts = {}
    names = [*queues, OTHER]
    for queue in names:
        counts[f'hopsml_oldest_waiting_seconds{{queue="{queue}"}}'] = 0.0
        for state in Lifecycle:
            counts[_jobs(queue, state)] = 0.0
    for one in found:
        queue = one.queue if one.queue in names else OTHER
        counts[_jobs(queue, one.state)] += one.count
        if one.state == Lifecycle.WAITING:
            oldest = f'hopsml_oldest_waiting_seconds{{queue="{queue}"}}'
            counts[oldest] = max(counts[oldest], now - one.since_s)
    return counts


def of_cluster(capacity: Resources, free: Resources, leads: bool, has_problem: bool) -> Counts:
    """Return gauges of the cluster's capacity and free resources, of leadership, and of engine problems."""
    counts = {"hopsml_leads": float(leads), "hopsml_engine_problem": float(has_problem)}
    for family, amount in (("capacity", capacity), ("free", free)):
        each = {"gpus": amount.gpus, "cores": amount.cores, "memory_bytes": amount.memory_mib << 20}
        counts |= {f'hopsml_cluster_{family}{{resource="{name}"}}': float(value) for name, value in each.items()}
    return counts


def _jobs(queue: str, state: Lifecycle) -> str:
    """Return the name and labels of the gauge of jobs in one queue and state."""
    return f'hopsml_jobs{{queue="{queue}",state="{state.value.lower()}"}}'
