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
    "hopsml_jobs": ("gauge", "Jobs by queue and state, including ended jobs."),
    "hopsml_oldest_waiting_seconds": ("gauge", "Waiting time of the oldest waiting job of a queue."),
    "hopsml_cluster_capacity": ("gauge", "GPUs, cores and bytes of memory of all nodes."),
    "hopsml_cluster_free": ("gauge", "Free GPUs, cores and bytes of memory."),
    "hopsml_leads": ("gauge", "1 if this server manages the jobs, else 0."),
    "hopsml_engine_problem": ("gauge", "1 if the last poll of the cluster failed, else 0."),
    "hopsml_turn_seconds": ("histogram", "Duration of a pass over all jobs and the cluster."),
    "hopsml_http_requests_total": ("counter", "Requests answered, by address, method and status."),
    "hopsml_http_request_seconds": (
        "histogram",
        "Duration from a request to the end of its answer, without event streams.",
    ),
    "hopsml_event_streams": ("gauge", "Open event streams."),
}


def job_counts(found: Iterable[JobCount], queues: Iterable[str], now: float) -> Counts:
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


def cluster_gauges(capacity: Resources, free: Resources, leads: bool, has_problem: bool) -> Counts:
    """Return gauges of the cluster's capacity and free resources, of leadership, and of engine problems."""
    counts = {"hopsml_leads": float(leads), "hopsml_engine_problem": float(has_problem)}
    for family, amount in (("capacity", capacity), ("free", free)):
        each = {"gpus": amount.gpus, "cores": amount.cores, "memory_bytes": amount.memory_mib << 20}
        counts |= {f'hopsml_cluster_{family}{{resource="{name}"}}': float(value) for name, value in each.items()}
    return counts


def _jobs(queue: str, state: Lifecycle) -> str:
    """Return the name and labels of the gauge of jobs in one queue and state."""
    return f'hopsml_jobs{{queue="{queue}",state="{state.value.lower()}"}}'
