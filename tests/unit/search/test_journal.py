"""Tests of the event log: a search continues after its driver was killed, without losses or duplicates."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

import numpy
import pytest

from hopsml.errors import ArgumentError
from hopsml.search.contract import End, Exploit, Suggestion, Verdict
from hopsml.search.dispatch import journal
from hopsml.search.dispatch.dispatch import NOTED_S, VERSION, Dispatch
from hopsml.search.dispatch.events import (
    AttemptBegan,
    AttemptEnded,
    ExtensionRequested,
    LaneJoined,
    Tick,
    TrialSettled,
    ValuesReported,
)
from hopsml.search.dispatch.ledger import TrialPhase
from hopsml.search.dispatch.spec import SearchSpec
from tests.helpers import clock
from tests.helpers.search.searching import Counting, Halving, Scripted, assigned
from tests.unit.search.journal_writer import TRIALS, work_of
from tests.unit.search.simulator import Simulator

pytestmark = pytest.mark.fast


class Session:
    """A search of two lanes that keeps its journal."""

    def __init__(self, dispatch: Dispatch, lines: list[str] | None = None) -> None:
        self.dispatch = dispatch
        self.lines = [*(lines or []), journal.version_line()]
        self.now = 100.0
        self.first = self.keep(dispatch.start_session(self.now))

    def do(self, *events):
        actions = []
        for event in events:
            self.now += 1.0
            actions += self.keep(self.dispatch.handle(event, self.now))
        return actions

    def keep(self, actions):
        self.lines += journal.fact_lines(self.dispatch.take_facts())
        return actions


def started_session(verdicts=None, searcher=None, **spec) -> Session:
    """Trials 0 and 1 run on lanes 0 and 1 and have reported step 3."""
    stopper = Scripted(verdicts or {})
    session = Session(Dispatch(SearchSpec(**{"num_trials": 4, **spec}), searcher or Counting(), stopper))
    session.do(LaneJoined(0), LaneJoined(1), AttemptBegan(0, 1), AttemptBegan(1, 1))
    session.do(ValuesReported(0, 1, 3, 0.5), ValuesReported(1, 1, 3, 0.6))
    return session


def continued_session(lines, verdicts=None, searcher=None, **spec) -> Session:
    spec = SearchSpec(**{"num_trials": 4, **spec})
    dispatch = journal.replay(lines, spec, searcher or Counting(), Scripted(verdicts or {}))
    return Session(dispatch, lines)


def test_started_trials_continue_after_replay_and_count_as_lost_slots():
    session = started_session()
    session.do(AttemptEnded(0, 1, "finished", 2.0, {"m": 2.0}))
    again = continued_session(session.lines)
    assert again.dispatch.best()["number"] == 0 and again.dispatch.ledger.trials[0].outputs == {"m": 2.0}
    first, second = assigned(again.do(LaneJoined(0), LaneJoined(1)))
    assert (first.number, first.attempt, first.resume_from, first.done_step) == (1, 2, 1, 3)
    assert again.dispatch.ledger.trials[1].lost == 1
    assert (second.number, second.attempt) == (2, 1), "it was sent, but had not begun"
    assert again.dispatch.ask_tell.searcher.told.keys() == {0}


def test_trial_with_a_stop_request_is_not_restarted_after_replay():
    session = started_session({(0, 3): Verdict.STOP, (1, 3): Verdict.PAUSE})
    again = continued_session(session.lines, {(0, 3): Verdict.STOP, (1, 3): Verdict.PAUSE})
    (settled,) = [action for action in again.first if isinstance(action, TrialSettled)]
    assert (settled.number, settled.end, settled.value) == (0, End.STOPPED, 0.5)
    assert again.dispatch.ledger.trials[1].phase is TrialPhase.PAUSED
    third = continued_session(again.lines, {(0, 3): Verdict.STOP, (1, 3): Verdict.PAUSE})
    assert not [action for action in third.first if isinstance(action, TrialSettled)], "told once in all sessions"


def test_report_after_the_end_request_is_replayed_without_a_verdict():
    session = started_session({(0, 3): Verdict.PAUSE})
    session.do(ValuesReported(0, 1, 26, 0.7), AttemptEnded(0, 1, "finished", 0.7))
    again = continued_session(session.lines, {(0, 3): Verdict.PAUSE})
    row = again.dispatch.ledger.rows()[0]
    assert (row["state"], row["step"], row["value"]) == ("completed", 26, 0.7)
    assert again.dispatch.ask_tell.stopper.steps[0] == 3


def test_decided_exploit_is_carried_out_after_replay():
    verdicts = {(1, 3): Exploit(0, {"x": 7})}
    again = continued_session(started_session(verdicts).lines, verdicts)
    actions = assigned(again.do(LaneJoined(0), LaneJoined(1)))
    assert [(a.number, a.config["x"], a.resume_from) for a in actions] == [(0, 0, 0), (1, 7, 0)]


def test_added_trials_and_spent_budget_are_replayed():
    session = started_session(budget_executor_s=1000.0)
    session.now += 100.0
    session.do(ExtensionRequested(trials=3), AttemptEnded(0, 1, "finished", 1.0))
    spent = session.dispatch.bounds.spent_s
    again = continued_session(session.lines, budget_executor_s=1000.0)
    assert again.dispatch.ask_tell.limit == 7
    assert 0 <= spent - again.dispatch.bounds.spent_s < NOTED_S < spent


def test_settle_request_of_the_stopper_is_repeated_at_replay():
    class Settling(Scripted):
        settled = 0

        def settle(self):
            self.settled += 1
            return super().settle()

    def sessions(settles):
        stopper = Settling({(0, 3): Verdict.PAUSE}, settles=settles)
        session = Session(Dispatch(SearchSpec(1), Counting(), stopper))
        session.do(LaneJoined(0), AttemptBegan(0, 1), ValuesReported(0, 1, 3, 0.5), AttemptEnded(0, 1, "paused"))
        again = Settling({(0, 3): Verdict.PAUSE}, settles=settles)
        journal.replay(session.lines, SearchSpec(1), Counting(), again)
        return stopper, again

    for settles, expected in ((False, 2), (True, 1)):
        stopper, again = sessions(settles)
        assert stopper.settled == again.settled == expected and stopper.pausing == again.pausing


def test_snapshot_replaces_all_earlier_events():
    simulator = Simulator(Dispatch(SearchSpec(60), Counting(), Halving()), work_of).join(3)
    lines = [journal.version_line()]
    simulator.keep = lines.extend
    simulator.run(until=6.0)
    spec = SearchSpec(60)
    short = [journal.snapshot_line(simulator.dispatch)]
    cut = len(lines)
    simulator.run(until=8.0)
    states = [
        journal.replay(kept, spec, Counting(), Halving()).state()
        for kept in (lines, [*lines[:cut], *short, *lines[cut:]])
    ]
    spent = [state.pop("spent_s") for state in states]
    assert all(0 < simulator.dispatch.bounds.spent_s - known < 15 for known in spent)
    assert states[0] == states[1] == json.loads(json.dumps(states[1]))
    assert states[0]["searcher"]["told"], "something had been told"


def test_snapshots_are_taken_at_growing_distances():
    taken, since, held = 0, 0, 0
    for facts in range(1, 100_001):
        since += 1
        if journal.is_snapshot_due(since, held):
            taken, held, since = taken + 1, facts, 0
    assert taken == 7


def test_event_log_preserves_the_types_of_values():
    class Shapes(Counting):
        def ask(self, number):
            super().ask(number)
            return Suggestion({"kernel": (3, 3), "units": 8, "rate": 0.1 + 0.2, "on": True, "act": None})

    session = started_session(searcher=Shapes())
    for lines in (session.lines, [journal.snapshot_line(session.dispatch)]):
        config = continued_session(lines, searcher=Shapes()).dispatch.ledger.trials[0].config
        assert config == {"kernel": (3, 3), "units": 8, "rate": 0.1 + 0.2, "on": True, "act": None}
        assert isinstance(config["kernel"], tuple)


def relu(x):
    return max(x, 0)


class Bias:
    def __repr__(self):
        return f"Bias at {id(self)}"


class Listed:
    """A parameter of a space, as far as the journal looks at it."""

    values = (relu, Bias, (3, 3))


def test_functions_and_classes_are_restored_by_name():
    class Functions(Counting):
        def __init__(self):
            super().__init__()
            self.space = SimpleNamespace(parameters={"act": Listed()})

        def ask(self, number):
            super().ask(number)
            return Suggestion({"act": relu, "kind": Bias, "kernel": (3, 3), "none": None})

    exploit = {(1, 3): Exploit(0, {"act": Bias, "kind": relu})}
    session = started_session(exploit, searcher=Functions())
    assert all("0x" not in line for line in session.lines)
    for lines in (session.lines, [journal.snapshot_line(session.dispatch)]):
        again = continued_session(lines, exploit, searcher=Functions())
        assert again.dispatch.ask_tell.differing == []
        first, second = assigned(again.do(LaneJoined(0), LaneJoined(1)))
        assert first.config == {"act": relu, "kind": Bias, "kernel": (3, 3), "none": None}
        assert second.config == {"act": Bias, "kind": relu}


def test_value_that_cannot_be_restored_is_represented_by_its_name():
    class Objects(Counting):
        def ask(self, number):
            super().ask(number)
            return Suggestion({"bias": Bias, "array": numpy.array([1, 2]), "size": numpy.int64(3)})

    session = started_session(searcher=Objects())
    again = continued_session([journal.snapshot_line(session.dispatch)], searcher=Objects())
    config = again.dispatch.ledger.trials[0].config
    assert config == {"bias": f"{__name__}.Bias", "array": [1, 2], "size": 3}
    assert journal.snapshot_line(again.dispatch) == journal.snapshot_line(
        continued_session([journal.snapshot_line(again.dispatch)]).dispatch
    )


def test_recorded_configuration_prevails_over_a_new_suggestion_at_replay():
    class Other(Counting):
        def ask(self, number):
            super().ask(number)
            return Suggestion({"x": -number})

    again = continued_session(started_session().lines, searcher=Other())
    assert again.dispatch.ask_tell.differing == [0, 1]
    assert again.dispatch.ledger.trials[1].config == {"x": 1, "size": 1}


def test_truncated_last_line_of_the_event_log_is_ignored():
    session = started_session()
    torn = [*session.lines, '["end",0,"comple']
    assert continued_session(torn).dispatch.ledger.counts() == continued_session(session.lines).dispatch.ledger.counts()


def test_damaged_event_log_line_and_newer_version_are_refused():
    lines = started_session().lines
    with pytest.raises(ArgumentError, match="line 2 of the journal"):
        continued_session([lines[0], "{not JSON", *lines[1:]])
    for newer in (json.dumps({"hopsml search": VERSION + 1}), json.dumps({"hopsml search": VERSION + 1, "state": {}})):
        with pytest.raises(ArgumentError, match=f"version {VERSION + 1}; this hopsml reads versions up to {VERSION}"):
            continued_session([newer, *lines[1:]])
    with pytest.raises(ArgumentError, match="names no version"):
        continued_session(['{"someone": "else"}'])
    state = {**started_session().dispatch.state(), "version": 9}
    with pytest.raises(ArgumentError, match="version 9"):
        Dispatch.restore(state, SearchSpec(4), Counting())


MALFORMED = [
    '["end",0,1]',
    '["report",99,3,0.5]',
    '["ask"]',
    '["begin",{},1]',
    "[]",
    '["spent"]',
    '["end",0,"none",1.0,{},"",1]',
]
STATE = {"hopsml search": VERSION, "state": {"version": VERSION}}


@pytest.mark.parametrize("line", [*MALFORMED, json.dumps(STATE)])
def test_entry_that_is_no_event_is_refused(line):
    with pytest.raises(ArgumentError, match="lines of the journal of the search are not as hopsml writes them"):
        continued_session([*started_session().lines, line])
    with pytest.raises(ArgumentError, match="lines of the journal of the search are not as hopsml writes them"):
        journal.separate_entries(['["name",1,'], "name")


def test_empty_event_log_starts_a_new_search():
    session = continued_session([])
    assert assigned(session.do(LaneJoined(0)))[0].number == 0
    assert session.do(Tick()) == []


def test_killed_driver_loses_no_reported_result(tmp_path):
    """A driver process is killed with SIGKILL while it writes; a second one continues and completes the search."""
    path = tmp_path / "journal.jsonl"
    driver = subprocess.Popen([sys.executable, "-m", "tests.unit.search.journal_writer", str(path)])
    try:
        until = clock.awake() + 20
        while not path.exists() or path.stat().st_size < 50_000:
            assert driver.poll() is None and clock.awake() < until
            time.sleep(0.002)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    lines = path.read_text().split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    spec = SearchSpec(TRIALS)
    dispatch = journal.replay(lines, spec, Counting(), Halving())
    trials, reported = len(dispatch.ledger), dict(dispatch.ask_tell.searcher.told)
    assert reported, "something had been told"
    dispatch.ask_tell.extend(trials - TRIALS)  # complete the search with the existing trials
    simulator = Simulator(dispatch, work_of).join(4)
    more: list[str] = []
    simulator.keep = more.extend
    simulator.run()
    ended = Counter(json.loads(line)[1] for line in [*lines[:-1], *more] if line.startswith('["end"'))
    assert ended == dict.fromkeys(range(trials), 1)
    assert reported.items() <= dispatch.ask_tell.searcher.told.items()
