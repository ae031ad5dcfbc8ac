"""Tests that an agent with a full disk drops lines of files and reports it, while the training continues."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import submit
from tests.integration.cluster.preflight.test_runs import Lowered, lowered

pytestmark = pytest.mark.chaos
__all__ = ["lowered"]


def report_much() -> int:
    import hopsml

    for step in range(400):
        hopsml.report(step=step, loss=float(step), text="x" * 100)
    return step


@pytest.mark.parametrize("lowered", [(resource.RLIMIT_FSIZE, 20_000, 2)], indirect=True)
def test_training_continues_if_metrics_cannot_be_written(store: Path, lowered: Lowered) -> None:
    run = submit(report_much, preflight="off")
    assert run.result(END_S).value == 399
    assert run.status()["members"][0]["step"] == 399  # the driver has received all reports
    (note,) = [note for note in run.state.notes if "metrics.jsonl" in note]
    assert "rank 0: lines of metrics.jsonl were lost" in note and "File too large" in note
