"""Tests of ``hopsml.tensorflow.callbacks()``: arguments, and callbacks that it omits if a package is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hopsml.cluster.shared import checks
from hopsml.training.tensorflow.fit.standard_callbacks import callbacks, event_callbacks

pytestmark = pytest.mark.fast


def test_missing_tensorboard_is_reported_and_no_events_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert event_callbacks(str(tmp_path)) == []
    assert "no events are written: pip install tensorboard" in capsys.readouterr().out


def test_deprecated_checkpoint_every_is_accepted_with_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "_noted", set())
    older: dict[str, Any] = {"checkpoint_every": 5}
    assert callbacks(**older) == callbacks(**older) == callbacks(checkpoint_every_steps=5) == []  # outside of a worker
    assert capsys.readouterr().err == "hopsml: the argument checkpoint_every is now named checkpoint_every_steps\n"
