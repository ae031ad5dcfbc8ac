"""Tests of searches in virtual time: utilisation of lanes, and the cost of a lost one."""

from __future__ import annotations

import random

import pytest

from hopsml.search.algorithms.asha import AshaStopper
from hopsml.search.contract import End, Verdict
from hopsml.search.dispatch.dispatch import Dispatch
from hopsml.search.dispatch.events import (
    AttemptBegan,
    AttemptEnded,
    FormGroup,
    LaneJoined,
    ResizeGroup,
    SlotsChanged,
    Tick,
    ValuesReported,
)
from hopsml.search.dispatch.spec import SearchSpec
from tests.helpers.search.searching import Checked, Counting, Halving, Recorded, Scripted
from tests.unit.search.simulator import Simulator, Work, list_schedule

pytestmark = pytest.mark.fast


def search(durations, lanes, steps=1, spec=None, stopper=None, latency_s=0.001, kind=Checked) -> Simulator:
    dispatch = kind(SearchSpec(len(durations), **(spec or {})), Counting(), stopper or Recorded())
    works = [Work(seconds / steps, [float(number)] * steps) for number, seconds in enumerate(durations)]
    return Simulator(dispatch, lambda config: works[int(config["x"])], latency_s).join(lanes)


@pytest.mark.parametrize("seed", range(5))
def test_sixteen_unequal_trials_use_2_lanes_almost_fully(seed):
    chance = random.Random(seed)
    durations = [chance.uniform(0.3, 2.0) for _ in range(16)]
    simulator = search(durations, 2, latency_s=0.003).run()
    assert list_schedule(durations, 2) / simulator.now >= 0.985


def test_prefetching_keeps_2_lanes_busy_with_1000_short_trials():
    simulator = search([0.05] * 1000, 2, latency_s=0.003, kind=Dispatch).run()
    assert list_schedule([0.05] * 1000, 2) / simulator.now >= 0.98, "0.5 ms between two trials is the lane's own"
    alone = search([0.05] * 200, 2, latency_s=0.003, spec={"prefetch": False}, kind=Dispatch).run()
    assert list_schedule([0.05] * 200, 2) / alone.now < 0.91, "which asking only when a lane is free does not reach"


@pytest.mark.parametrize("prefetch", [None, True])
def test_last_trials_are_spread_over_all_lanes(prefetch):
    """A long trial with another one behind it, while the other lanes have come to the end."""
    durations = [0.1] * 40 + [3.0] + [0.1] * 7
    simulator = search(durations, 4, spec={"prefetch": prefetch}).run()
    assert simulator.now <= list_schedule(durations, 4) + 0.1


def test_lanes_that_join_later_take_queued_trials():
    simulator = search([1.0] * 12, 1, spec={"prefetch": True})

    def more() -> None:
        for lane in range(1, 6):
            simulator.lanes[lane] = []
            simulator.tell(LaneJoined(lane))

    simulator.at(1.5, more)
    assert simulator.run().now < 1.5 + 3.1


def test_asha_search_keeps_all_lanes_busy():
    chance = random.Random(3)
    durations = [chance.uniform(0.5, 3.0) for _ in range(64)]
    simulator = search(durations, 4, steps=9, stopper=AshaStopper(max_step=8, reduction_factor=2)).run()
    assert simulator.busy_s / (4 * simulator.now) >= 0.97
    steps = [trial.step for trial in simulator.dispatch.ledger.trials]
    assert len(steps) == 64 and sum(step >= 8 for step in steps) >= 4 and min(steps) == 1


def test_asynchronous_halving_keeps_all_lanes_busy():
    chance = random.Random(3)
    durations = [chance.uniform(0.5, 3.0) for _ in range(64)]
    simulator = search(durations, 4, steps=8, stopper=Halving()).run()
    assert simulator.busy_s / (4 * simulator.now) >= 0.97
    reported = simulator.dispatch.ask_tell.searcher.told
    assert len(reported) == 64 and sum(outcome.end is End.COMPLETED for outcome in reported.values()) >= 4


def test_lost_lane_costs_only_the_steps_since_the_last_report():
    simulator = search([10.0] * 4, 2, steps=10)
    simulator.at(7.5, simulator.lose, 0)
    simulator.run()
    trial = simulator.dispatch.ledger.trials[0]
    assert (trial.attempt, trial.lost, trial.where) == (2, 1, "completed")
    steps = [step for number, step, _ in simulator.dispatch.ask_tell.searcher.reports if number == 0]
    assert steps == list(range(10)), "no step was told twice, and none is missing"
    assert simulator.now < 37, "33 s of work were left for one lane, and half a second was lost"


def test_lane_that_fails_every_trial_does_not_spoil_the_search():
    """Lane 0 fails at once whatever it gets: each trial is carried out elsewhere, none is lost."""
    dispatch = Checked(SearchSpec(30, retries=1), Counting(), None)
    simulator = Simulator(dispatch, lambda config: Work(0.5, [1.0, 2.0])).join(3)
    begin = simulator._begin

    def spoiled(busy) -> None:
        if busy.lane == 0:
            busy.work = Work(0.01, [0.0], "failed")
        begin(busy)

    simulator._begin = spoiled
    simulator.run()
    assert dispatch.ledger.counts()["completed"] == 30


def test_simulated_search_meets_its_deadline_in_order():
    simulator = search([5.0] * 100, 4, steps=50, spec={"deadline_s": 12.0, "patience_s": 1.0}).run()
    assert simulator.conclusion.reason == "deadline" and 11.0 <= simulator.now <= 12.0
    counts = simulator.dispatch.ledger.counts()
    assert counts["stopped"] == 4 and counts["completed"] == 8


# ---------------------------------------------------------------------------------------- groups


def group_search(sizes, seconds, slots, trials, minimum=None, values=None, **spec) -> Simulator:
    def size_of(config):
        return config["size"], minimum or config["size"]

    dispatch = Checked(SearchSpec(trials, size_of=size_of, **spec), Counting(sizes=sizes), Recorded())
    steps = len(values) if values else 1
    return Simulator(dispatch, lambda config: Work(seconds(config) / steps, values or [float(config["x"])])).slots(
        slots
    )


def test_groups_of_different_sizes_share_the_slots_without_starvation():
    simulator = group_search([1, 1, 1, 4], lambda config: 1.0, 4, 40).run()
    assert simulator.busy_s / (4 * simulator.now) >= 0.85
    waits = [simulator.began_at[number] - simulator.began_at[number - 1] for number in range(1, 40)]
    assert max(waits) <= 2.1, "nobody waits for longer than what was running took"


def test_small_group_is_backfilled_only_if_it_does_not_delay_the_head():
    lengths = {0: 1.0, 1: 1.0, 2: 1.0, 3: 10.0}  # a first round for the averages: sizes 4, 2, 1, 3
    simulator = group_search([4, 2, 1, 3], lambda config: lengths[config["x"] % 4], 4, 12)
    simulator.run()
    formed = [(time, action.number, action.size) for time, action in simulator.log if isinstance(action, FormGroup)]
    used: dict[int, int] = {}
    for time, number, size in formed:
        used = {other: taken for other, taken in used.items() if simulator.ended_at[other] > time}
        used[number] = size
        assert sum(used.values()) <= 4
    started = {number: time for time, number, _ in formed}
    assert started[4] <= simulator.ended_at[3] + 0.1, "the head of size 4 began when its slots were free"


class Reserving(Checked):
    """Dispatch that records the first reservation of every trial at the head of the queue, and its delay."""

    def start_session(self, now):
        self.promised: dict[int, float] = {}
        self.late: list[float] = []
        return super().start_session(now)

    def handle(self, event, now):
        actions = super().handle(event, now)
        for action in actions:
            if isinstance(action, FormGroup) and action.number in self.promised:
                self.late.append(now - self.promised.pop(action.number))
        if self.places.queued_count and (reservation := self.places._reservation(now)) is not None:
            self.promised.setdefault(self.places._line[0][0].number, reservation.at)
        return actions


@pytest.mark.parametrize("seed", range(4))
def test_reservation_of_the_queue_head_is_never_delayed_by_backfilling(seed):
    """Trials of one size all take the same time, so that the averages are right: then EASY never delays a head."""
    chance = random.Random(seed)
    sizes = [chance.choice([1, 1, 2, 3, 5, 8]) for _ in range(60)]
    lasts = {size: chance.uniform(0.5, 6.0) for size in set(sizes)}
    spec = SearchSpec(60, size_of=lambda config: (config["size"], config["size"]))
    dispatch = Reserving(spec, Counting(sizes=sizes), Recorded())
    simulator = Simulator(dispatch, lambda config: Work(lasts[config["size"]], [1.0]), latency_s=1e-6, begin_s=0.0)
    simulator.slots(8).run()
    assert len(dispatch.late) >= 10 and max(dispatch.late) <= 0.001


@pytest.mark.parametrize("seed", range(4))
def test_wrong_average_delays_the_queue_head_at_most_by_a_running_trial(seed):
    chance = random.Random(seed)
    sizes = [chance.choice([1, 1, 1, 1, 8]) for _ in range(80)]
    lasts = [chance.choice([0.1, 0.1, 9.0]) for _ in sizes]
    spec = SearchSpec(80, size_of=lambda config: (config["size"], config["size"]))
    dispatch = Reserving(spec, Counting(sizes=sizes), Recorded())
    Simulator(dispatch, lambda config: Work(lasts[config["x"]], [1.0]), latency_s=1e-6, begin_s=0.0).slots(8).run()
    assert dispatch.late and max(dispatch.late) <= 9.01


def trials_started_before_the_head(now: float, mean: float) -> list[int]:
    """Return the trials started at ``now`` before the head, which needs 6 of 8 slots.

    Since 0, a trial of average duration ``mean`` occupies 5 slots.
    """
    config_sizes = [5, 6, 3, 2, 1]
    spec = SearchSpec(5, size_of=lambda config: (config["size"], config["size"]))
    dispatch = Checked(spec, Counting(sizes=config_sizes), Recorded())
    dispatch.handle(SlotsChanged(8), 0.0)
    dispatch.handle(AttemptBegan(0, 1), 0.0)
    places = dispatch.places
    places._means |= {5: (1, 10.0), 6: (1, 10.0), 3: (1, 99.0), 2: (1, 99.0), 1: (1, 3.0)}
    places._reservation(1.0)  # 10.0 is promised
    places._means[5] = (1, mean)
    return [action.number for action in dispatch.handle(Tick(), now) if isinstance(action, FormGroup)]


def test_backfilled_trials_use_only_slots_that_the_head_does_not_need():
    assert trials_started_before_the_head(2.0, mean=10.0) == [3, 4], (
        "2 slots are left over in any case, and a short one ends before"
    )
    assert trials_started_before_the_head(9.0, mean=10.0) == [3], "the short one would not end before"


def test_reservation_does_not_move_when_averages_change():
    assert trials_started_before_the_head(9.0, mean=50.0) == [3]
    assert trials_started_before_the_head(40.0, mean=50.0) == [3]


def test_trials_backfilled_after_the_reserved_time_leave_the_slots_of_the_head():
    spec = SearchSpec(9, size_of=lambda config: (config["size"], config["size"]))
    dispatch = Checked(spec, Counting(sizes=[5, 6, 1, 1, 1, 1, 1, 1, 1]), Recorded())
    dispatch.handle(SlotsChanged(8), 0.0)
    dispatch.handle(AttemptBegan(0, 1), 0.0)
    dispatch.places._means |= {5: (1, 10.0), 6: (1, 10.0), 1: (1, 3.0)}
    dispatch.places._reservation(1.0)
    formed = [action.number for action in dispatch.handle(Tick(), 20.0) if isinstance(action, FormGroup)]
    assert formed == [2, 3]
    assert [a for a in dispatch.handle(Tick(), 30.0) if isinstance(a, FormGroup)] == [], (
        "they take longer than 3 s, too"
    )
    started = [
        action.number
        for action in dispatch.handle(AttemptEnded(0, 1, "finished", 1.0), 40.0)
        if isinstance(action, FormGroup)
    ]
    assert started[0] == 1


def test_resumed_trial_precedes_new_ones_but_not_the_queue_head():
    stopper = Scripted({(0, 1): Verdict.PAUSE})
    spec = SearchSpec(9, size_of=lambda config: (config["size"], config["size"]))
    dispatch = Checked(spec, Counting(sizes=[1, 3, 4, 1, 1, 1, 1, 1, 1]), stopper)
    dispatch.handle(SlotsChanged(4), 0.0)
    for number in (0, 1):
        dispatch.handle(AttemptBegan(number, 1), 0.0)
    dispatch.places._means |= {1: (1, 50.0), 3: (1, 10.0), 4: (1, 10.0)}
    dispatch.handle(ValuesReported(0, 1, 1, 0.5), 1.0)
    dispatch.handle(AttemptEnded(0, 1, "paused"), 2.0)
    assert dispatch.places._line[0][0].number == 2 and dispatch.places.queued_count > 2
    stopper.to_resume.append(0)
    dispatch.handle(Tick(), 3.0)
    assert [trial.number for trial, _, _ in dispatch.places._line][:3] == [2, 0, 3]


def test_backfilling_uses_slots_that_would_be_idle(monkeypatch):
    def taken(ahead):
        monkeypatch.setattr("hopsml.search.dispatch.groups.AHEAD", ahead)
        lasts = {1: 1.0, 6: 4.0, 3: 3.0}
        return group_search([6, 3, 1, 1, 1, 3], lambda config: lasts[config["size"]], 8, 60).run().now

    assert taken(8) < 0.9 * taken(1)


def test_trial_larger_than_the_cluster_waits_while_others_run():
    simulator = group_search([9, 1, 1, 1], lambda config: 1.0, 4, 4)
    simulator.at(5.0, simulator.slots, 9)
    simulator.run()
    assert simulator.began_at[0] >= 5.0 and max(simulator.began_at[n] for n in (1, 2, 3)) < 1.0


def test_elastic_trial_starts_with_available_slots_and_grows():
    simulator = group_search([8], lambda config: 100.0, 3, 1, minimum=2, values=[1.0] * 10)
    simulator.at(50.0, simulator.slots, 6)
    simulator.run()
    (form,) = [(time, action.size) for time, action in simulator.log if isinstance(action, FormGroup)]
    assert form == (pytest.approx(5.0), 3), "when the slots had not changed for a while"
    assert simulator.busy_s > 3 * 100


def test_promoted_trials_grow_before_new_ones_start():
    promoted = ((4, 3),)
    simulator = group_search(
        [1], lambda config: 10.0 + config["x"], 3, 6, values=[1.0] * 10, promoted_workers=promoted
    ).run()
    grown = [(time, action) for time, action in simulator.log if isinstance(action, ResizeGroup)]
    assert grown[0][1] == ResizeGroup(1, 2) and grown[0][0] == pytest.approx(simulator.ended_at[0], abs=0.01)


def test_failing_size_function_fails_only_its_trial():
    def size_of(config):
        return {0: (1, 1), 1: (2, 3), 3: ("2", 1)}[config["x"]]

    dispatch = Checked(SearchSpec(4, size_of=size_of), Counting(), None)
    Simulator(dispatch, lambda config: Work(1.0, [1.0])).slots(2).run()
    errors = {row["number"]: row["error"] for row in dispatch.ledger.rows()}
    assert errors[0] == "" and "KeyError: 2" in errors[2]
    assert "1 <= minimum <= size" in errors[1] and "('2', 1)" in errors[3]


def test_size_function_that_always_fails_ends_the_search_at_once():
    def size_of(config):
        raise NameError("name 'bach_size' is not defined")

    dispatch = Checked(SearchSpec(1000, size_of=size_of), Counting(), None)
    simulator = Simulator(dispatch, lambda config: Work(1.0, [1.0])).slots(8).run()
    assert simulator.conclusion.reason == "failed" and "'bach_size'" in simulator.conclusion.text
    assert len(dispatch.ledger) <= 16
