"""State machine of a job, as pure functions: the current record and an engine snapshot determine the next record.

    WAITING ─▶ STARTING ─▶ RUNNING ─▶ CLOSING ─▶ FINISHED | FAILED | CANCELLED
       ▲                                 │
       └── preempted, tried again ───────┴─▶ PAUSED ─▶ WAITING

This package does not submit or kill: ``step`` returns the actions to be carried out after its record has been stored.
"""

from hopsml.service.lifecycle.record import (
    Ending,
    EngineSnapshot,
    JobRecord,
    SeenApplication,
    SlotsAnswer,
    TaskLaunch,
    TaskRule,
)
from hopsml.service.lifecycle.step import (
    UNREADABLE_S,
    NextStep,
    begin_ending,
    begin_try,
    release_by_s,
    resize,
    resume,
    step,
)

__all__ = [
    "UNREADABLE_S",
    "Ending",
    "EngineSnapshot",
    "JobRecord",
    "NextStep",
    "SeenApplication",
    "SlotsAnswer",
    "TaskLaunch",
    "TaskRule",
    "begin_ending",
    "begin_try",
    "release_by_s",
    "resize",
    "resume",
    "step",
]
