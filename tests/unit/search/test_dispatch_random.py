"""Tests of the dispatch with random events: nothing runs twice or waits forever, and a killed driver loses nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.search import registry
from hopsml.search.dispatch.ledger import TrialPhase
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.search.space.space import Searchspace
from tests.helpers.search.searching import Counting, Exploiting, Halving, Recorded
from tests.unit.search.world import World

pytestmark = pytest.mark.fast

STOPPERS = {"none": Recorded, "halving": Halving}


def play(world: World, steps: int) -> None:
    for _ in range(steps):
        if world.dispatch.conclusion is not None:
            return
        events = world.enabled()
        harm = world.harm() if not events or world.random.random() < 0.25 else None
        if harm is not None:
            world.happen(harm)
        elif events and (event := world.random.choice(world.enabled() or [None])) is not None:
            world.happen(event)
    world.finish()


def check_end(world: World) -> None:
    """Check that each started trial was reported to the searcher once; the others wait for another session.

    After a cancel, all paused trials wait as well.
    """
    dispatch = world.dispatch
    reported = dispatch.ask_tell.searcher.told
    assert reported.keys() == dispatch.settled.keys()
    for trial in dispatch.ledger.trials:
        assert (trial.number in reported) == (trial.phase is TrialPhase.OVER)
        waits = trial.phase is TrialPhase.READY or (trial.phase is TrialPhase.PAUSED and dispatch.attempts.cancelled)
        assert (trial.begun > 0) == (trial.phase is TrialPhase.OVER) or waits
    if dispatch.conclusion.reason == "complete":
        assert len(reported) == len(dispatch.ledger.trials)


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    stopper=st.sampled_from(sorted(STOPPERS)),
    batch=st.sampled_from([None, 3]),
    prefetch=st.sampled_from([None, True]),
    deadline_s=st.sampled_from([None, None, 60.0]),
    retries=st.sampled_from([0, 1]),
)
def test_random_lane_events_keep_the_invariants_of_the_dispatch(seed, stopper, batch, prefetch, deadline_s, retries):
    def make():
        spec = SearchSpec(8, prefetch=prefetch, deadline_s=deadline_s, retries=retries, budget_executor_s=500.0)
        return spec, Counting(batch=batch), STOPPERS[stopper]()

    world = World(make, seed)
    play(world, 80)
    check_end(world)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), stopper=st.sampled_from(sorted(STOPPERS)), elastic=st.booleans())
def test_random_group_events_keep_the_invariants_of_the_dispatch(seed, stopper, elastic):
    def size_of(config):
        return config["size"], 1 if elastic else config["size"]

    def make():
        spec = SearchSpec(8, size_of=size_of, promoted_workers=((2, 4), (4, 6)))
        return spec, Counting(sizes=[1, 4, 2, 1, 8]), STOPPERS[stopper]()

    world = World(make, seed)
    play(world, 80)
    check_end(world)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_exploits_keep_the_invariants_of_the_dispatch(seed):
    world = World(lambda: (SearchSpec(6), Counting(), Exploiting()), seed)
    world.kill = lambda: None  # this stopper's chance is not part of its state
    play(world, 80)
    check_end(world)


REAL = (
    ("median", {"min_trials": 2}),
    ("asha", {"max_step": 6, "reduction_factor": 2, "brackets": 2}),
    ("asha", {"max_step": 6, "reduction_factor": 2, "mode": "stop"}),
    ("hyperband", {"max_step": 6, "reduction_factor": 2}),
    ("pbt", {"population": 4, "interval": 2, "max_step": 6, "seed": 3}),
)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    searcher=st.sampled_from(["random", "grid", "differential_evolution"]),
    stopper=st.sampled_from(REAL),
    trials=st.sampled_from([3, 20]),
)
def test_real_searchers_and_stoppers_settle_all_trials_under_random_events(seed, searcher, stopper, trials):
    def make():
        space = Searchspace(k=("INTEGER", [1, 4]), act=("CATEGORICAL", ["a", "b"]))
        of_space = {"space": space} if stopper[0] == "pbt" else {}
        made = registry.searcher(searcher, space, seed=5), registry.stopper(stopper[0], **of_space, **stopper[1])
        return SearchSpec(trials, retries=1), *made

    world = World(make, seed)
    play(world, 100)
    if world.dispatch.conclusion.reason == "complete":
        assert len(world.dispatch.settled) == len(world.dispatch.ledger)
