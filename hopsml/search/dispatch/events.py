"""Events that can happen to a search, and actions that follow from them.

A place is what carries a trial out: a lane (one slot whose process runs one trial after another), or, for trials that
are distributed trainings, the group of ``size`` slots that is formed for one trial and given back at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hopsml.search.contract import Config, End

# ---------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class LaneJoined:
    """A lane is ready to run trials. Slots of searches over distributed trials are counted by ``SlotsChanged``."""

    lane: int
    host: str = ""


@dataclass(frozen=True)
class LaneLost:
    """A lane is gone with its executor or agent; its trials are queued again."""

    lane: int
    reason: str


@dataclass(frozen=True)
class SlotsChanged:
    """With how many slots the search has to do has changed; those in use are included.

    Lanes beyond them get no further trial, and are given back by who has them.
    """

    count: int


@dataclass(frozen=True)
class Began:
    """A lane or group has called the user's function for this trial."""

    number: int
    attempt: int


@dataclass(frozen=True)
class Reported:
    """Metric values of a running trial; ``value`` is the searched metric, None where it is missing or not a number."""

    number: int
    attempt: int
    step: int
    value: float | None
    checkpoint: bool = True


@dataclass(frozen=True)
class Ended:
    """An attempt is over. ``how``: finished | stopped | paused | failed | died | withdrawn, as in ``messages.TrialEnded``.

    Of groups also ``lost``: a slot went away, which is not a failure of the trial.
    """

    number: int
    attempt: int
    how: str
    value: float | None = None  # of the searched metric
    outputs: Any = None  # JSON values
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Extend:
    """The user wants ``trials`` more, or another deadline, in seconds from the begin of the session."""

    trials: int = 0
    deadline_s: float | None = None


@dataclass(frozen=True)
class CancelAsked:
    """The user cancels the search; results so far are kept."""

    reason: str


@dataclass(frozen=True)
class Tick:
    """Time has passed: deadline, budget and patience are enforced on this event alone."""


Event = LaneJoined | LaneLost | SlotsChanged | Began | Reported | Ended | Extend | CancelAsked | Tick

# ---------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True)
class Assign:
    """Send the trial to a lane. On one that is busy it waits as the next, and at most one waits."""

    lane: int
    number: int
    attempt: int
    config: Config
    isolated: bool = False
    resume_from: int | None = None  # the trial whose newest checkpoint it starts from
    done_step: int = -1


@dataclass(frozen=True)
class Form:
    """Start a distributed training of ``size`` workers for the trial; elastic down to ``minimum``, and up to ``most``."""

    number: int
    attempt: int
    config: Config
    size: int
    minimum: int
    resume_from: int | None = None
    done_step: int = -1
    most: int = 0  # to which a Resize may bring it; at least ``size``


@dataclass(frozen=True)
class EndTrial:
    """Ask a trial to end. ``how``: stop | pause | withdraw; ``patience_s`` > 0: its process is killed after so long."""

    number: int
    attempt: int
    how: str
    patience_s: float = 0.0


@dataclass(frozen=True)
class Resize:
    """Change the number of workers of an elastic group while it trains."""

    number: int
    size: int


@dataclass(frozen=True)
class WantLanes:
    """How many slots the search can use now, for the owner to request more or to give some back."""

    count: int


@dataclass(frozen=True)
class Settled:
    """A trial is over for good: to be recorded, with what the searcher was told."""

    number: int
    end: End
    value: float | None
    outputs: Any
    error: str
    seconds: float
    step: int | None


@dataclass(frozen=True)
class Conclude:
    """The search is over. ``reason``: complete | deadline | budget | cancelled | failed."""

    reason: str
    text: str = ""


Action = Assign | Form | EndTrial | Resize | WantLanes | Settled | Conclude
