"""State machine of a search: events in, actions out; no thread, socket, clock or disk access.

    searcher ─ask─▶ READY ──place──▶ PLACED ──Began──▶ RUNNING ──Ended──▶ OVER ─tell─▶ searcher, stopper
                      ▲                 │ withdrawn       │ failed, died, lost: again, elsewhere
                      ├─────────────────┴─────────────────┤
                      └──resume── PAUSED ◀──paused────────┘

``ask_tell`` makes all calls to searcher and stopper, ``supply`` chooses the next trial, ``places`` assigns it to a lane
(lanes.py) or a group (groups.py, distributed trainings), and ``bounds`` decides when deadline or budget are reached.
Every sequence of events ends in ``ConcludeSearch`` or waits for an event that can come: a message of a trial, a slot, or the
``Tick`` at ``wake_at()``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.contract import End, Searcher, Stopper
from hopsml.search.dispatch import events
from hopsml.search.dispatch.ask_tell import AskTell, Fact, Supply
from hopsml.search.dispatch.attempts import Attempts
from hopsml.search.dispatch.events import Action, Event
from hopsml.search.dispatch.groups import Groups
from hopsml.search.dispatch.lanes import LaneTable
from hopsml.search.dispatch.ledger import TrialPhase, row
from hopsml.search.dispatch.spec import Closing, LimitAccount, SearchSpec
from hopsml.search.metric import MetricCheck, name_of

VERSION = 1  # format version of states and event logs
NOTED_S = 10.0  # slot-seconds between two records of the cost, which is the most that a killed driver may lose
NEWS_S = 2.0  # after the silence timeout, for messages about ended trials to arrive


def check_version(found: Any, what: str) -> None:
    """Raise ArgumentError unless ``found`` is a version of state or event log that this hopsml can read.

    Args:
        found: version as it was read.
        what: name of the file or state, for the message.
    """
    if not isinstance(found, int):
        raise ArgumentError(f"{what} names no version (found {found!r}): it was not written by hopsml, or is damaged")
    if found > VERSION:
        raise ArgumentError(
            f"{what} has version {found}; this hopsml reads versions up to {VERSION}: "
            "continue it with the hopsml that wrote it"
        )


class Dispatch:
    """State of one search, changed by ``handle`` alone.

    ``now`` is monotonic time in seconds, here and in all methods.
    """

    def __init__(self, spec: SearchSpec, searcher: Searcher, stopper: Stopper | None = None) -> None:
        self.spec = spec
        self.ask_tell = AskTell(spec, searcher, stopper)
        self.ledger = self.ask_tell.ledger
        self.bounds = LimitAccount(spec)
        self.supply = Supply(self.ask_tell)
        self.places: LaneTable | Groups = (LaneTable if spec.size_of is None else Groups)(spec, self.supply)
        self.attempts = Attempts(spec, self.supply, self.places)
        self.metric_check = MetricCheck(spec.metric, is_needed=stopper is not None)
        self.conclusion: events.ConcludeSearch | None = None
        self._open = False
        self._noted_s = 0.0
        self._wanted = -1

    @property
    def closing(self) -> Closing | None:
        """Reason and time limit of the end of the search; None while it is not ending."""
        return self.attempts.closing

    @property
    def is_complete(self) -> bool:
        """True if every trial has ended and no further one will be requested."""
        return self.ask_tell.trials_left == 0 and self.ledger.ended_count == len(self.ledger)

    # ---------------------------------------------------------------------------------------- public interface

    def start_session(self, now: float) -> list[Action]:
        """Start a session, and return its first actions.

        Trials that ran at the end of an earlier session run again.
        """
        self._open = True
        self.bounds.start_clock(now)
        actions: list[Action] = []
        for trial in list(self.ledger.placed.values()):
            actions.extend(self.attempts.requeue(trial, "the driver of the search was gone", 0.0))
        self.supply.ready.drain()
        waiting = [trial for trial in self.ledger.trials if trial.phase is TrialPhase.READY]
        for trial in sorted(waiting, key=lambda trial: trial.begun == 0):  # trials that have run before come first
            self.supply.ready.add_trial(trial)
        return actions + self._follow(now, fresh=True)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Apply an event and return the actions that follow.

        Events of an earlier attempt of a trial are ignored.
        """
        if self.conclusion is not None:
            return []
        actions = [] if self._open else self.start_session(now)
        self.bounds.holds(self.places.slots_held, now)
        match event:
            case events.ValuesReported():
                self.metric_check.found()
                actions += self.attempts.reported(event, now)
            case events.OtherValuesReported():
                actions += self._check_metric(event, now)
            case events.AttemptBegan():
                actions += self.attempts.began(event, now)
            case events.AttemptEnded():
                actions += self.attempts.ended(event, now)
                actions += self._check_result(event, now)
            case events.LaneJoined() | events.LaneLost() | events.SlotsChanged():
                actions += self._slots(event, now)
            case events.ExtensionRequested():
                self._extend(event, now)
            case events.SearchCancelRequested():
                actions += self._close(Closing("cancelled", event.reason, now + self.spec.patience_s + NEWS_S), now)
            case events.Tick():
                actions += self._tick(now)
        return actions + self._follow(
            now, fresh=not isinstance(event, events.ValuesReported | events.OtherValuesReported | events.AttemptBegan)
        )

    def wake_at(self) -> float | None:
        """Return the time of the next ``Tick`` that is needed even without other events.

        Returns:
            Monotonic time in seconds, None if no ``Tick`` is needed.
        """
        if self.conclusion is not None:
            return None
        at = self.closing.hard_at if self.closing else min(self.bounds.stop_at()[0], self.places.wake_at())
        return at if at < float("inf") else None

    def take_facts(self) -> list[Fact]:
        """Return the facts to be appended to the event log.

        They must be on disk before the actions of the last ``handle`` are carried out.
        """
        facts = self.ask_tell.take_facts()
        spent_s = self.bounds.spent_s
        if facts and spent_s - self._noted_s >= NOTED_S:
            self._noted_s = spent_s
            facts.append(("spent", spent_s))
        return facts

    def state(self) -> dict[str, Any]:
        """Return all that outlives a session: trials, searcher, stopper, cost.

        All are JSON values, except values in configurations; ``journal.snapshot_line`` makes one line of it in any case.
        """
        return {"version": VERSION, "spent_s": self.bounds.spent_s, **self.ask_tell.state()}

    @classmethod
    def restore(
        cls, state: Mapping[str, Any], spec: SearchSpec, searcher: Searcher, stopper: Stopper | None = None
    ) -> Dispatch:
        """Return a dispatch that continues from ``state()``; ``start_session`` starts a session.

        Args:
            state: the state of an earlier session.
            spec: specification of the search, as at first.
            searcher: new searcher, constructed as at first.
            stopper: new stopper, constructed as at first.

        Raises:
            ArgumentError: the state has a newer version.
        """
        check_version(state.get("version"), "the state of the search")
        dispatch = cls(spec, searcher, stopper)
        dispatch.bounds.spent_s = state["spent_s"]
        dispatch.ask_tell.restore(state)
        return dispatch

    def repeat(self, fact: Sequence[Any]) -> None:
        """Replay one fact of an earlier session's event log; call it for all facts before ``start_session``."""
        if fact[0] == "spent":
            self.bounds.spent_s = self._noted_s = fact[1]
        else:
            self.ask_tell.repeat(fact)

    def best(self) -> dict[str, Any] | None:
        """Return the best ended trial's row of the result table; None while no ended trial has a value."""
        return None if self.ledger.best is None else row(self.ledger.best)

    # ---------------------------------------------------------------------------------------- slots

    def _slots(self, event: events.LaneJoined | events.LaneLost | events.SlotsChanged, now: float) -> list[Action]:
        actions: list[Action] = []
        if isinstance(self.places, Groups):
            if isinstance(event, events.SlotsChanged):
                self.places.slots(event.count, now)
        elif isinstance(event, events.SlotsChanged):
            self.places.limit_busy_lanes(event.count)
        elif isinstance(event, events.LaneJoined):
            self.places.join(event.lane, event.host)
        elif isinstance(event, events.LaneLost):
            current, waiting = self.places.lose(event.lane)
            if waiting is not None:
                self.attempts.return_to_queue(waiting)
            if current is not None:
                ran_s = max(0.0, now - current.since) if current.phase is TrialPhase.RUNNING else 0.0
                actions = self.attempts.requeue(current, event.reason, ran_s)
        self.bounds.holds(self.places.slots_held, now)
        return actions

    # ---------------------------------------------------------------------------------------- the end of the search

    def _extend(self, event: events.ExtensionRequested, now: float) -> None:
        if event.trials > 0:
            self.ask_tell.extend(event.trials)
        if event.deadline_s is not None:
            self.bounds.move_deadline(event.deadline_s)
            if self.closing is not None and self.closing.reason == "deadline" and self.bounds.closing(now) is None:
                self.attempts.closing = None

    def _check_metric(self, event: events.OtherValuesReported, now: float) -> list[Action]:
        """End the search if a report shows that no trial will report the searched metric."""
        problem = self.metric_check.problem(event.number, event.step, event.names)
        if not problem or self.closing is not None:
            return []
        text = f"{problem} Correct the metric of the search, or report it"
        return self._close(Closing("failed", text, now + self.spec.patience_s + NEWS_S), now)

    def _check_result(self, event: events.AttemptEnded, now: float) -> list[Action]:
        """End the search if a returned value shows that the searched metric is misspelt."""
        returned = event.names or (tuple(map(str, event.outputs)) if isinstance(event.outputs, dict) else ())
        if event.value is not None or name_of(self.spec.metric, returned) in returned:
            self.metric_check.found()
            return []
        if self.closing is not None or not (problem := self.metric_check.problem_of_result(returned)):
            return []
        text = f"{problem} Correct the metric of the search, or return it"
        return self._close(Closing("failed", text, now + self.spec.patience_s + NEWS_S), now)

    def _tick(self, now: float) -> list[Action]:
        if self.closing is None:
            closing = self.bounds.closing(now)
            return [] if closing is None else self._close(closing, now)
        if now < self.closing.hard_at:
            return []
        actions: list[Action] = []
        for trial in list(self.ledger.placed.values()):
            self.places.free_place(trial, None)
            if trial.phase is TrialPhase.RUNNING and self.attempts.cancelled and trial.asked != "stop":
                self.attempts.record_search_cancelled(trial, now - trial.since)
            elif trial.phase is TrialPhase.RUNNING:
                error = "it was asked to end, and had not ended when the search did"
                actions.append(
                    self.ask_tell.end(trial, End.STOPPED, trial.value, error=error, seconds=now - trial.since)
                )
            else:
                self.attempts.return_to_queue(trial)
        return actions

    def _close(self, closing: Closing, now: float) -> list[Action]:
        """Begin no further trial and request running ones to end; a search that was cancelled remains so."""
        if self.closing is not None:
            if self.closing.reason in ("cancelled", "failed"):
                return []
            closing = replace(closing, hard_at=min(closing.hard_at, self.closing.hard_at))
        self.attempts.closing = closing
        actions: list[Action] = []
        for trial in list(self.ledger.placed.values()):
            actions += self.attempts.ask_to_end(trial, now)
        return actions

    def _follow(self, now: float, fresh: bool) -> list[Action]:
        """Fill free places, and conclude the search if it is over.

        ``fresh``: trials or places were added or removed.
        """
        actions = self._give_up_if_hopeless(now)
        if self.closing is None:
            actions += self.places.fill(now)
            actions += self._give_up_if_hopeless(now)  # again: a faulty ``workers_per_trial`` ends trials while filling
        if self.closing is None and not self.ledger.placed:
            actions += self._settle(now)
        if self.closing is not None and not self.ledger.placed:
            actions += self._wind_up()
        if (fresh or actions) and self.conclusion is None and self.closing is None:
            wanted = self.places.slots_wanted()
            if wanted != self._wanted:
                self._wanted = wanted
                actions.append(events.WantLanes(wanted))
        return actions

    def _give_up_if_hopeless(self, now: float) -> list[Action]:
        alike = self.ask_tell.alike
        if self.closing is not None or not alike.is_hopeless(self.places.width):
            return []
        text = (
            f"the first {alike.count} trials failed with the same error, and none succeeded: {alike.error}. "
            "Correct the function, or the metric's name, and search again"
        )
        return self._close(Closing("failed", text, now + self.spec.patience_s + NEWS_S), now)

    def _settle(self, now: float) -> list[Action]:
        """Resume trials as the stopper decides, end paused ones, or conclude, while nothing runs.

        Each iteration starts a trial, ends one or closes the search, so the loop terminates, and no search waits for an
        event that cannot come.
        """
        actions: list[Action] = []
        while (
            not self.ledger.placed
            and not self._waiting()
            and (self.places.needs_trials or self.ask_tell.trials_left == 0)
        ):
            trial = self.ask_tell.resume(settle=True)
            if trial is not None and trial.phase is TrialPhase.READY:
                self.supply.ready.add_trial(trial)
            elif self.ledger.paused:
                actions += self._give_up_paused()
            else:
                self.attempts.closing = Closing("complete", self._stuck(), now)
                break
            actions += self.places.fill(now)
        return actions

    def _waiting(self) -> bool:
        return len(self.supply.ready) > 0 or (isinstance(self.places, Groups) and self.places.queued_count > 0)

    def _stuck(self) -> str:
        if self.ask_tell.later:
            return "the searcher waits for results although no trial is running"
        return ""

    def _give_up_paused(self) -> list[Action]:
        paused = sorted(self.ledger.paused.values(), key=lambda trial: trial.number)
        return [self.ask_tell.end(trial, End.STOPPED, trial.value) for trial in paused]

    def _wind_up(self) -> list[Action]:
        """End all trials that have begun; those that have not remain for a session that continues the search.

        After a cancellation all unfinished trials remain for it.
        """
        assert self.closing is not None
        waiting = self.supply.ready.drain()
        if isinstance(self.places, Groups):
            waiting += self.places.empty_queue()
        actions = [] if self.attempts.cancelled else self._give_up_paused()
        for trial in waiting:
            if trial.begun and not self.attempts.cancelled:
                end = End.FAILED if trial.tries and trial.value is None else End.STOPPED
                actions.append(self.ask_tell.end(trial, end, trial.value, error=trial.error))
        reason, text = self.closing.reason, self.closing.text
        if reason == "complete" and self.ledger.best is None:
            reason, text = "failed", text or self._nothing_found()
        self.conclusion = events.ConcludeSearch(reason, "; ".join(part for part in (text, self._summary()) if part))
        return [*actions, self.conclusion]

    def _nothing_found(self) -> str:
        errors = Counter(trial.error for trial in self.ledger.trials if trial.error)
        if not errors:
            return "no trial gave a value of the metric"
        return f"no trial gave a value of the metric; most often: {errors.most_common(1)[0][0]}"

    def _summary(self) -> str:
        counts = self.ledger.counts()
        return ", ".join(
            f"{counts[name]} {name}" for name in ("completed", "stopped", "failed", "waiting") if counts[name]
        )
