"""Events of a search (inputs of ``Dispatch.handle``) and the actions that follow from them.

A place is where a trial runs: a trial slot (lane) whose process runs one trial after another, or, for trials that are
distributed trainings, a group of ``size`` slots that is started for one trial and released at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hopsml.search.contract import Config, End

# ---------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True)
class LaneJoined:
    """Event: a lane is ready to run trials.

    Slots of searches over distributed trials are counted by ``SlotsChanged`` instead.
    """

    lane: int
    host: str = ""


@dataclass(frozen=True)
class LaneLost:
    """Event: a lane has failed with its executor or agent; its trials are queued again."""

    lane: int
    reason: str


@dataclass(frozen=True)
class SlotsChanged:
    """Event: the number of slots of the search, those in use included, is now ``count``.

    Lanes beyond it receive no further trial, and their owner releases them.
    """

    count: int


@dataclass(frozen=True)
class AttemptBegan:
    """Event: a lane or group has called the user's function for this trial."""

    number: int
    attempt: int


@dataclass(frozen=True)
class ValuesReported:
    """Event: a running trial has reported metric values.

    ``value`` is that of the searched metric, None where it is missing or not a number; ``checkpoint`` is True if the
    trial can continue from a checkpoint.
    """

    number: int
    attempt: int
    step: int
    value: float | None
    checkpoint: bool = True


@dataclass(frozen=True)
class OtherValuesReported:
    """Event: a running trial has reported values, by these names, and not the searched metric."""

    number: int
    attempt: int
    step: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class AttemptEnded:
    """Event: an attempt of a trial has ended.

    ``how`` is finished | stopped | paused | failed | died | withdrawn, as in ``messages.TrialEnded``; for groups also
    "lost": a slot failed, which does not count as a failure of the trial. With ``lacks_metric`` the function returned
    without a value of the metric, so that no other attempt follows; ``names`` has the names of what it returned.
    """

    number: int
    attempt: int
    how: str
    value: float | None = None  # value of the searched metric
    outputs: Any = None  # JSON values
    error: str = ""
    seconds: float = 0.0
    lacks_metric: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExtensionRequested:
    """Event: the user requests more trials, or another deadline.

    ``trials`` is the number of additional ones; ``deadline_s`` counts in seconds from the begin of the session.
    """

    trials: int = 0
    deadline_s: float | None = None


@dataclass(frozen=True)
class SearchCancelRequested:
    """Event: the user cancels the search; results so far are retained."""

    reason: str


@dataclass(frozen=True)
class Tick:
    """Event: time has passed; deadline, budget and silence timeout are enforced on this event alone."""


Event = (
    LaneJoined
    | LaneLost
    | SlotsChanged
    | AttemptBegan
    | ValuesReported
    | OtherValuesReported
    | AttemptEnded
    | ExtensionRequested
    | SearchCancelRequested
    | Tick
)

# ---------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True)
class AssignToLane:
    """Action: send the trial to a lane.

    On a busy lane it waits as the next one; at most one trial waits there.
    """

    lane: int
    number: int
    attempt: int
    config: Config
    isolated: bool = False
    resume_from: int | None = None  # trial from whose newest checkpoint it starts
    done_step: int = -1


@dataclass(frozen=True)
class FormGroup:
    """Action: start a distributed training of ``size`` workers for the trial.

    The group is elastic between ``minimum`` and ``most`` workers.
    """

    number: int
    attempt: int
    config: Config
    size: int
    minimum: int
    resume_from: int | None = None
    done_step: int = -1
    most: int = 0  # largest size that a Resize may set; at least ``size``


@dataclass(frozen=True)
class RequestTrialEnd:
    """Action: request that a trial ends.

    ``how`` is stop | pause | withdraw; with ``patience_s`` > 0 its process is killed after that many seconds.
    """

    number: int
    attempt: int
    how: str
    patience_s: float = 0.0


@dataclass(frozen=True)
class ResizeGroup:
    """Action: change the number of workers of an elastic group while it trains."""

    number: int
    size: int


@dataclass(frozen=True)
class WantLanes:
    """Action: report the number of slots that the search can use now.

    The owner of the slots requests more or releases some.
    """

    count: int


@dataclass(frozen=True)
class TrialSettled:
    """Action: record that a trial has ended for good, with the outcome that the searcher received."""

    number: int
    end: End
    value: float | None
    outputs: Any
    error: str
    seconds: float
    step: int | None


@dataclass(frozen=True)
class ConcludeSearch:
    """Action: end the search; ``reason`` is complete | deadline | budget | cancelled | failed."""

    reason: str
    text: str = ""


Action = AssignToLane | FormGroup | RequestTrialEnd | ResizeGroup | WantLanes | TrialSettled | ConcludeSearch
