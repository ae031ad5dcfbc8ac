"""Tests of a joining worker's state and inputs, as far as no group is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopsml
from hopsml.cluster.shared.worker_events import WorkerReconfigurable
from hopsml.cluster.worker import context as contexts
from hopsml.cluster.worker.context import ReconfigurationPort, WorkerContext
from hopsml.training import collective
from hopsml.training.tensorflow import groups
from hopsml.training.tensorflow.fit import callbacks, elastic_fit

pytestmark = pytest.mark.fast


@pytest.fixture
def sent_messages(tmp_path: Path) -> Iterator[list[Any]]:
    """Messages about the group, sent by the worker of this context."""
    told: list[Any] = []
    folders: dict[str, Any] = dict.fromkeys(("work_dir", "events_dir", "checkpoint_dir", "export_dir"), tmp_path)
    facts: dict[str, Any] = {"run_id": "app_1", "generation": 1, "rank": 2, "world_size": 3, "local_rank": 0}
    port = ReconfigurationPort(lambda seconds: None, lambda: True, told.append)
    contexts.set_current(WorkerContext(**facts, role="worker", run_url="", mends=port, **folders))
    yield told
    contexts.set_current(None)
    collective.end_separate_calls()


def with_other(**changes: Any) -> None:
    here = contexts.current()
    assert here is not None
    contexts.set_current(dataclasses.replace(here, **changes))


def test_fit_numbers_continue_in_a_run_and_restart_in_another_run_or_trial(sent_messages: list[Any]) -> None:
    assert callbacks.next_fit_number() == 1
    with_other(generation=2, rank=1, world_size=2)
    assert callbacks.next_fit_number() == 2, "a mend replaces the context"
    with_other(run_id="app_2")
    assert callbacks.next_fit_number() == 1
    with_other(trial=object())
    assert callbacks.next_fit_number() == 1


def test_worker_outside_the_group_computes_collectives_alone(sent_messages: list[Any]) -> None:
    collective.begin_separate_calls()
    assert hopsml.all_reduce([1.0, 2.0], "sum").tolist() == [1.0, 2.0]
    assert hopsml.all_gather(3.0).tolist() == [3.0] and hopsml.broadcast(4.0).tolist() == 4.0
    hopsml.barrier()
    collective.end_separate_calls()
    with pytest.raises(hopsml.errors.ArgumentError, match="which does not train"):
        hopsml.barrier()


def test_newcomer_uses_its_own_value_in_place_of_a_broadcast(sent_messages: list[Any], tmp_path: Path) -> None:
    assert not collective.is_catching_up()
    with_other(joins=True)
    assert collective.is_catching_up() and groups.broadcast_bytes(None, b"mine") == b"mine"
    assert groups.all_agree(None, True) and not groups.all_agree(None, False)


def test_group_reports_once_why_newcomers_cannot_join(
    sent_messages: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective, "_fixed", "")
    collective.forbid_joining("shuffled anew")
    assert sent_messages == [], "there is no group; it is said when there is one"
    monkeypatch.setattr(collective, "_fixed", "")
    monkeypatch.setattr(collective, "_group", object())
    collective.forbid_joining("shuffled anew")
    collective.forbid_joining("another reason")
    assert sent_messages == [WorkerReconfigurable("shuffled anew")]


class Counter:
    """A callback of a user's that counts."""

    def __init__(self, seen: int = 0) -> None:
        self.seen = seen

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


class Silent:
    """Iterator that does not report what it holds."""

    def __init__(self, seen: int = 0) -> None:
        self.seen = seen


def test_newcomer_callbacks_receive_state_only_from_the_same_class() -> None:
    newcomers: list[Any] = [Counter(), Silent(), Counter()]
    elastic_fit.restore_counters(newcomers, elastic_fit.read_counters([Counter(4), Silent(5), Silent(6)]))
    assert [one.seen for one in newcomers] == [4, 0, 0], "the third is of another class"


def test_only_plain_attribute_values_are_transferred() -> None:
    assert all(map(elastic_fit._is_plain, (None, 1, 0.5, True, np.float32(2), np.zeros(2), [np.ones(3)])))
    assert not any(map(elastic_fit._is_plain, ("/a/path", {}, [1, "x"], np.less, object())))
