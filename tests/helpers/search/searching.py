"""Small searchers and stoppers for tests of the dispatch, and a dispatch that checks itself after every event."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from hopsml.search.contract import Config, Exploit, Outcome, Searcher, Stopper, Suggestion, Verdict, Wait
from hopsml.search.dispatch.dispatch import Dispatch
from hopsml.search.dispatch.events import (
    Action,
    AssignToLane,
    ConcludeSearch,
    Event,
    FormGroup,
    RequestTrialEnd,
    ResizeGroup,
    TrialSettled,
)
from hopsml.search.dispatch.groups import Groups
from hopsml.search.dispatch.lanes import LaneTable
from hopsml.search.dispatch.ledger import TrialPhase


class Counting(Searcher):
    """Searcher of x = 0, 1, 2 ...; ``batch``: it waits for the results of each batch; ``total``: its length."""

    def __init__(self, total: int | None = None, batch: int | None = None, sizes: list[int] | None = None) -> None:
        self.total = total
        self.batch = batch
        self.sizes = sizes
        self.asked: list[int] = []
        self.told: dict[int, Outcome] = {}
        self.reports: list[tuple[int, int, float]] = []

    def ask(self, number: int) -> Suggestion | Wait:
        assert number == len(self.asked)
        if self.total is not None and number >= self.total:
            return Wait.DONE
        if self.batch and number % self.batch == 0 and len(self.told) < number:
            return Wait.LATER
        self.asked.append(number)
        return Suggestion({"x": number, "size": self.sizes[number % len(self.sizes)] if self.sizes else 1})

    def tell(self, number: int, outcome: Outcome) -> None:
        assert number in self.asked and number not in self.told, f"trial {number} was told before"
        self.told[number] = outcome

    def report(self, number: int, step: int, score: float) -> None:
        assert number in self.asked and number not in self.told
        self.reports.append((number, step, score))

    def state(self) -> dict[str, Any]:
        told = {str(number): [outcome.end.value, outcome.score, outcome.step] for number, outcome in self.told.items()}
        return {"asked": list(self.asked), "told": told, "reports": [list(report) for report in self.reports]}

    def restore(self, state: Mapping[str, Any]) -> None:
        from hopsml.search.contract import End

        self.asked = list(state["asked"])
        self.told = {int(key): Outcome(End(end), score, step) for key, (end, score, step) in state["told"].items()}
        self.reports = [(number, step, score) for number, step, score in state["reports"]]


class Recorded(Stopper):
    """Base class of stoppers that tracks running trials and checks each call."""

    def __init__(self) -> None:
        self.begun: dict[int, Config] = {}
        self.steps: dict[int, int] = {}
        self.ended: dict[int, Outcome] = {}

    def begin(self, number: int, config: Config) -> None:
        assert number not in self.begun, f"trial {number} began twice"
        self.begun[number] = dict(config)

    def report(self, number: int, step: int, score: float) -> Verdict | Exploit:
        assert number in self.begun and number not in self.ended
        assert step > self.steps.get(number, -1), "steps of a trial must rise"
        self.steps[number] = step
        return self.judge(number, step, score)

    def judge(self, number: int, step: int, score: float) -> Verdict | Exploit:
        return Verdict.CONTINUE

    def end(self, number: int, outcome: Outcome) -> None:
        assert number in self.begun and number not in self.ended
        self.ended[number] = outcome

    def state(self) -> dict[str, Any]:
        ended = {str(key): [outcome.end.value, outcome.score, outcome.step] for key, outcome in self.ended.items()}
        begun = {str(key): config for key, config in self.begun.items()}
        return {"begun": begun, "steps": {str(key): step for key, step in self.steps.items()}, "ended": ended}

    def restore(self, state: Mapping[str, Any]) -> None:
        from hopsml.search.contract import End

        self.begun = {int(key): dict(config) for key, config in state["begun"].items()}
        self.steps = {int(key): step for key, step in state["steps"].items()}
        self.ended = {int(key): Outcome(End(end), score, step) for key, (end, score, step) in state["ended"].items()}


class Scripted(Recorded):
    """Stopper with a table (number, step) -> verdict; resumes the listed trials, and settles the paused ones."""

    def __init__(self, verdicts: Mapping[tuple[int, int], Verdict | Exploit], settles: bool = False) -> None:
        super().__init__()
        self.verdicts = verdicts
        self.to_resume: list[int] = []
        self.pausing: list[int] = []
        self.settles = settles
        self.open = True

    def judge(self, number: int, step: int, score: float) -> Verdict | Exploit:
        verdict = self.verdicts.get((number, step), Verdict.CONTINUE)
        if verdict is Verdict.PAUSE:
            self.pausing.append(number)
        return verdict

    def end(self, number: int, outcome: Outcome) -> None:
        super().end(number, outcome)
        for numbers in (self.pausing, self.to_resume):
            if number in numbers:
                numbers.remove(number)

    def resume(self) -> int | None:
        if not self.to_resume:
            return None
        number = self.to_resume.pop(0)
        self.pausing.remove(number)
        return number

    def settle(self) -> int | None:
        return self.pausing.pop(0) if self.settles and self.pausing else None

    def wants(self) -> bool:
        return self.open


class Halving(Recorded):
    """Asynchronous halving that pauses at steps 1, 2, 4, and resumes the better half of each."""

    rungs = (1, 2, 4)

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[int, dict[int, float]] = {rung: {} for rung in self.rungs}
        self.waiting: dict[int, int] = {}  # number -> rung at which it has paused
        self.promoted: set[tuple[int, int]] = set()

    def judge(self, number: int, step: int, score: float) -> Verdict | Exploit:
        for rung in reversed(self.rungs):
            if step >= rung and number not in self.at[rung]:
                self.at[rung][number] = score
                self.waiting[number] = rung
                return Verdict.PAUSE
        return Verdict.CONTINUE

    def end(self, number: int, outcome: Outcome) -> None:
        super().end(number, outcome)
        self.waiting.pop(number, None)

    def resume(self) -> int | None:
        for rung in reversed(self.rungs):
            best = sorted(self.at[rung], key=lambda n: (-self.at[rung][n], n))[: len(self.at[rung]) // 2]
            for number in best:
                if self.waiting.get(number) == rung and (number, rung) not in self.promoted:
                    self.promoted.add((number, rung))
                    del self.waiting[number]
                    return number
        return None

    def state(self) -> dict[str, Any]:
        at = {str(rung): {str(n): score for n, score in scores.items()} for rung, scores in self.at.items()}
        waiting = {str(n): rung for n, rung in self.waiting.items()}
        promoted = [list(pair) for pair in sorted(self.promoted)]
        return {**super().state(), "at": at, "waiting": waiting, "promoted": promoted}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.at = {int(rung): {int(n): score for n, score in scores.items()} for rung, scores in state["at"].items()}
        self.waiting = {int(n): rung for n, rung in state["waiting"].items()}
        self.promoted = {(n, rung) for n, rung in state["promoted"]}


class Exploiting(Recorded):
    """Stopper that copies trial 0 at every fifth report, and stops the trial at every seventh."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.count = 0

    def judge(self, number: int, step: int, score: float) -> Verdict | Exploit:
        self.count += 1
        if self.count % 5 == 0 and number > 0:
            return Exploit(0, {"x": number + 0.5, "size": 1})
        return Verdict.STOP if self.count % 7 == 0 else Verdict.CONTINUE


class Checked(Dispatch):
    """A dispatch that checks its invariants after every event."""

    settled: dict[int, TrialSettled]
    actions: list[Action]

    def handle(self, event: Event, now: float) -> list[Action]:
        opening = [] if self._open else self.start_session(now)
        actions = super().handle(event, now)
        self._check(actions)
        return opening + actions

    def start_session(self, now: float) -> list[Action]:
        self.settled = getattr(self, "settled", {})
        self.actions = getattr(self, "actions", [])
        actions = super().start_session(now)
        self._check(actions)
        return actions

    def _check(self, actions: list[Action]) -> None:
        self.actions += actions
        for action in actions:
            if isinstance(action, TrialSettled):
                assert action.number not in self.settled, f"trial {action.number} settled twice"
                self.settled[action.number] = action
            if isinstance(action, AssignToLane | FormGroup | ResizeGroup):
                assert self.conclusion is None and self.closing is None, "nothing begins once the search ends"
        assert sum(isinstance(action, ConcludeSearch) for action in actions) == (
            actions != [] and self.conclusion is not None
        )
        if isinstance(self.places, LaneTable):
            self._check_lanes(self.places)
        else:
            self._check_groups(self.places)
        phases = [trial.phase for trial in self.ledger.trials]
        assert len(self.ledger.placed) == phases.count(TrialPhase.PLACED) + phases.count(TrialPhase.RUNNING)
        assert len(self.ledger.paused) == phases.count(TrialPhase.PAUSED)
        assert self.ledger.ended_count == phases.count(TrialPhase.OVER)
        if self.conclusion is not None:
            assert not self.ledger.placed
            assert not self.ledger.paused or self.conclusion.reason == "cancelled", "kept for whoever goes on"

    def _check_lanes(self, places: LaneTable) -> None:
        seats = [t.number for lane in places.lanes.values() for t in (lane.current, lane.waiting) if t is not None]
        assert len(seats) == len(set(seats)), "a trial is in two places"
        if self.conclusion is not None:
            return
        assert sorted(seats) == sorted(self.ledger.placed), "placed trials have a place, and nobody else has"
        idle = [lane for lane in places.lanes.values() if lane.current is None]
        waiting = [lane.waiting for lane in places.lanes.values() if lane.waiting is not None]
        assert all(lane.waiting is None for lane in idle)
        if self.closing is not None or not idle or not places.can_use_more:
            return
        only = idle[0].number if len(idle) == 1 and len(places.lanes) > 1 else None
        ready = [trial for trial in self.ledger.trials if trial.phase is TrialPhase.READY]
        assert all(trial.avoid == only is not None for trial in ready), "an idle lane, and a trial that could go there"
        calling = sum(trial.asked == "withdraw" for trial in waiting)
        free = [trial for trial in waiting if trial.asked != "withdraw" and (only is None or trial.avoid != only)]
        assert calling >= len(idle) or not free, "a trial waits behind a busy lane while another is idle"
        ask_tell = self.ask_tell
        assert ask_tell.done or ask_tell.later or ask_tell.trials_left == 0 or not ask_tell.stopper.wants(), (
            "idle, and more to try"
        )
        assert ask_tell.stopper.resume() is None, "idle, and a paused trial may go on"

    def _check_groups(self, places: Groups) -> None:
        assert places.used == sum(group.size for group in places.groups.values())
        if self.conclusion is None:
            assert sorted(places.groups) == sorted(self.ledger.placed)


def ends(actions: list[Action]) -> list[RequestTrialEnd]:
    """Return the requests to end among actions."""
    return [action for action in actions if isinstance(action, RequestTrialEnd)]


def assigned(actions: list[Action]) -> list[AssignToLane]:
    """Return the assignments among actions."""
    return [action for action in actions if isinstance(action, AssignToLane)]
