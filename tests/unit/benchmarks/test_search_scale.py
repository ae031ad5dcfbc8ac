"""Test of a small dispatch benchmark: its lanes carry out the dispatch's decisions to the end."""

from __future__ import annotations

import pytest

from benchmarks import search_scale
from hopsml.search.algorithms.median import MedianStop
from hopsml.search.algorithms.random import RandomSearcher
from hopsml.search.contract import End
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.search.space.space import Searchspace

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("journal", [False, True])
def test_simulated_lanes_complete_a_search(monkeypatch, journal):
    monkeypatch.setattr(search_scale, "LANES", 16)
    space = Searchspace(lr=("LOGUNIFORM", [1e-4, 1e-1]), layers=("INTEGER", [1, 4]))
    lanes = search_scale.SimulatedLanes(SearchSpec(500), RandomSearcher(space, seed=0), MedianStop(10), journal)
    lanes.run()
    ledger = lanes.dispatch.ledger
    assert lanes.dispatch.conclusion.reason == "complete" and ledger.ended_count == 500
    assert ledger.ends[End.COMPLETED] > 50 and ledger.ends[End.STOPPED] > 50 and ledger.ends[End.FAILED] == 0
    assert lanes.spent_s > 0 and ledger.best.value == max(trial.value for trial in ledger.trials)
