"""Limits of a search: its deadline, and the budget of slot-seconds that it may use."""

from __future__ import annotations

from dataclasses import dataclass

from hopsml.search.dispatch.spec import SearchSpec

_SHARE = 0.1  # greatest share of a limit that is reserved for trials to stop by themselves


@dataclass(frozen=True)
class Closing:
    """Reason and time limit of the end of a search.

    ``hard_at``: monotonic time in seconds at which the search ends even if a trial has not responded.
    """

    reason: str
    text: str
    hard_at: float

    def patience(self, now: float) -> float:
        """Return the seconds that a trial gets to stop.

        Fewer than remain, since the message of its end must arrive in time.
        """
        return max(0.05, 0.8 * (self.hard_at - now))


class Bounds:
    """Account of the slot-seconds that a search uses, with the check of its deadline and budget."""

    def __init__(self, spec: SearchSpec) -> None:
        self._spec = spec
        self._began = 0.0
        self._counted = 0.0  # ``spent_s`` is charged up to this time
        self._held = 0
        self.spent_s = 0.0  # slot-seconds used in all sessions
        self.deadline: float | None = None

    def begin(self, now: float) -> None:
        """Start the clock of a session; ``deadline_s`` counts from ``now``."""
        self._began = self._counted = now
        self._held = 0
        self.move_deadline(self._spec.deadline_s)

    def move_deadline(self, seconds: float | None) -> None:
        """Set the deadline to ``seconds`` after the begin of the session; None removes it."""
        self.deadline = None if seconds is None else self._began + seconds

    def holds(self, slots: int, now: float) -> None:
        """Set the number of slots held from ``now`` on, and charge those held until then."""
        self.spent_s += self._held * (now - self._counted)
        self._held, self._counted = slots, now

    def _reserve_of_deadline(self) -> float:
        assert self.deadline is not None
        return min(self._spec.patience_s, _SHARE * (self.deadline - self._began))

    def _reserve_of_budget(self) -> float:
        assert self._spec.budget_executor_s is not None
        return min(self._spec.patience_s, _SHARE * self._spec.budget_executor_s / max(1, self._held))

    def stop_at(self) -> tuple[float, str]:
        """Return the time at which trials must be requested to end, and the limit that requires it.

        Returns:
            Monotonic time in seconds, infinity if there is no limit; "deadline", "budget" or "".
        """
        at, reason = float("inf"), ""
        if self.deadline is not None:
            at, reason = self.deadline - self._reserve_of_deadline(), "deadline"
        budget = self._spec.budget_executor_s
        if budget is not None and (self._held or self.spent_s >= budget):
            left_s = max(0.0, budget - self.spent_s) / max(1, self._held)
            spent_at = self._counted + left_s - self._reserve_of_budget()
            if spent_at < at:
                at, reason = spent_at, "budget"
        return at, reason

    def closing(self, now: float) -> Closing | None:
        """Return how the search must end if its deadline or budget has been reached by ``now``, else None."""
        at, reason = self.stop_at()
        if now < at:
            return None
        if reason == "deadline":
            assert self.deadline is not None
            text = f"the deadline of {self.deadline - self._began:g} s"
            return Closing(reason, text, max(now, self.deadline))
        text = f"the budget of {self._spec.budget_executor_s:g} slot-seconds"
        return Closing(reason, text, now + self._reserve_of_budget())
