"""Tests of the queue of trials that wait for a lane."""

from __future__ import annotations

import random

import pytest

from hopsml.search.dispatch.ask_tell import ReadyQueue
from hopsml.search.dispatch.ledger import TrialState

pytestmark = pytest.mark.fast


def test_ready_queue_is_first_in_first_out_except_for_prioritised_trials():
    queue = ReadyQueue()
    for number in (0, 1):
        queue.add_trial(TrialState(number, {}))
    for number in (2, 3):
        queue.add_trial(TrialState(number, {}), first=True)
    assert len(queue) == 4
    assert [queue.take_trial().number for _ in range(4)] == [3, 2, 0, 1]
    assert queue.take_trial() is None and len(queue) == 0


def test_ready_queue_equals_a_searched_list_under_random_operations():
    chance = random.Random(0)
    queue, naive = ReadyQueue(), []
    for number in range(3000):
        if chance.random() < 0.5:
            trial = TrialState(number, {}, avoid=chance.choice([None, 0, 1, 2]))
            first = chance.random() < 0.3
            queue.add_trial(trial, first)
            naive.insert(0 if first else len(naive), trial)
        else:
            lane = chance.choice([None, 0, 1])
            fitting = [trial for trial in naive if lane is None or trial.avoid != lane]
            taken = queue.take_trial(lane)
            assert taken is (fitting[0] if fitting else None)
            if taken is not None:
                naive.remove(taken)
    assert queue.drain() == naive and len(queue) == 0
