"""Tests of the callbacks that ``hopsml.tensorflow.callbacks()`` omits if a package is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hopsml.training.tensorflow.fit.standard_callbacks import event_callbacks

pytestmark = pytest.mark.fast


def test_without_tensorboard_a_line_says_that_no_events_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert event_callbacks(str(tmp_path)) == []
    assert "no events are written: pip install tensorboard" in capsys.readouterr().out
