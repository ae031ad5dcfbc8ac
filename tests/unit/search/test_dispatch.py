"""Tests of single rules of the dispatch: lanes, reports, failures, limits, end."""

from __future__ import annotations

import math

import pytest

from hopsml.errors import ArgumentError
from hopsml.search.contract import End, Exploit, Verdict
from hopsml.search.dispatch.dispatch import Dispatch
from hopsml.search.dispatch.events import (
    Action,
    AssignToLane,
    AttemptBegan,
    AttemptEnded,
    ConcludeSearch,
    ExtensionRequested,
    LaneJoined,
    LaneLost,
    OtherValuesReported,
    RequestTrialEnd,
    SearchCancelRequested,
    SlotsChanged,
    Tick,
    TrialSettled,
    ValuesReported,
    WantLanes,
)
from hopsml.search.dispatch.spec import SearchSpec
from tests.helpers.search.searching import Checked, Counting, Scripted, assigned, ends

pytestmark = pytest.mark.fast


class Bench:
    """A search driven by the test: short names for events, a manual clock, the last actions are stored."""

    def __init__(self, lanes: int = 2, stopper=None, searcher=None, **spec) -> None:
        self.searcher = searcher or Counting()
        self.dispatch = Checked(SearchSpec(**{"num_trials": 4, **spec}), self.searcher, stopper)
        self.now = 0.0
        self.last: list[Action] = self.dispatch.start_session(0.0)
        self.first = [action for lane in range(lanes) for action in self.do(LaneJoined(lane))]

    def do(self, event, after: float = 0.0) -> list[Action]:
        self.now += after
        self.last = self.dispatch.handle(event, self.now)
        return self.last

    def trial(self, number: int):
        return self.dispatch.ledger.trials[number]

    def begin(self, number: int, after: float = 0.001) -> list[Action]:
        return self.do(AttemptBegan(number, self.trial(number).attempt), after)

    def report(self, number: int, step: int, value, after: float = 0.01) -> list[Action]:
        return self.do(ValuesReported(number, self.trial(number).attempt, step, value), after)

    def end(self, number: int, how: str = "finished", value=1.0, after: float = 1.0, **more) -> list[Action]:
        return self.do(AttemptEnded(number, self.trial(number).attempt, how, value, **more), after)

    @property
    def conclusion(self) -> ConcludeSearch:
        assert self.dispatch.conclusion is not None
        return self.dispatch.conclusion


def test_lanes_are_assigned_trials_as_they_join_and_the_search_ends_with_the_last():
    bench = Bench()
    assert [(a.lane, a.number, a.attempt) for a in assigned(bench.first)] == [(0, 0, 1), (1, 1, 1)]
    for number in (0, 1):
        bench.begin(number)
    assert assigned(bench.end(1, value=3.0))[0].lane == 1
    bench.begin(2)
    bench.end(0, value=1.0)
    bench.begin(3)
    bench.end(2, value=2.0)
    actions = bench.end(3, value=0.0)
    assert actions[0] == TrialSettled(3, End.COMPLETED, 0.0, None, "", pytest.approx(2.0), None)
    assert bench.conclusion.reason == "complete" and "4 completed" in bench.conclusion.text
    assert bench.dispatch.best()["number"] == 1
    assert {number: outcome.score for number, outcome in bench.searcher.told.items()} == {0: 1, 1: 3, 2: 2, 3: 0}
    assert bench.do(Tick(), 1e9) == []


def test_number_of_requested_lanes_falls_with_the_remaining_work():
    bench = Bench(lanes=0, num_trials=3)
    assert bench.last == [WantLanes(3)]
    bench.do(LaneJoined(0))
    bench.begin(0)
    assert WantLanes(2) in bench.end(0)
    assert Bench(lanes=0, num_trials=100, max_lanes=5).last == [WantLanes(5)]


def test_minimised_metric_is_negated_for_the_searcher():
    bench = Bench(direction="min", num_trials=2)
    bench.begin(0), bench.begin(1)
    bench.end(0, value=-5.0)
    bench.end(1, value=-7.0)
    assert [bench.searcher.told[number].score for number in (0, 1)] == [5.0, 7.0]
    assert (bench.dispatch.best()["number"], bench.dispatch.best()["value"]) == (1, -7.0)


def test_earliest_trial_of_equal_values_is_the_best():
    bench = Bench(num_trials=2)
    bench.begin(0), bench.begin(1)
    bench.end(1, value=2.0), bench.end(0, value=2.0)
    assert bench.dispatch.best()["number"] == 0
    bench = Bench(num_trials=2)
    bench.end(0, value=2.0), bench.end(1, value=2.0)
    assert bench.dispatch.best()["number"] == 0


# ---------------------------------------------------------------------------------------- sending ahead


def test_short_trials_are_prefetched_and_long_ones_are_not():
    bench = Bench(lanes=1, num_trials=100)
    bench.begin(0)
    (next_one,) = assigned(bench.end(0, after=10.0))
    assert next_one.number == 1, "with long trials nothing waits"
    bench.begin(1)
    for number in range(1, 60):
        bench.end(number, after=0.05)
        bench.begin(number + 1)
    lane = bench.dispatch.places.lanes[0]
    assert lane.waiting is not None
    for number in range(60, 70):
        bench.end(number, after=20.0)
        if number < 69:
            bench.begin(number + 1)
    assert bench.dispatch.places.lanes[0].waiting is None


def test_slow_searcher_extends_prefetching_to_longer_trials():
    bench = Bench(lanes=1, num_trials=100)
    for number in range(20):
        bench.begin(number, after=0.5)  # so long it took from the lane's last end: the searcher thinks
        bench.end(number, after=10.0)
    assert bench.dispatch.places.lanes[0].waiting is not None


def test_first_start_of_a_lane_is_excluded_from_the_measured_gap():
    bench = Bench(lanes=1, num_trials=100)
    bench.begin(0, after=20.0)  # everything is imported
    bench.end(0, after=10.0), bench.begin(1, after=0.001), bench.end(1, after=10.0)
    assert bench.dispatch.places.lanes[0].waiting is None
    bench.begin(2)
    assert bench.dispatch.places.lanes[0].waiting is None


def bench_with_queued_trials() -> Bench:
    """Trials 0 and 2 run on lanes 0 and 1; 1 waits behind 0, 3 behind 2; there are no more."""
    bench = Bench(lanes=2, num_trials=6, prefetch=True)
    bench.begin(0), bench.begin(2)
    bench.dispatch.ask_tell.extend(-2)
    assert [bench.dispatch.places.lanes[lane].waiting.number for lane in (0, 1)] == [1, 3]
    return bench


def test_trial_queued_behind_a_busy_lane_is_withdrawn_for_an_idle_lane():
    bench = bench_with_queued_trials()
    assert ends(bench.end(2)) == [], "trial 3 goes on there"
    bench.begin(3)
    assert ends(bench.end(3)) == [RequestTrialEnd(1, 1, "withdraw")]
    (moved,) = assigned(bench.end(1, "withdrawn", None))
    assert (moved.lane, moved.number, moved.attempt) == (1, 1, 2)


def test_as_many_queued_trials_are_withdrawn_as_lanes_are_idle():
    bench = bench_with_queued_trials()
    assert [a.number for a in ends(bench.do(LaneJoined(2)))] == [1]
    assert bench.do(LaneLost(2, "gone")) == [], "another one will come"
    assert ends(bench.do(LaneJoined(3))) == [], "it is on its way already"
    assert [a.number for a in ends(bench.do(LaneJoined(4)))] == [3]
    assert ends(bench.do(LaneJoined(5))) == []


def test_queued_trial_that_started_before_its_withdrawal_is_not_moved():
    bench = bench_with_queued_trials()
    bench.end(2), bench.begin(3), bench.end(3)
    bench.end(0)
    assert bench.begin(1) == []
    bench.end(1)
    assert bench.conclusion.reason == "complete" and bench.trial(1).attempt == 1


def test_queued_trial_on_a_lost_lane_does_not_count_as_lost():
    bench = bench_with_queued_trials()
    bench.do(LaneLost(0, "executor killed"))
    assert (bench.trial(0).lost, bench.trial(1).lost) == (1, 0)
    assert bench.dispatch.ledger.counts()["waiting"] == 3, "these two, and the one that waits on the other lane"


def test_prefetching_stops_when_fewer_trials_than_lanes_remain():
    bench = Bench(lanes=2, num_trials=5, prefetch=True)
    assert bench.dispatch.places.lanes[1].waiting is None and bench.dispatch.ask_tell.trials_left == 2


def test_lanes_beyond_the_slot_count_are_drained():
    bench = bench_with_queued_trials()
    assert sorted(a.number for a in ends(bench.do(SlotsChanged(1)))) == [1, 3]
    assert assigned(bench.end(1, "withdrawn", None)) == [] == assigned(bench.end(3, "withdrawn", None))
    assert assigned(bench.end(0)) == [], "trial 2 still runs on the other one"
    assert bench.do(LaneLost(0, "released")) == []
    assert [(a.lane, a.number) for a in assigned(bench.end(2))] == [(1, 3)]
    bench.do(LaneJoined(5))
    assert [a.lane for a in assigned(bench.do(SlotsChanged(2)))] == [5]


# ---------------------------------------------------------------------------------------- stoppers


def test_stopped_trial_is_settled_with_its_last_counted_report():
    bench = Bench(stopper=Scripted({(0, 2): Verdict.STOP}))
    bench.begin(0)
    assert ends(bench.report(0, 1, 0.5)) == []
    assert ends(bench.report(0, 2, 0.7)) == [RequestTrialEnd(0, 1, "stop", 30.0)]
    assert ends(bench.report(0, 3, 0.9)) == [], "what it says on its way out does not count"
    settled = bench.end(0, "stopped", None)[0]
    assert (settled.end, settled.value, settled.step) == (End.STOPPED, 0.7, 2)
    assert bench.searcher.reports == [(0, 1, 0.5), (0, 2, 0.7)]


def test_trial_that_died_after_a_stop_request_counts_as_stopped():
    bench = Bench(stopper=Scripted({(0, 2): Verdict.STOP}))
    bench.begin(0), bench.report(0, 2, 0.7)
    settled = bench.end(0, "died", None, error="killed: it did not end")[0]
    assert (settled.end, settled.value, settled.error) == (End.STOPPED, 0.7, "killed: it did not end")


def test_trial_that_finished_before_its_stop_counts_as_completed():
    bench = Bench(stopper=Scripted({(0, 2): Verdict.STOP}))
    bench.begin(0), bench.report(0, 2, 0.7)
    assert bench.end(0, value=0.8)[0].end is End.COMPLETED


@pytest.mark.parametrize("verdict", [Verdict.STOP, Verdict.PAUSE])
def test_ledger_has_the_last_step_of_a_trial_that_returned_before_its_stop(verdict):
    bench = Bench(stopper=Scripted({(0, 2): verdict}), num_trials=2)
    bench.begin(0), bench.report(0, 2, 0.5), bench.report(0, 3, 0.6), bench.report(0, 26, 0.7)
    settled = bench.end(0, value=0.7)[0]
    assert (settled.end, settled.value, settled.step) == (End.COMPLETED, 0.7, 26)
    assert bench.dispatch.ledger.rows()[0]["step"] == 26
    assert bench.dispatch.ask_tell.stopper.ended[0].step == 26
    assert "1 of 1 completed trials returned before" in bench.dispatch.ledger.remarks()[0]


def test_report_of_a_pausing_trial_is_repeated_after_its_resume():
    stopper = Scripted({(0, 1): Verdict.PAUSE})
    bench = Bench(lanes=1, stopper=stopper, num_trials=2)
    bench.begin(0), bench.report(0, 1, 0.5), bench.report(0, 2, 0.6), bench.end(0, "paused", None)
    stopper.to_resume.append(0)
    bench.begin(1)
    (resumed,) = assigned(bench.end(1))
    assert resumed.done_step == 1
    bench.begin(0), bench.report(0, 2, 0.6)
    assert stopper.steps[0] == 2 and bench.dispatch.ledger.rows()[0]["step"] == 2


def test_search_with_only_stopped_trials_remarks_the_step_of_its_best():
    bench = Bench(lanes=1, stopper=Scripted({(0, 1): Verdict.STOP}), num_trials=1)
    bench.begin(0), bench.report(0, 1, 0.5), bench.end(0, "stopped", None)
    assert "no trial has completed: the best value is that of trial 0 at step 1" in bench.dispatch.ledger.remarks()[0]
    bench = Bench(lanes=1, num_trials=1)
    bench.begin(0), bench.report(0, 1, 0.5), bench.end(0, value=0.5)
    assert bench.dispatch.ledger.remarks() == []


def test_search_without_completed_trials_reports_the_error_of_a_failed_one():
    bench = Bench(lanes=1, stopper=Scripted({(0, 1): Verdict.STOP}), num_trials=2, retries=0)
    bench.begin(0), bench.report(0, 1, 0.5), bench.end(0, "stopped", None)
    bench.begin(1), bench.end(1, "failed", None, error="KeyError: 'x'")
    assert "correct the error of trial 1, which failed (KeyError: 'x'), or give" in bench.dispatch.ledger.remarks()[0]


def test_paused_trial_resumes_before_new_ones_on_the_lane_with_its_checkpoint():
    stopper = Scripted({(0, 1): Verdict.PAUSE})
    bench = Bench(stopper=stopper, num_trials=10)
    bench.begin(0), bench.begin(1)
    assert ends(bench.report(0, 1, 0.5)) == [RequestTrialEnd(0, 1, "pause")]
    (fresh,) = assigned(bench.end(0, "paused", None))
    assert fresh.number == 2 and bench.dispatch.ledger.counts()["paused"] == 1
    bench.begin(2)
    stopper.to_resume.append(0)
    (resumed,) = assigned(bench.end(2))
    assert (resumed.number, resumed.lane, resumed.attempt) == (0, 0, 2)
    assert (resumed.resume_from, resumed.done_step) == (0, 1)
    bench.begin(0)
    bench.report(0, 1, 0.4), bench.report(0, 2, 0.6)
    assert bench.searcher.reports == [(0, 1, 0.5), (0, 2, 0.6)], "steps that were told are not told again"


def test_paused_trial_prefers_its_previous_lane_among_idle_ones():
    stopper = Scripted({(2, 1): Verdict.PAUSE})
    bench = Bench(lanes=3, stopper=stopper, num_trials=3)
    for number in range(3):
        bench.begin(number)
    bench.end(0), bench.report(2, 1, 0.5)
    stopper.open = False
    stopper.to_resume.append(2)
    (resumed,) = assigned(bench.end(2, "paused", None))
    assert (resumed.number, resumed.lane) == (2, 2)


def test_lane_avoided_by_one_paused_trial_is_assigned_the_next_one():
    stopper = Scripted({(0, 1): Verdict.PAUSE, (1, 1): Verdict.PAUSE})
    bench = Bench(lanes=2, stopper=stopper, num_trials=4)
    bench.begin(0), bench.begin(1)
    bench.report(0, 1, 0.5), bench.end(0, "failed", None, error="its checkpoint could not be written")
    bench.report(1, 1, 0.5), bench.end(1, "paused", None)
    bench.begin(2), bench.begin(3)
    assert bench.dispatch.ledger.counts()["paused"] == 2
    stopper.to_resume += [0, 1]
    assert [(a.lane, a.number) for a in assigned(bench.end(2))] == [(0, 1)]
    assert [(a.lane, a.number, a.isolated) for a in assigned(bench.end(3))] == [(1, 0, True)]


def test_trial_resumed_before_it_paused_continues_at_once():
    stopper = Scripted({(0, 1): Verdict.PAUSE})
    bench = Bench(stopper=stopper, num_trials=2)
    bench.begin(0), bench.begin(1), bench.report(0, 1, 0.5)
    stopper.to_resume.append(0)
    bench.end(1)
    (resumed,) = assigned(bench.end(0, "paused", None))
    assert (resumed.number, resumed.attempt) == (0, 2)


def test_exploit_continues_from_the_source_checkpoint_with_its_configuration():
    bench = Bench(stopper=Scripted({(1, 3): Exploit(0, {"x": 9})}), num_trials=2)
    bench.begin(0), bench.begin(1), bench.report(0, 5, 1.0)
    assert ends(bench.report(1, 3, 0.1)) == [RequestTrialEnd(1, 1, "pause")]
    (again,) = assigned(bench.end(1, "paused", None))
    assert (again.lane, again.config, again.resume_from, again.done_step) == (1, {"x": 9}, 0, 3)
    bench.begin(1)
    bench.do(LaneLost(1, "gone"))
    bench.do(LaneJoined(2))
    (again,) = assigned(bench.last)
    assert again.resume_from == 0, "its own checkpoint is of the time before"
    bench.begin(1), bench.report(1, 6, 0.9)
    bench.do(LaneLost(2, "gone"))
    (again,) = assigned(bench.do(LaneJoined(3)))
    assert again.resume_from == 1


def test_paused_trials_are_stopped_at_the_end_unless_the_stopper_settles_for_them():
    for settles in (False, True):
        stopper = Scripted({(0, 1): Verdict.PAUSE}, settles=settles)
        bench = Bench(lanes=1, stopper=stopper, num_trials=2)
        bench.begin(0), bench.report(0, 1, 0.5), bench.end(0, "paused", None)
        bench.begin(1)
        actions = bench.end(1, value=0.1)
        if settles:
            assert assigned(actions)[0].number == 0 and bench.dispatch.conclusion is None
            bench.begin(0), bench.end(0, value=0.9)
        assert bench.conclusion.reason == "complete"
        assert bench.searcher.told[0].end is (End.COMPLETED if settles else End.STOPPED)


def test_waiting_searcher_is_polled_again_after_each_result():
    bench = Bench(lanes=2, searcher=Counting(batch=3), num_trials=6)
    bench.begin(0), bench.begin(1)
    assert assigned(bench.end(0))[0].number == 2
    bench.begin(2)
    assert assigned(bench.end(1)) == []
    assert [a.number for a in assigned(bench.end(2))] == [3, 4]


def test_searcher_that_waits_for_nothing_fails_the_search():
    class Waiting(Counting):
        def ask(self, number):
            from hopsml.search.contract import Wait

            return Wait.LATER

    bench = Bench(searcher=Waiting())
    assert bench.conclusion.reason == "failed" and "waits for results" in bench.conclusion.text


# ---------------------------------------------------------------------------------------- failures


def test_failed_trial_is_retried_on_another_lane_in_an_isolated_process():
    bench = Bench(num_trials=10, retries=1)
    bench.begin(0), bench.begin(1), bench.report(0, 4, 0.4)
    (other,) = assigned(bench.end(0, "failed", None, error="CUDA error"))
    assert other.number == 2, "its own lane takes the next trial instead"
    bench.begin(2)
    (again,) = assigned(bench.end(1))
    assert (again.number, again.lane, again.isolated) == (0, 1, True)
    assert (again.resume_from, again.done_step) == (0, 4)
    bench.begin(0)
    settled = bench.end(0, "died", None, error="killed by signal 9")[0]
    assert (settled.end, settled.value, settled.error) == (End.FAILED, None, "killed by signal 9")
    assert bench.searcher.told[0].score is None and bench.trial(0).tries == 2


def test_failed_trial_is_retried_on_another_host_if_possible():
    bench = Bench(lanes=0, num_trials=3)
    for lane, host in enumerate(("a", "a", "b")):
        bench.do(LaneJoined(lane, host))
    for number in (0, 1, 2):
        bench.begin(number)
    bench.end(1), bench.end(2)
    (again,) = assigned(bench.end(0, "failed", None, error="no GPU"))
    assert (again.number, again.lane) == (0, 2)


def test_failed_trial_is_retried_on_the_only_lane():
    bench = Bench(lanes=1, num_trials=1)
    bench.begin(0)
    (again,) = assigned(bench.end(0, "failed", None, error="oops"))
    assert (again.lane, again.isolated) == (0, True)


def test_failed_trial_waits_for_another_lane_if_one_exists():
    bench = Bench(lanes=2, num_trials=2)
    bench.begin(0), bench.begin(1)
    assert assigned(bench.end(0, "failed", None, error="oops")) == []
    (again,) = assigned(bench.do(LaneLost(1, "gone")))[:1]
    assert again.number == 1, "what was lost goes first"


def test_lost_lanes_are_not_failures_up_to_a_limit():
    bench = Bench(lanes=1, num_trials=1, retries=0)
    for lane in range(10):
        bench.begin(0)
        assert assigned(bench.do(LaneLost(lane, "preempted"))) == []
        bench.do(LaneJoined(lane + 1))
    bench.begin(0)
    settled = bench.do(LaneLost(10, "preempted"))[0]
    assert settled.end is End.FAILED and "11 times" in settled.error
    assert bench.conclusion.reason == "failed"


def test_trial_that_loses_its_lane_before_it_starts_is_limited_too():
    bench = Bench(lanes=1, num_trials=1)
    for lane in range(11):
        bench.do(LaneLost(lane, "died on the first message"))
        bench.do(LaneJoined(lane + 1))
    assert bench.conclusion.reason == "failed"


def test_events_of_an_earlier_attempt_are_ignored():
    bench = Bench(lanes=2, num_trials=2)
    bench.begin(0), bench.begin(1)
    bench.do(LaneLost(0, "frozen"))
    bench.do(LaneJoined(2))
    assert bench.trial(0).attempt == 2
    for event in (
        AttemptBegan(0, 1),
        ValuesReported(0, 1, 5, 9.0),
        AttemptEnded(0, 1, "finished", 9.0),
        AttemptEnded(77, 1, "finished", 9.0),
    ):
        assert bench.do(event) == []
    assert bench.searcher.reports == [] and bench.searcher.told == {}


def test_identical_errors_in_the_first_trials_end_the_search():
    bench = Bench(lanes=2, num_trials=1000, retries=0)
    for number in range(4):
        bench.begin(number)
        bench.end(number, "failed", None, error=f"NameError: name 'learning_rte' at 0x7f{number}")
    bench.begin(4), bench.end(4, "stopped", None)
    assert bench.conclusion.reason == "failed"
    assert "first 4 trials" in bench.conclusion.text and "learning_rte" in bench.conclusion.text
    assert len(bench.dispatch.ledger) < 10


def test_different_errors_or_a_success_do_not_end_the_search():
    for others in ([("failed", "OOM")], [("finished", "")]):
        bench = Bench(lanes=2, num_trials=30, retries=0)
        outcomes = [("failed", "NameError: x"), *others, *[("failed", "NameError: x")] * 28]
        for number, (how, error) in enumerate(outcomes):
            bench.begin(number)
            bench.end(number, how, 1.0 if how == "finished" else None, error=error)
        assert len(bench.searcher.told) == 30


def test_wrong_metric_name_in_results_ends_the_search_early():
    bench = Bench(lanes=2, num_trials=1000, metric="f1")
    for number in range(4):
        bench.begin(number)
        bench.end(number, value=None, outputs={"accuracy": 0.5})
    bench.do(SearchCancelRequested("test over"))
    assert "'f1' is not in what the function returned ('accuracy')" in bench.dispatch.closing.text


def report_other_metrics(bench: Bench, number: int, step: int, *names: str) -> list[Action]:
    return bench.do(OtherValuesReported(number, bench.trial(number).attempt, step, names))


def test_misspelt_metric_ends_the_search_at_the_first_report_of_a_similar_name():
    bench = Bench(lanes=2, num_trials=1000, metric="acuracy")
    bench.begin(0), bench.begin(1)
    actions = report_other_metrics(bench, 0, 0, "batch_loss") + report_other_metrics(bench, 0, 1, "loss", "accuracy")
    assert [one.number for one in ends(actions)] == [0, 1]
    bench.end(0, "stopped", None), bench.end(1, "stopped", None)
    assert bench.conclusion.reason == "failed"
    assert "('loss', 'accuracy'); did you mean 'accuracy'?" in bench.conclusion.text


@pytest.mark.parametrize(
    "end",
    [
        {"how": "failed", "error": "wrong name", "lacks_metric": True, "names": ("accuracy",)},  # in a lane
        {"outputs": {"accuracy": 0.5}},  # in a run of its own
    ],
)
def test_misspelt_metric_ends_the_search_at_the_first_returned_value_of_a_similar_name(end):
    bench = Bench(lanes=2, num_trials=1000, metric="acuracy")
    bench.begin(0), bench.begin(1)
    assert [one.number for one in ends(bench.end(0, value=None, **end))] == [1]
    bench.end(1, "stopped", None)
    assert bench.conclusion.reason == "failed" and len(bench.dispatch.ledger.trials) == 2
    assert "among the returned values ('accuracy'); did you mean 'accuracy'?" in bench.conclusion.text


def test_trial_that_returned_without_the_metric_is_not_tried_again():
    bench = Bench(lanes=1, metric="f1", retries=3)
    bench.begin(0)
    bench.end(0, "failed", None, error="no f1", lacks_metric=True, names=("loss",))
    assert bench.trial(0).end is End.FAILED and bench.trial(0).tries == 1
    bench.begin(1)
    bench.end(1, "failed", None, error="raised")
    assert bench.trial(1).end is None


def test_metric_compared_by_the_stopper_must_be_reported():
    bench = Bench(lanes=1, stopper=Scripted({}), metric="f1")
    bench.begin(0)
    assert report_other_metrics(bench, 0, 0, "loss") == [] and report_other_metrics(bench, 0, 0, "rate") == []
    assert [one.number for one in ends(report_other_metrics(bench, 0, 1, "loss"))] == [0]


def test_metric_that_may_be_reported_later_does_not_end_the_search():
    alone = Bench(lanes=1, metric="val_accuracy", stopper=Scripted({}))
    alone.begin(0)
    for step in range(3):  # validated at every third epoch
        assert report_other_metrics(alone, 0, step, "accuracy", "loss") == []
    returned = Bench(lanes=1, metric="mae")
    returned.begin(0)
    for step in range(3):
        assert report_other_metrics(returned, 0, step, "mse") == []
    later = Bench(lanes=1, metric="acuracy", num_trials=2)
    later.begin(0), later.report(0, 0, 0.5)
    assert report_other_metrics(later, 0, 1, "accuracy") == [], "there is a metric of this name"


@pytest.mark.parametrize(
    ("value", "outputs", "error"),
    [
        (None, None, "neither returned nor reported"),
        (math.nan, math.nan, "nan, which is no finite number"),
        (None, {"m": math.inf}, "inf, which is no finite number"),
        (None, {"m": "0.9"}, "'0.9', a str: it must be a number"),
        ("0.9", None, "'0.9', a str: it must be a number"),
        (None, {}, "not in what the function returned (nothing)"),
        (True, None, "True, a bool"),
        (None, {"m": None, "loss": 1.0}, "neither returned nor reported the metric 'm'"),
    ],
)
def test_invalid_metric_value_is_recorded_with_the_trial(value, outputs, error):
    bench = Bench(metric="m", num_trials=3)
    bench.begin(0)
    settled = bench.end(0, value=value, outputs=outputs)[0]
    assert (settled.end, settled.value) == (End.COMPLETED, None) and error in settled.error
    assert bench.searcher.told[0].score is None


def test_default_metric_is_the_only_output_or_the_one_named_metric():
    bench = Bench(num_trials=3)
    assert (
        "'metric' is not in what the function returned ('a', 'b')"
        in bench.end(0, value=None, outputs={"a": 1, "b": 2})[0].error
    )
    assert "the metric 'a' is 'x', a str" in bench.end(1, value=None, outputs={"a": "x"})[0].error


def test_last_report_is_the_value_of_a_function_that_returns_nothing():
    bench = Bench(metric="m", num_trials=3)
    bench.begin(0), bench.report(0, 0, 0.25), bench.report(0, 1, math.nan), bench.report(0, 2, "high")
    settled = bench.end(0, value=None)[0]
    assert (settled.value, settled.error) == (0.25, "")
    assert bench.searcher.reports == [(0, 0, 0.25)]


def test_search_without_any_value_fails():
    bench = Bench(num_trials=2, retries=0)
    bench.begin(0), bench.begin(1)
    bench.end(0, "failed", None, error="OOM"), bench.end(1, value=math.nan)
    assert bench.conclusion.reason == "failed" and "no trial gave a value" in bench.conclusion.text
    assert bench.dispatch.best() is None


# ---------------------------------------------------------------------------------------- bounds and the end


def test_deadline_leaves_time_to_stop_running_trials():
    bench = Bench(num_trials=100, deadline_s=100.0, patience_s=5.0)
    assert bench.dispatch.wake_at() == 95.0
    bench.begin(0), bench.begin(1), bench.report(0, 0, 0.3)
    assert bench.do(Tick(), 94.0) == []
    sent = ends(bench.do(Tick(), 1.0))
    assert [(a.number, a.how) for a in sent] == [(0, "stop"), (1, "stop")]
    assert all(0 < a.patience_s < 5.0 for a in sent)
    assert assigned(bench.end(1, value=0.9)) == [], "nothing new begins"
    assert bench.end(0, "stopped", None)[0] == TrialSettled(
        0, End.STOPPED, 0.3, None, "", pytest.approx(97, abs=0.1), 0
    )
    assert bench.conclusion.reason == "deadline" and bench.now < 100.0


def test_deadline_is_met_although_a_trial_does_not_respond():
    bench = Bench(num_trials=100, deadline_s=10.0)
    bench.begin(0)
    sent = ends(bench.do(Tick(), 9.5))
    assert [(a.number, a.how) for a in sent] == [(0, "stop"), (1, "withdraw")]
    assert bench.dispatch.wake_at() == 10.0
    actions = bench.do(Tick(), 0.5)
    assert [type(action) for action in actions] == [TrialSettled, ConcludeSearch]
    assert bench.searcher.told.keys() == {0}, "a trial that never began is not told"


def test_trial_that_starts_after_the_deadline_is_stopped():
    bench = Bench(num_trials=100, deadline_s=10.0)
    bench.do(Tick(), 9.5)
    assert ends(bench.begin(0))[0].how == "stop"


def test_deadline_can_be_moved_and_trials_added_until_the_end():
    bench = Bench(lanes=1, num_trials=1, deadline_s=10.0)
    bench.begin(0)
    assert bench.do(ExtensionRequested(trials=1)) == [WantLanes(2)]
    assert bench.dispatch.wake_at() == 9.0
    bench.do(Tick(), 9.5)
    bench.do(ExtensionRequested(deadline_s=100.0))
    assert assigned(bench.end(0))[0].number == 1
    bench.begin(1), bench.end(1)
    assert bench.conclusion.reason == "complete"


def test_deadline_moved_to_another_past_time_has_no_effect():
    bench = Bench(lanes=1, num_trials=9, deadline_s=10.0)
    bench.begin(0)
    bench.do(Tick(), 9.5)
    bench.do(ExtensionRequested(deadline_s=5.0))
    bench.end(0, after=0.0)
    assert bench.conclusion.reason == "deadline"


def test_cancellation_does_not_postpone_the_deadline():
    bench = Bench(lanes=1, num_trials=9, deadline_s=10.0)
    bench.begin(0)
    bench.do(Tick(), 9.5)
    bench.do(SearchCancelRequested("interrupt"))
    assert bench.dispatch.wake_at() == 10.0
    bench.do(Tick(), 0.5)
    assert bench.conclusion.reason == "cancelled"


def test_budget_counts_the_slots_that_are_held():
    bench = Bench(lanes=2, num_trials=100, budget_executor_s=100.0, patience_s=1.0)
    assert bench.dispatch.wake_at() == 49.0, "two slots"
    bench.do(LaneJoined(2), 10.0)
    assert bench.dispatch.wake_at() == pytest.approx(10 + 80 / 3 - 1)
    bench.do(LaneLost(2, "gone"), 10.0)
    assert bench.dispatch.bounds.spent_s == 50.0
    bench.begin(0)
    assert ends(bench.do(Tick(), 25.0)) != []
    bench.do(Tick(), 1.0)
    assert bench.conclusion.reason == "budget"


def test_search_without_lanes_ends_at_its_deadline():
    bench = Bench(lanes=0, deadline_s=10.0)
    bench.do(Tick(), 9.5)
    assert bench.conclusion.reason == "deadline"


def test_cancelled_search_retains_its_results():
    bench = Bench(num_trials=100)
    bench.begin(0), bench.begin(1)
    bench.end(0, value=0.5)
    sent = ends(bench.do(SearchCancelRequested("interrupt")))
    assert [(a.number, a.how) for a in sent] == [(1, "stop"), (2, "withdraw")]
    assert bench.do(SearchCancelRequested("again")) == []
    bench.end(2, "withdrawn", None, after=0.0), bench.end(1, "stopped", None, after=0.0)
    assert bench.conclusion.reason == "cancelled" and "interrupt" in bench.conclusion.text
    assert bench.dispatch.best()["number"] == 0


@pytest.mark.parametrize("how", ["stopped", "died", "lost", "silent"])
def test_trials_running_at_cancellation_restart_when_the_search_continues(how):
    bench = Bench(num_trials=2)
    bench.begin(0), bench.end(0, value=0.1), bench.begin(1)
    bench.do(ValuesReported(1, 1, 3, 9.0, checkpoint=True))
    facts = bench.dispatch.take_facts()
    bench.do(SearchCancelRequested("interrupt"))
    assert [type(action) for action in (bench.do(Tick(), 99.0) if how == "silent" else bench.end(1, how, None))] == [
        ConcludeSearch
    ]
    assert bench.dispatch.best()["number"] == 0, "the value of a step on the way is no result"
    assert bench.dispatch.ledger.counts()["waiting"] == 1 and 1 not in bench.searcher.told
    later = Dispatch(bench.dispatch.spec, Counting())
    for fact in [*facts, *bench.dispatch.take_facts()]:
        later.repeat(fact)
    later.start_session(0.0)
    again = assigned(later.handle(LaneJoined(0), 0.0))
    assert [(one.number, one.resume_from, one.done_step) for one in again] == [(1, 1, 3)]


def test_trials_stopped_before_cancellation_remain_stopped():
    bench = Bench(stopper=Scripted({(0, 1): Verdict.STOP, (1, 1): Verdict.PAUSE}), num_trials=2)
    bench.begin(0), bench.begin(1), bench.report(0, 1, 0.5), bench.report(1, 1, 0.5)
    bench.do(SearchCancelRequested("interrupt"))
    bench.end(0, "stopped", None), bench.end(1, "died", None)
    assert [trial.where for trial in bench.dispatch.ledger.trials] == ["stopped", "paused"]
    assert bench.conclusion.reason == "cancelled"


def test_paused_and_retried_trials_are_settled_at_the_deadline():
    bench = Bench(stopper=Scripted({(0, 1): Verdict.PAUSE}), num_trials=3, deadline_s=10.0)
    bench.begin(0), bench.begin(1), bench.report(0, 1, 0.5), bench.end(0, "paused", None)
    bench.begin(2)
    bench.end(1, "failed", None, error="oops")
    bench.do(Tick(), 9.0)
    bench.end(2, "stopped", None, after=0.0)
    outcomes = {number: (outcome.end, outcome.score) for number, outcome in bench.searcher.told.items()}
    assert outcomes == {0: (End.STOPPED, 0.5), 1: (End.FAILED, None), 2: (End.STOPPED, None)}


def test_every_failed_attempt_counts_as_a_failure():
    bench = Bench(lanes=1, num_trials=1, retries=1)
    bench.begin(0), bench.end(0, "failed", None, error="oops")
    bench.begin(0), bench.end(0, "failed", None, error="oops")
    assert [(row["attempts"], row["failures"]) for row in bench.dispatch.ledger.rows()] == [(2, 2)]


def test_running_trials_never_exceed_the_number_of_lanes():
    bench = bench_with_queued_trials()
    counts = bench.dispatch.ledger.counts()
    assert counts["running"] <= bench.dispatch.places.slots_held < len(bench.dispatch.ledger.placed)
    assert counts["running"] + counts["waiting"] == len(bench.dispatch.ledger.placed)


def test_ledger_has_a_row_for_every_trial():
    bench = Bench(num_trials=3)
    bench.begin(0), bench.end(0, value=2.0, seconds=1.5)
    rows = bench.dispatch.ledger.rows()
    assert [(row["number"], row["state"], row["value"]) for row in rows] == [
        (0, "completed", 2.0),
        (1, "placed", None),
        (2, "placed", None),
    ]
    assert rows[0]["seconds"] == 1.5 and rows[0]["config"] == {"x": 0, "size": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"direction": "MAX"},
        {"num_trials": 0},
        {"retries": -1},
        {"deadline_s": 0.0},
        {"deadline_s": math.inf},
        {"patience_s": -1.0},
        {"promoted_workers": ((1, 2),)},
        {"promoted_workers": ((4, 2), (1, 4)), "size_of": lambda config: (1, 1)},
    ],
)
def test_invalid_search_specification_is_refused(wrong):
    with pytest.raises(ArgumentError):
        SearchSpec(**{"num_trials": 1, **wrong})


def test_assignment_contains_configuration_isolation_and_checkpoint():
    bench = Bench(lanes=1, isolated=True)
    assert assigned(bench.first) == [AssignToLane(0, 0, 1, {"x": 0, "size": 1}, True, None, -1)]


def test_trial_larger_than_all_slots_fails_instead_of_waiting():
    bench = Bench(lanes=0, num_trials=3, size_of=lambda config: (4, 4), max_lanes=2)
    bench.do(SlotsChanged(2))
    assert bench.dispatch.conclusion is not None
    assert "a trial of 4 workers, and the search has 2 slots at most" in str(bench.trial(0))
