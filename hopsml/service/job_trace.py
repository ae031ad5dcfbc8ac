"""What the service adds to the trace of a job's launch: that it was accepted, and for how long it waited in its queue."""

from __future__ import annotations

import time

from hopsml import tracing
from hopsml.service.lifecycle import TaskLaunch
from hopsml.service.store import JobRow


def context_of(row: JobRow) -> str:
    """Of all that is done for a job, also by a service that was started anew."""
    return tracing.named(f"{row.id} {row.submitted_s!r}")


def accepted(row: JobRow, began_s: float) -> None:
    """The job is stored: the trace begins. One that was there before has begun its own."""
    if tracing.is_on() and row.submitted_s == began_s:
        tracing.record(
            "submit", context_of(row), "", began_s, time.time(), job=row.id, owner=row.owner, queue=row.queue
        )


def launched(row: JobRow, launch: TaskLaunch) -> dict[str, str]:
    """A task of the job is about to be submitted: what its driver needs to go on with the trace; nothing where it is off."""
    if not tracing.is_on():
        return {}
    context, now = context_of(row), time.time()
    if row.tries == 1 and launch.number == 1:
        tracing.record("queued", tracing.child(context), context, row.submitted_s, now, job=row.id, task=launch.task)
    return tracing.variables(context, with_headers=False)
