"""Tests of ``ring_order=`` with real workers, and of NCCL's variables in the summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.errors import ArgumentError, RunError
from tests.helpers.clock import END_S
from tests.helpers.local_application import warm_application

pytestmark = pytest.mark.local

project = warm_application(
    lambda: experiment.distributed.submit(lambda: None, num_workers=3, progress=False, keep_warm=60.0).result(END_S)
)


def submit(function: Any, **given: Any) -> Any:
    return experiment.distributed.submit(function, progress=False, keep_warm=60.0, **given)


def agents() -> dict[str, Any]:
    """Return the process of each rank's fork server, of which an agent has one, and the sum of the ranks."""
    import os

    import numpy as np

    import hopsml

    total = hopsml.all_reduce(np.array([float(hopsml.distributed.rank())]), "sum")
    return {"json": hopsml.distributed.exchange(os.getppid()), "total": float(total[0])}


def test_workers_take_the_given_ranks_and_the_summary_shows_the_order(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    usual = submit(agents, num_workers=3).result(END_S)
    run = submit(agents, num_workers=3, ring_order=[2, 0, 1])
    given = run.result(END_S)
    assert given.metrics["json"] == [usual.metrics["json"][rank] for rank in (2, 0, 1)]
    assert given.metrics["total"] == 3.0 and given.given_ring_order == [2, 0, 1] and usual.given_ring_order == []
    assert "worker:1, as given: 2, 0, 1" in given.summary() and "as given" not in usual.summary()
    assert any(note.startswith("ring order as given: ") for note in run.state.notes)
    assert given.in_force["nccl"] == "NCCL_ALGO=Ring" and "; NCCL_ALGO=Ring" in given.summary()


def test_order_of_other_ranks_or_hosts_ends_the_run_with_the_rule(project: Path) -> None:
    with pytest.raises(RunError, match="each rank from 0 to 2 once"):
        submit(agents, num_workers=3, ring_order=[1, 0]).result(END_S)
    with pytest.raises(RunError, match="it must name each host of the group once"):
        submit(agents, num_workers=3, ring_order=["elsewhere"]).result(END_S)
    with pytest.raises(ArgumentError, match="each named once"):
        submit(agents, num_workers=3, ring_order=[1, 1, 0])


def growing() -> dict[str, Any]:
    """Grow a group of two to three workers in place; return the addresses by rank before and afterwards."""
    import os
    import time

    import numpy as np

    import hopsml

    state = hopsml.elastic.State(addresses=[])
    for _ in state.resume(hopsml.elastic.Sampler(100_000, 10, seed=1)):
        hopsml.all_reduce(np.zeros(1))
        found = hopsml.distributed.exchange(os.environ["HOPSML_ADDRESS"])
        if found not in state.addresses:
            state.addresses = [*state.addresses, found]
        if len(found) == 3:
            break
        if state.batches == 3:
            hopsml.elastic.resize(3)
        time.sleep(0.02)
        state.commit(every=1)
    return {"json": state.addresses}


def test_newcomer_of_a_group_with_given_ranks_comes_last(project: Path) -> None:
    run = submit(growing, min_workers=1, max_workers=3, first_workers=2, ring_order=[1, 0])
    first, second = run.result(END_S).metrics["json"]
    assert len(first) == 2 and second[:2] == first and len(second) == 3
