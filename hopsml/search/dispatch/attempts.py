"""Events of a trial's attempts (begun, reported, ended, lost), and the decision whether another attempt follows."""

from __future__ import annotations

from hopsml.search.contract import End, Exploit, Verdict
from hopsml.search.dispatch.ask_tell import Supply
from hopsml.search.dispatch.events import Action, AttemptBegan, AttemptEnded, RequestTrialEnd, ValuesReported
from hopsml.search.dispatch.groups import Groups
from hopsml.search.dispatch.lanes import LaneTable
from hopsml.search.dispatch.ledger import TrialPhase, TrialState
from hopsml.search.dispatch.spec import Closing, SearchSpec
from hopsml.search.metric import finite_or_none, why_no_value

LOST_AT_MOST = 10  # number of slot failures that a trial may have


class Attempts:
    """Handler of the events of trials; while ``closing`` is set, each trial that begins is requested to end."""

    def __init__(self, spec: SearchSpec, supply: Supply, places: LaneTable | Groups) -> None:
        self.spec = spec
        self.supply = supply
        self.ask_tell = supply.ask_tell
        self.ledger = supply.ask_tell.ledger
        self.places = places
        self.closing: Closing | None = None

    @property
    def cancelled(self) -> bool:
        """True if the search was cancelled.

        Running trials then remain unfinished, for a session that continues the search.
        """
        return self.closing is not None and self.closing.reason == "cancelled"

    def _trial_of(self, event: AttemptBegan | ValuesReported | AttemptEnded) -> TrialState | None:
        trial = self.ledger.placed.get(event.number)
        return trial if trial is not None and trial.attempt == event.attempt else None

    def began(self, event: AttemptBegan, now: float) -> list[Action]:
        """Handle the event that the user's function was called for a trial."""
        trial = self._trial_of(event)
        return self._has_begun(trial, now) if trial is not None and trial.phase is TrialPhase.PLACED else []

    def _has_begun(self, trial: TrialState, now: float) -> list[Action]:
        self.places.began(trial, now)
        self.ask_tell.record_begin(trial, trial.attempt)
        is_ending = trial.asked in ("stop", "cancel")
        return self.ask_to_end(trial, now) if self.closing is not None and not is_ending else []

    def _must_have_begun(self, trial: TrialState, now: float) -> list[Action]:
        """Treat a trial that reports as begun, even if the message ``TrialBegan`` was lost.

        The time of its begin is unknown then.
        """
        trial.gap = False
        return self._has_begun(trial, now) if trial.phase is TrialPhase.PLACED else []

    def reported(self, event: ValuesReported, now: float) -> list[Action]:
        """Pass a report of a new, higher step to the stopper.

        Once the trial has been requested to end, reports are only recorded: it may return before it gets the request.
        """
        trial = self._trial_of(event)
        if trial is None:
            return []
        actions = self._must_have_begun(trial, now)
        value = finite_or_none(event.value)
        if value is None or event.step <= max(trial.step, trial.late_step):
            return actions
        if trial.asked:
            self.ask_tell.record_late(trial, event.step, value)
            return actions
        verdict = self.ask_tell.report(trial, event.step, value, event.checkpoint)
        if verdict is Verdict.STOP:
            actions.append(RequestTrialEnd(trial.number, trial.attempt, "stop", self.spec.patience_s))
        elif verdict is Verdict.PAUSE or isinstance(verdict, Exploit):
            actions.append(
                RequestTrialEnd(trial.number, trial.attempt, "pause")
            )  # never killed, which would lose steps
        elif isinstance(self.places, Groups):
            self.places.promote(trial)
        return actions

    def ended(self, event: AttemptEnded, now: float) -> list[Action]:
        """Handle the end of an attempt, whose slots are free: end the trial, pause it, or queue another attempt."""
        trial = self._trial_of(event)
        if trial is None:
            return []
        by_itself = event.how in ("finished", "stopped", "paused")  # so the trial must have begun
        actions = self._must_have_begun(trial, now) if by_itself else []
        ran = trial.phase is TrialPhase.RUNNING
        seconds = event.seconds if event.seconds > 0 else max(0.0, now - trial.since) if ran else 0.0
        self.places.free_place(trial, seconds if by_itself and ran else None)
        if event.how == "withdrawn":
            self.return_to_queue(trial)
        elif event.how == "finished":
            actions.append(self._finished(trial, event, seconds))
        elif event.how in ("failed", "died"):
            actions += self._failed(trial, event, seconds)
        elif event.how == "lost":
            actions += self.requeue(trial, event.error or "a slot of its group is gone", seconds)
        elif trial.asked == "pause":
            self.ask_tell.rest(trial, seconds)
            self._line_up(trial)
        elif trial.asked == "cancel":
            self.record_search_cancelled(trial, seconds)
        else:
            actions.append(self._stopped(trial, event, seconds))
        return [action for action in actions if not isinstance(action, RequestTrialEnd)]  # the trial has ended already

    def _line_up(self, trial: TrialState) -> None:
        if trial.phase is TrialPhase.READY:
            self.supply.ready.add_trial(trial)

    def _stopped(self, trial: TrialState, event: AttemptEnded, seconds: float) -> Action:
        value = trial.value if trial.value is not None else finite_or_none(event.value)
        return self.ask_tell.end(trial, End.STOPPED, value, event.outputs, event.error, seconds)

    def _finished(self, trial: TrialState, event: AttemptEnded, seconds: float) -> Action:
        value, error, fault = finite_or_none(event.value), event.error, False
        if value is None and event.outputs is None and event.value is None:
            value = trial.value  # the function returned nothing, so its last report counts
        if value is None:
            error, fault = why_no_value(self.spec.metric, event.outputs, event.value)
        return self.ask_tell.end(trial, End.COMPLETED, value, event.outputs, error, seconds, fault)

    def _failed(self, trial: TrialState, event: AttemptEnded, seconds: float) -> list[Action]:
        error = event.error or f"the trial {event.how}"
        if self.cancelled and trial.asked != "stop":
            self.record_search_cancelled(trial, seconds)
            return []
        if trial.asked == "stop":
            return [self.ask_tell.end(trial, End.STOPPED, trial.value, error=error, seconds=seconds)]
        if trial.tries >= self.spec.retries or event.lacks_metric:
            return [self.ask_tell.end(trial, End.FAILED, None, error=error, seconds=seconds, fault=True)]
        trial.avoid = trial.lane
        self.ask_tell.record_attempt_end(trial, "failed", error, seconds)
        self._line_up(trial)
        return []

    def return_to_queue(self, trial: TrialState) -> None:
        """Return a trial that was placed, but has not begun, to the head of the queue."""
        trial.asked = ""
        self.ledger.move(trial, TrialPhase.READY)
        self.supply.ready.add_trial(trial, first=True)

    def requeue(self, trial: TrialState, reason: str, seconds: float) -> list[Action]:
        """Queue a trial again whose slot failed.

        It fails only after more than ``LOST_AT_MOST`` such losses.
        """
        if trial.asked == "stop":
            return [self.ask_tell.end(trial, End.STOPPED, trial.value, error=reason, seconds=seconds)]
        if trial.asked == "cancel":
            self.record_search_cancelled(trial, seconds)
            return []
        trial.avoid = None
        self.ask_tell.record_attempt_end(trial, "lost", reason, seconds)
        if trial.lost > LOST_AT_MOST:
            text = f"lost its slot {trial.lost} times, the last time: {reason}"
            return [self.ask_tell.end(trial, End.FAILED, None, error=text, fault=True)]
        if trial.phase is TrialPhase.READY:
            self.supply.ready.add_trial(trial, first=True)
        return []

    def record_search_cancelled(self, trial: TrialState, seconds: float) -> None:
        """Record that the search was cancelled during a running trial, which runs again if the search continues."""
        self.ask_tell.record_attempt_end(trial, "lost", "the search was cancelled", seconds)

    def ask_to_end(self, trial: TrialState, now: float) -> list[Action]:
        """Request that a trial ends because the search does.

        A trial on a lane that has not begun is withdrawn; any other one gets the remaining time to stop.
        """
        assert self.closing is not None
        if trial.phase is TrialPhase.PLACED and isinstance(self.places, LaneTable):
            return [] if trial.asked == "withdraw" else [self.places.withdraw(trial)]
        if self.cancelled:
            trial.asked = trial.asked or "cancel"  # a verdict of the stopper takes precedence
        else:
            trial.asked, trial.exploit, trial.wanted = "stop", None, False
        return [RequestTrialEnd(trial.number, trial.attempt, "stop", self.closing.patience(now))]
