"""Spans that the service adds to the trace of a job's launch: its submission, and its wait in the queue."""

from __future__ import annotations

import time

from hopsml.core import tracing
from hopsml.service.lifecycle import TaskLaunch
from hopsml.service.store import JobRow


def context_of(row: JobRow) -> str:
    """Return the trace context of a job, which stays the same when the service is restarted.

    It is derived from the job's id and submission time.
    """
    return tracing.named(f"{row.id} {row.submitted_s!r}")


def accepted(row: JobRow, began_s: float) -> None:
    """Record the submission span of a job that was stored by this request, if tracing is on.

    Nothing is recorded for a job that was stored before ``began_s``, as its trace exists already.

    Args:
        row: The stored job.
        began_s: Start of the request that submits the job, in seconds since 1970.
    """
    if tracing.is_on() and row.submitted_s == began_s:
        tracing.record(
            "submit", context_of(row), "", began_s, time.time(), job=row.id, owner=row.owner, queue=row.queue
        )


def launched(row: JobRow, launch: TaskLaunch) -> dict[str, str]:
    """Return the environment variables with which a task's driver continues the trace of its job.

    For the first launch of the first try, record the span of the wait in the queue. The result is empty if tracing is
    off.

    Args:
        row: The job that the task belongs to.
        launch: The launch that is about to be submitted.
    """
    if not tracing.is_on():
        return {}
    context, now = context_of(row), time.time()
    if row.tries == 1 and launch.number == 1:
        tracing.record("queued", tracing.child(context), context, row.submitted_s, now, job=row.id, task=launch.task)
    return tracing.variables(context, with_headers=False)
