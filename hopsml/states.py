"""States of runs, workers and jobs: one list, one spelling, in every record and on every screen.

    run       WAITING ─▶ STARTING ─▶ RUNNING ─▶ CLOSING ─▶ FINISHED | FAILED | CANCELLED        LOST: its driver is gone
    worker               STARTING ─▶ RUNNING ─────────────▶ FINISHED | FAILED | STOPPED | LOST
    job       as a run, and from CLOSING back to WAITING (preempted, tried again), or to PAUSED until it is resumed

The members are texts: ``Lifecycle.FINISHED == "FINISHED"``, in JSON too.
"""

from __future__ import annotations

from enum import StrEnum

from hopsml.errors import RunCancelled


class Lifecycle(StrEnum):
    """The state of a run, a search, a worker or a job."""

    WAITING = "WAITING"  # for executors
    STARTING = "STARTING"  # workers import and begin
    RUNNING = "RUNNING"
    CLOSING = "CLOSING"  # nobody trains any more; the last files are being written
    PAUSED = "PAUSED"  # a job that somebody has paused: it holds nothing, and does not wait either
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"  # by the user, by an interrupt
    STOPPED = "STOPPED"  # a worker that was ended because its group was
    LOST = "LOST"  # it went without a word

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def is_final(self) -> bool:
        """Whether no other state follows."""
        return self in _FINAL


_FINAL = (Lifecycle.FINISHED, Lifecycle.FAILED, Lifecycle.CANCELLED, Lifecycle.STOPPED, Lifecycle.LOST)
ENDS = (Lifecycle.FINISHED, Lifecycle.FAILED, Lifecycle.CANCELLED, Lifecycle.LOST)  # in which a run stays


def end(error: BaseException | None) -> Lifecycle:
    """The final state of a run that raised ``error``; None: it finished."""
    if error is None:
        return Lifecycle.FINISHED
    return Lifecycle.CANCELLED if isinstance(error, (RunCancelled, KeyboardInterrupt)) else Lifecycle.FAILED
