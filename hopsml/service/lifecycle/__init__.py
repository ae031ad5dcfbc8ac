"""What becomes of a job, pure: what is recorded of it and what is seen of its applications give what is recorded next.

    WAITING ─▶ STARTING ─▶ RUNNING ─▶ CLOSING ─▶ FINISHED | FAILED | CANCELLED
       ▲                                 │
       └── preempted, tried again ───────┴─▶ PAUSED ─▶ WAITING

Nothing here submits or kills: ``step`` says what is to be done once its record is safe in the store.
"""

from hopsml.service.lifecycle.record import Ending, JobRecord, TaskLaunch, TaskRule
from hopsml.service.lifecycle.sight import SeenApplication, Sight, SlotsAnswer
from hopsml.service.lifecycle.step import NextStep, end, place, resize, resume, step

__all__ = [
    "Ending",
    "JobRecord",
    "NextStep",
    "SeenApplication",
    "Sight",
    "SlotsAnswer",
    "TaskLaunch",
    "TaskRule",
    "end",
    "place",
    "resize",
    "resume",
    "step",
]
