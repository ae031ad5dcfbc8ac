"""Tests of what a training function sends to the driver: reports, and progress of fit and of the elastic sampler."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hopsml
from hopsml import elastic
from hopsml.cluster.worker import context as contexts
from hopsml.cluster.worker.context import WorkerContext
from hopsml.errors import ArgumentError
from hopsml.training import messages
from hopsml.training.tensorflow.fit.callbacks import ReportCallback

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("step", [None, 0, 7, 3.0, np.int64(3), np.array(3)])
def test_report_accepts_any_integer_type_as_step(step: Any) -> None:
    hopsml.report(step, loss=0.1)


@pytest.mark.parametrize("step", [{"loss": 1}, 0.5, float("nan"), "three", np.array([1, 2])])
def test_report_refuses_a_value_as_step_and_shows_the_correct_form(step: Any) -> None:
    with pytest.raises(TypeError, match=r"values go by name, for instance hopsml.report\(step=3, loss=0.1\)"):
        hopsml.report(step)


SentProgress = list[tuple[int, int, str]]


@pytest.fixture
def sent_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SentProgress]:
    """Messages sent by the chief, for every step without rate limit."""
    said: SentProgress = []
    monkeypatch.setattr(messages.ProgressSender.__init__, "__defaults__", (0.0,))
    folders: dict[str, Any] = dict.fromkeys(("work_dir", "events_dir", "checkpoint_dir", "export_dir"), tmp_path)
    facts = {"run_id": "app_1", "generation": 0, "rank": 0, "world_size": 2, "local_rank": 0, "role": "chief"}
    contexts.set_current(
        WorkerContext(**facts, run_url="", progress=lambda *one: said.append(one), **folders)  # type: ignore[arg-type]
    )
    yield said
    contexts.set_current(None)


def as_rank(rank: int) -> None:
    here = contexts.current()
    assert here is not None
    contexts.set_current(dataclasses.replace(here, rank=rank))


def fit(callback: ReportCallback, batches: int, epochs: range, steps: int | None) -> None:
    """Call the callback as Keras does; its reports have another test."""
    callback.set_params({"epochs": epochs.stop, "steps": steps, "verbose": 0})
    callback._send = lambda logs: None  # type: ignore[method-assign]
    callback.on_train_begin()
    for epoch in epochs:
        callback.on_epoch_begin(epoch)
        for batch in range(batches):
            callback.on_train_batch_end(batch)
        callback.on_epoch_end(epoch)
    callback.on_train_end()


def test_fit_reports_progress_in_steps_of_all_epochs(sent_progress: SentProgress) -> None:
    fit(ReportCallback(), batches=2, epochs=range(3), steps=2)
    assert sent_progress == [(n, 6, "step") for n in (1, 2, 2, 3, 4, 4, 5, 6, 6)]


def test_resumed_fit_reports_progress_from_its_initial_epoch(sent_progress: SentProgress) -> None:
    fit(ReportCallback(), batches=2, epochs=range(1, 3), steps=2)
    assert sent_progress[0] == (3, 6, "step") and sent_progress[-1] == (6, 6, "step")


def test_fit_with_unknown_batch_count_learns_it_from_the_first_epoch(sent_progress: SentProgress) -> None:
    fit(ReportCallback(), batches=4, epochs=range(2), steps=None)
    assert sent_progress == [(0, 2, "epoch"), (4, 8, "step"), *((n, 8, "step") for n in (5, 6, 7, 8, 8))]


def test_second_fit_with_other_data_counts_its_own_steps(sent_progress: SentProgress) -> None:
    callback = ReportCallback()
    fit(callback, batches=4, epochs=range(1), steps=None)
    fit(callback, batches=2, epochs=range(2), steps=None)
    assert sent_progress[-1] == (4, 4, "step")


def test_elastic_sampler_reports_progress_in_batches(sent_progress: SentProgress) -> None:
    state, data = elastic.State(losses=[]), elastic.Sampler(10, 4, epochs=2)
    assert len(list(state.resume(data))) == 6
    assert sent_progress == [(n, 6, "step") for n in range(1, 7)]


def test_other_ranks_and_standalone_scripts_report_no_progress(sent_progress: SentProgress) -> None:
    as_rank(1)
    fit(ReportCallback(), batches=2, epochs=range(1), steps=2)
    contexts.set_current(None)
    fit(ReportCallback(), batches=2, epochs=range(1), steps=2)
    assert sent_progress == []


def test_progress_is_limited_in_rate_but_includes_the_last_step(sent_progress: SentProgress) -> None:
    teller = messages.ProgressSender(interval_s=60.0)
    for step in range(1, 1_001):
        teller.send_progress(step, 1_000)
    assert sent_progress == [(1, 1_000, "step"), (1_000, 1_000, "step")]


def test_progress_at_the_end_of_each_epoch_is_always_reported(
    sent_progress: SentProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages.ProgressSender.__init__, "__defaults__", (60.0,))
    fit(ReportCallback(), batches=100, epochs=range(3), steps=100)
    assert sent_progress == [
        (1, 300, "step"),
        (100, 300, "step"),
        (200, 300, "step"),
        (300, 300, "step"),
        (300, 300, "step"),
    ]


def test_callback_with_a_misspelt_monitored_metric_is_refused_after_one_epoch(sent_progress: SentProgress) -> None:
    def epoch(monitor: str) -> None:
        callback = ReportCallback()
        callback.set_companions((callback, SimpleNamespace(monitor=monitor), SimpleNamespace(monitor=None)))
        callback._send = lambda logs: None  # type: ignore[method-assign]
        callback.on_epoch_begin(0)
        callback.on_epoch_end(0, {})  # without values, as of an epoch that the group left
        callback.on_epoch_end(0, {"loss": 0.5, "val_accuracy": 0.5})

    with pytest.raises(
        ArgumentError, match=r"monitor='val_acuracy'.*'loss', 'val_accuracy'.; did you mean 'val_accuracy'"
    ):
        epoch("val_acuracy")
    epoch("val_loss"), epoch("accuracy")  # metrics of other epochs, or of a fit with other data
