"""Lifecycle states of runs, workers and jobs, with one spelling in all records and interfaces.

    run       WAITING ─▶ STARTING ─▶ RUNNING ─▶ CLOSING ─▶ FINISHED | FAILED | CANCELLED        LOST: its driver is gone
    worker               STARTING ─▶ RUNNING ─────────────▶ FINISHED | FAILED | STOPPED | LOST
    task      as a worker; CANCELLED if a user cancelled its job
    job       as a run, and from CLOSING back to WAITING (preempted, tried again), or to PAUSED until it is resumed

The members are strings: ``Lifecycle.FINISHED == "FINISHED"``, in JSON too.
"""

from __future__ import annotations

from hopsml.core.newer_python import StrEnum
from hopsml.errors import RunCancelled


class Lifecycle(StrEnum):
    """State of a run, a search, a worker or a job."""

    WAITING = "WAITING"  # for executors
    STARTING = "STARTING"  # workers import modules and begin
    RUNNING = "RUNNING"
    CLOSING = "CLOSING"  # the training is over; the last files are being written
    PAUSED = "PAUSED"  # a job that a user has paused: it has no slots and does not wait for any
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"  # by the user or an interrupt
    STOPPED = "STOPPED"  # a worker that was ended along with its group
    LOST = "LOST"  # ended without a report

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def is_final(self) -> bool:
        """True if no other state follows."""
        return self in _FINAL


_FINAL = (Lifecycle.FINISHED, Lifecycle.FAILED, Lifecycle.CANCELLED, Lifecycle.STOPPED, Lifecycle.LOST)
ENDS = (Lifecycle.FINISHED, Lifecycle.FAILED, Lifecycle.CANCELLED, Lifecycle.LOST)  # final states of runs


def final_state(error: BaseException | None) -> Lifecycle:
    """Return the final state of a run that raised ``error``; None: it finished."""
    if error is None:
        return Lifecycle.FINISHED
    return Lifecycle.CANCELLED if isinstance(error, (RunCancelled, KeyboardInterrupt)) else Lifecycle.FAILED
