"""Tests of groups whose workers wait for a store that does not answer: no standstill; a deadlock elsewhere is one."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.errors import WorkerFailed
from tests.helpers.clock import END_S

pytestmark = pytest.mark.local

LIMIT_S = 10.0  # progress_timeout
AWAY_S = "25"  # seconds until a call of the store ends: longer than the limit and than what counts as idle


@pytest.fixture
def frozen() -> Iterator[str]:
    """URL of a WebHDFS service that accepts connections, but never answers, as a stopped NameNode."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"webhdfs://127.0.0.1:{listener.getsockname()[1]}/data"


def train(store: str, waits_at: int, how: str) -> dict[str, Any]:
    """Make six steps together; in one of them rank 0 waits as ``how`` says, and the others wait for it."""
    import threading

    import numpy as np

    import hopsml
    from hopsml import hdfs
    from hopsml.cluster.worker.context import current
    from hopsml.errors import StorageTimeout

    context = current()
    assert context is not None

    def wait() -> None:
        if context.rank != 0 or context.generation:
            return
        if how == "deadlock":
            threading.Event().wait()
        elif how == "thread":  # as an input pipeline that reads files in threads of its own
            reader = threading.Thread(target=lambda: calls(hdfs.load))
            reader.start()
            reader.join()
        else:
            calls(hdfs.ls)

    def calls(function: Any) -> None:
        try:
            function(store)
        except StorageTimeout:
            return
        raise AssertionError("the store has answered")

    state = hopsml.elastic.State(steps=0)
    if not waits_at:
        wait()
    while state.steps < 6:
        if state.steps + 1 == waits_at:
            wait()
        state.steps += int(hopsml.all_reduce(np.ones(1))[0])
        state.commit()
    return {"generation": context.generation, "steps": state.steps}


ELASTIC = {"min_workers": 2, "max_workers": 2}


@pytest.mark.parametrize(("how", "waits_at"), [("call", 0), ("thread", 4)])
def test_elastic_group_waits_for_a_store_that_does_not_answer(
    store: Path, monkeypatch: pytest.MonkeyPatch, frozen: str, how: str, waits_at: int
) -> None:
    monkeypatch.setenv("HOPSML_STORAGE_TIMEOUT_S", AWAY_S)
    args = {"store": frozen, "waits_at": waits_at, "how": how}
    began = time.monotonic()
    run = experiment.submit(train, args=args, progress=False, progress_timeout=LIMIT_S, **ELASTIC)
    value = run.result(END_S).value
    assert value["generation"] == 0 and value["steps"] == 6, run.state.notes
    assert time.monotonic() - began > float(AWAY_S)
    assert not any("no step" in note for note in run.state.notes), run.state.notes


def test_fixed_group_waits_for_a_store_that_does_not_answer(
    store: Path, monkeypatch: pytest.MonkeyPatch, frozen: str
) -> None:
    monkeypatch.setenv("HOPSML_STORAGE_TIMEOUT_S", AWAY_S)
    args = {"store": frozen, "waits_at": 4, "how": "call"}
    run = experiment.submit(train, args=args, progress=False, progress_timeout=LIMIT_S, num_workers=2)
    assert run.result(END_S).value["steps"] == 6
    assert not any("has done anything" in note for note in run.state.notes), run.state.notes


def test_deadlock_elsewhere_is_found(store: Path, frozen: str) -> None:
    args = {"store": frozen, "waits_at": 4, "how": "deadlock"}
    elastic = experiment.submit(train, args=args, progress=False, progress_timeout=LIMIT_S, **ELASTIC)
    assert elastic.result(END_S).value["generation"] == 1
    assert any("no step for 10 s" in note for note in elastic.state.notes), elastic.state.notes
    fixed = experiment.submit(train, args=args, progress=False, progress_timeout=LIMIT_S, num_workers=2)
    with pytest.raises(WorkerFailed, match=r"no worker has done anything for .*progress_timeout=10"):
        fixed.result(END_S)
